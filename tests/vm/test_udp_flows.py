"""Steady UDP senders, and what connection tracking remembers of them, while what they send to changes (K10, K20)."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ipvsproxy.model.enums import Family
from ipvsproxy.model.flows import PackedEndpoint, UdpFlow
from tests.builders import flow, packed
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster, Namespace
from tests.lab.steady import Sender, flows_in, put_flows, send_until, senders, wait_for_answers
from tests.vm.nodes import ProxyNode, proxy_on, small_cluster
from tests.vm.places import A1, A2, B1, every_family, ready

FAMILIES = (Family.IPV4, Family.IPV6)
VIPS = ("10.96.0.10", "2001:db8:96::a")
OTHER_VIPS = ("10.96.0.11", "2001:db8:96::b")
BALANCER = ("203.0.113.10", "2001:db8:113::a")
NODE_PORT = 30053
UDP = ((53, "UDP"),)
OTHER = Svc("other", OTHER_VIPS, UDP, ready(A2))


def dns(*pods: tuple[str, str]) -> Svc:
    return Svc("dns", VIPS, UDP, ready(*pods))


def everywhere(*pods: tuple[str, str]) -> Svc:
    """On a cluster IP, a load balancer's address and a node port."""
    return Svc("dns", VIPS, UDP, ready(*pods), node_ports=(NODE_PORT,), ingress=tuple((ip, "VIP") for ip in BALANCER))


def frontends(family: int) -> list[tuple[str, int]]:
    """Where it is then."""
    return [(VIPS[family], 53), (BALANCER[family], 53), (NODE_ADDRESSES[family], NODE_PORT)]


def clients(hosts: Cluster, family: int) -> list[tuple[Namespace, str, int]]:
    """A pod that sends to the cluster IP, and a client outside to the others."""
    return [(hosts[name], *at) for name, at in zip(("a3", "outside", "outside"), frontends(family), strict=True)]


def endpoint(pod: tuple[str, str], family: int) -> PackedEndpoint:
    return packed(pod[family], 8053)


def flows_to(host: Namespace, family: int, *destinations: tuple[str, int]) -> set[UdpFlow]:
    """The flows of clients that send to any of these."""
    wanted = {packed(*destination) for destination in destinations}
    return {each for each in flows_in(host, FAMILIES[family]) if each.destination in wanted}


def servers_of(host: Namespace, family: int, *destinations: tuple[str, int]) -> set[PackedEndpoint]:
    """Whom what comes for these, or else for the Service, is translated to."""
    found = flows_to(host, family, *(destinations or frontends(family)))
    return {each.server for each in found if each.server != each.destination}


def send_during(sending: Sequence[Sender], node: ProxyNode, *services: Svc) -> None:
    """Everybody sends steadily while the cluster changes to these Services, until the kernel has them."""
    for _ in node.syncing(*services):
        for each in sending:
            each.send()


@every_family
def test_k10_a_pod_that_leaves_costs_a_steady_sender_at_most_one_datagram(node: ProxyNode, family):
    node.sync(dns(A1, A2), OTHER)
    earlier = flows_in(node.host, FAMILIES[family])
    with senders(
        *[(node.hosts[name], VIPS[family], 53) for name in ("a3", "outside", "node") for _ in range(2)]
    ) as all_:
        send_until(all_, lambda: all(len(each.answers) > 5 for each in all_))
        moving, staying = ([each for each in all_ if each.server == name] for name in ("a1", "a2"))
        assert len(moving) == len(staying) == 3
        ours = flows_to(node.host, family, (VIPS[family], 53)) - earlier
        kept = {each for each in ours if each.server == endpoint(A2, family)}
        assert len(kept) == 3

        send_during(all_, node, dns(A2), OTHER)
        marks = [each.sent for each in all_]
        send_until(all_, lambda: all(each.sent > mark + 50 for each, mark in zip(all_, marks, strict=True)))
        wait_for_answers(all_)

        assert [each.lost for each in staying] == [0, 0, 0]
        assert max(each.lost for each in moving) <= 1
        for each in moving:
            assert set(each.answers[each.answers.index("a2") :]) == {"a2"}
        assert kept <= flows_in(node.host, FAMILIES[family])
        assert servers_of(node.host, family) == {endpoint(A2, family)}


def test_k10_expire_nodest_conn_is_on_while_it_runs(node: ProxyNode):
    assert node.host.sysctl("net/ipv4/vs/expire_nodest_conn") == "1"


@every_family
def test_k20_no_flow_of_a_service_outlives_its_endpoints_its_frontends_or_itself(node: ProxyNode, family):
    node.sync(everywhere(A1), OTHER)
    places = [(OTHER_VIPS[family], 53), (A2[family], 8053), (B1[family], 8053)]
    others = [(node.hosts["a3"], *place) for place in places]
    earlier = flows_in(node.host, FAMILIES[family])
    with senders(*clients(node.hosts, family), *others) as sending:
        ours, strangers = sending[:3], sending[3:]
        send_until(sending, lambda: all(each.server for each in sending))
        untouched = flows_to(node.host, family, *places) - earlier
        assert len(untouched) == 3
        assert servers_of(node.host, family) == {endpoint(A1, family)}

        send_during(sending, node, everywhere(), OTHER)
        send_until(sending, lambda: not servers_of(node.host, family))

        send_during(sending, node, everywhere(A2), OTHER)
        send_until(sending, lambda: all(each.server == "a2" for each in ours))
        assert servers_of(node.host, family) == {endpoint(A2, family)}

        send_during(sending, node, dns(A2), OTHER)
        send_until(sending, lambda: not servers_of(node.host, family, *frontends(family)[1:]))
        assert servers_of(node.host, family) == {endpoint(A2, family)}

        send_during(sending, node, OTHER)
        send_until(sending, lambda: not servers_of(node.host, family))

        wait_for_answers(strangers)
        assert [each.lost for each in strangers] == [0, 0, 0]
        assert untouched <= flows_in(node.host, FAMILIES[family])


@every_family
def test_a_sender_that_was_there_before_the_node_port_is_served_once_it_stands(node: ProxyNode, family):
    """Until then the host refuses it, and connection tracking remembers it as the host's own."""
    node.sync(OTHER)
    place = (NODE_ADDRESSES[family], NODE_PORT)
    earlier = flows_to(node.host, family, place)  # an earlier test's may linger
    with senders((node.hosts["outside"], *place)) as (sender,):
        send_until([sender], lambda: sender.refusals > 2)
        (before,) = flows_to(node.host, family, place) - earlier
        assert before.server == before.destination
        send_during([sender], node, everywhere(A1), OTHER)
        send_until([sender], lambda: sender.server == "a1")


# The daemon dies between the change and the clean-up


@pytest.fixture
def small() -> Iterator[Cluster]:
    """A cluster of its own, whose proxy a test may kill."""
    with small_cluster() as hosts:
        yield hosts


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([everywhere(A2), OTHER], id="another endpoint has come instead"),
        pytest.param([everywhere(), OTHER], id="the endpoint has left"),
        pytest.param([OTHER], id="the Service has gone"),
    ],
)
def test_k20_what_a_killed_daemon_has_not_cleaned_up_the_next_one_does(small: Cluster, tmp_path: Path, after):
    """Flows of steady senders, and of some that went silent."""
    silent = [
        flow(f"10.244.1.7:{source}", f"{address}:{port}", "10.244.1.5:8053")
        for source, (address, port) in enumerate(frontends(0), 2000)  # what is answered must differ, too
    ]
    strangers = [
        flow("10.244.1.7:3000", "10.96.0.11:53", "10.244.1.6:8053"),
        flow("10.244.1.7:3001", "10.244.1.5:8053", "10.244.1.5:8053"),
        flow("10.244.1.7:3002", f"198.51.100.7:{NODE_PORT}", f"198.51.100.7:{NODE_PORT}"),
    ]
    with senders(*clients(small, 0)) as sending:
        with proxy_on(small.node, tmp_path, everywhere(A1), OTHER) as proxy:
            proxy.wait_for_services()
            send_until(sending, lambda: all(each.server for each in sending))
            assert proxy.stop(signal.SIGKILL) == -signal.SIGKILL
        put_flows(small.node, [*silent, *strangers])
        untouched = flows_in(small.node, Family.IPV4) - flows_to(small.node, 0, *frontends(0))
        assert len(untouched) == len(strangers)
        assert servers_of(small.node, 0) == {endpoint(A1, 0)}

        with proxy_on(small.node, tmp_path, *after) as proxy:
            send_until(sending, lambda: "stale_flows_removed" in proxy.text())
            assert endpoint(A1, 0) not in servers_of(small.node, 0)
            if after[0] == everywhere(A2):
                send_until(sending, lambda: all(each.server == "a2" for each in sending))
            assert untouched <= flows_in(small.node, Family.IPV4)
