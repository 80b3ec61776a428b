"""Interfaces of the node that come, go, move and flap: node ports follow, and nothing of them stays (K23)."""

from __future__ import annotations

import pytest

from tests.clusters import Svc
from tests.lab.hosts import Namespace
from tests.vm.nodes import ProxyNode, bound, virtual_servers
from tests.vm.places import A1, B1, ready

WEB = Svc(
    "web",
    ("10.96.0.20", "2001:db8:96::20"),
    ((80, "TCP"), (80, "UDP")),
    ready(A1, B1),
    node_ports=(30080, 30080),
    external_ips=("203.0.113.11", "2001:db8:113::11"),
)
VIPS = {"10.96.0.20/32", "2001:db8:96::20/128", "203.0.113.11/32", "2001:db8:113::11/128"}


@pytest.fixture
def served(node: ProxyNode) -> ProxyNode:
    """The node with a Service that has node ports."""
    node.sync(WEB)
    return node


def served_at(node: ProxyNode, *addresses: str) -> bool:
    """Whether the node port is served at each of these addresses; as ipvsadm shows them."""
    text = "\n".join(virtual_servers(node.host))
    return all(f"-t {address}:30080 " in text and f"-u {address}:30080 " in text for address in addresses)


def test_k23_node_ports_are_served_on_an_interface_until_it_is_deleted(served):
    before = virtual_servers(served.host)
    served.host.ip(
        "link add docker0 type dummy",
        "addr add 169.254.7.7/16 dev docker0",
        "addr add fe80::77/64 dev docker0",
        "addr add 172.17.0.1/16 dev docker0",
    )
    served.proxy.wait_until(lambda: served_at(served, "172.17.0.1"))
    assert not [line for line in virtual_servers(served.host) if "169.254." in line or "fe80:" in line]
    served.host.ip("link del docker0")
    served.proxy.wait_until(lambda: virtual_servers(served.host) == before)


def test_k23_node_ports_leave_with_an_interface_that_moves_to_another_network_namespace(served):
    before = virtual_servers(served.host)
    with Namespace("elsewhere") as elsewhere:
        served.host.ip(
            "link add v1 type veth peer name v2",
            "addr add 172.18.0.1/16 dev v1",
            "addr add 2001:db8:99::1/64 dev v1 nodad",
        )
        served.proxy.wait_until(lambda: served_at(served, "172.18.0.1", "[2001:db8:99::1]"))
        served.host.ip(f"link set v1 netns {elsewhere.path}")
        served.proxy.wait_until(lambda: virtual_servers(served.host) == before)
        served.host.ip("link del v2")


@pytest.mark.parametrize("where", ["192.0.2.77/32 dev eth0", "2001:db8:1::77/128 dev eth0"], ids=["IPv4", "IPv6"])
def test_k23_an_address_that_flaps_is_served_as_it_is_left(served, where):
    before = virtual_servers(served.host)
    address = where.partition("/")[0]
    shown = f"[{address}]" if ":" in address else address
    flaps = [f"addr {verb} {where}" for _ in range(40) for verb in ("add", "del")]
    served.host.ip(*flaps, f"addr add {where}")
    served.proxy.wait_until(lambda: served_at(served, shown))
    served.host.ip(*flaps[1:])
    served.proxy.wait_until(lambda: virtual_servers(served.host) == before)


def test_k23_no_vip_counts_as_the_nodes_own_address_however_often_our_device_is_deleted(served):
    servers = virtual_servers(served.host)
    for _ in range(4):
        served.host.ip("link del kube-ipvs0")
        served.proxy.wait_until(lambda: bound(served.host) >= VIPS)  # an earlier test's may stay for a minute
        assert virtual_servers(served.host) == servers
