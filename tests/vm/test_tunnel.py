"""K05: a tunnel's outer packets inherit their inner packet's mark. Ours must be cleared by then, or they are NATed too.

The node reaches the pods of the other node through VXLAN here, as with many a network plug-in.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, REMOTE_ADDRESSES, Cluster
from tests.lab.traffic import ask
from tests.vm.foreign import VERSIONS, foreign_rules, packets
from tests.vm.nodes import proxy_on, small_cluster
from tests.vm.places import B1, every_family, every_transport, ready

FAR = Svc(
    "far",
    ("10.96.0.20", "2001:db8:96::20"),
    ((80, "TCP"), (80, "UDP")),
    ready(B1),
    node_ports=(30080, 30080),
    ingress=(("203.0.113.10", "VIP"), ("2001:db8:113::10", "VIP")),
)
LOAD_BALANCER = tuple(ip for ip, _ in FAR.ingress)
OUR_MARK = "0x4000/0x4000"
FOREIGN_MARK = "0x20000000"
ENDS = (("10.244.255.1", "2001:db8:244:ff::1"), ("10.244.255.2", "2001:db8:244:ff::2"))
"""The addresses of the tunnel's ends, here and there."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a tunnel between its nodes, and a proxy at work."""
    with small_cluster() as hosts:
        dig(hosts)
        with proxy_on(hosts.node, tmp_path_factory.mktemp("proxy"), FAR) as proxy:
            proxy.wait_for_services()
            yield hosts
            assert proxy.stop() == ExitCode.OK


def dig(hosts: Cluster) -> None:
    """Let the nodes reach each other's pods through the tunnel."""
    here, there = ENDS
    networks = hosts.networks
    sides = (
        (hosts.node, NODE_ADDRESSES, REMOTE_ADDRESSES, here, there, networks.remote_pods),
        (hosts["remote"], REMOTE_ADDRESSES, NODE_ADDRESSES, there, here, networks.pods),
    )
    for host, own, other, end, far_end, pods in sides:
        host.ip(
            f"link add vxlan0 type vxlan id 1 local {own[0]} remote {other[0]} dstport 4789 dev eth0",
            f"addr add {end[0]}/30 dev vxlan0",
            f"addr add {end[1]}/64 dev vxlan0 nodad",
            "link set vxlan0 up",
            *(f"route replace {network} via {gateway}" for network, gateway in zip(pods, far_end, strict=True)),
        )


def outer(mark: str, name: str) -> str:
    """A rule that counts outer packets with this mark. It stands behind all of nat that acts on inner ones."""
    return f"mangle POSTROUTING -p udp -m udp --dport 4789 -m mark {mark} -m comment --comment {name}"


@every_family
@every_transport
@pytest.mark.parametrize(
    "client, to",
    [
        pytest.param("node", (FAR.ips, 80), id="the node itself to the cluster IP"),
        pytest.param("outside", (LOAD_BALANCER, 80), id="a client outside to the load balancer"),
        pytest.param("outside", (NODE_ADDRESSES, 30080), id="a client outside to the node port"),
        pytest.param("a3", (LOAD_BALANCER, 80), id="a pod to the load balancer"),
    ],
)
def test_k05_outer_packets_of_masqueraded_traffic_leave_unmarked(place, client, to, transport, family):
    addresses, port = to
    # Any mark but ours may be there: Linux keeps the tailroom of MLD reports in the same word, linux/skbuff.h.
    with foreign_rules(place.node, 4, outer(f"! --mark {OUR_MARK}", "clean"), outer(f"--mark {OUR_MARK}", "marked")):
        for _ in range(2):
            assert ask(place[client], addresses[family], port, transport).client == ENDS[0][family]
        assert packets(place.node, 4, "mangle", "comment marked") == 0
        assert packets(place.node, 4, "mangle", "comment clean") > 0


@every_family
def test_k54_a_foreign_mark_of_masqueraded_traffic_is_still_there_when_ours_is_cleared(place, family):
    put = f"mangle PREROUTING -p tcp -m tcp --dport 80 -j MARK --set-xmark {FOREIGN_MARK}/{FOREIGN_MARK}"
    counted = (outer(f"--mark {FOREIGN_MARK}", "theirs"), outer(f"--mark {OUR_MARK}", "ours"))
    with foreign_rules(place.node, VERSIONS[family], put), foreign_rules(place.node, 4, *counted):
        assert ask(place["outside"], LOAD_BALANCER[family], 80).client == ENDS[0][family]
        assert packets(place.node, 4, "mangle", "comment theirs") > 0
        assert packets(place.node, 4, "mangle", "comment ours") == 0
