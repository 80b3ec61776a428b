"""Numbers by Service port for metrics: read at audits, bounded, and never falling (K53)."""

from __future__ import annotations

import errno

import pytest
from structlog.testing import capture_logs

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.figures import Counts, PortName, Traffic
from ipvsproxy.model.kernel_objects import Kind, VirtualServer
from ipvsproxy.model.observed import Statistics
from tests.builders import addr, vs_key
from tests.clusters import Node, Svc, cluster

WEB = PortName("default", "web", "p80tcp", "TCP")
VIP = "10.96.0.20"


def count(fake: FakeKernel, address: str, connections: int, port: int = 80) -> None:
    """The virtual server has counted so much by now."""
    fake.statistics[6, addr(address), port] = Statistics(
        connections, connections * 10, connections * 20, connections * 1000, connections * 2000
    )


def counts(connections: int) -> Counts:
    return Counts(connections, connections * 10, connections * 20, connections * 1000, connections * 2000)


def audited(node: Node) -> Traffic:
    node.reconciler.audit(in_full=False)
    traffic = node.reconciler.figures.traffic
    assert traffic is not None
    return traffic


def node_with(*services: Svc, limit: int = 10, **fields) -> Node:
    node = Node(**fields)
    node.reconciler.traffic.limit = limit
    node.sync(cluster(*services))
    return node


def test_k53_nothing_is_read_unless_it_is_asked_for():
    node = Node()
    node.sync(cluster(Svc("web")))
    before = node.fake.messages
    node.reconciler.audit(in_full=False)
    assert node.fake.messages == before
    assert node.reconciler.figures.traffic is None


def test_k53_a_sync_reads_nothing_for_it():
    node = node_with(Svc("web"))
    count(node.fake, VIP, 5)
    node.sync(cluster(Svc("web", endpoints=(("10.244.1.9", True),))))
    assert node.reconciler.figures.traffic is None


def test_k53_an_audit_tells_what_passed_through_each_service_port():
    node = node_with(Svc("web", ports=((80, "TCP"), (443, "TCP"))))
    count(node.fake, VIP, 5)
    count(node.fake, VIP, 7, 443)
    other = PortName("default", "web", "p443tcp", "TCP")
    assert audited(node) == Traffic({WEB: counts(5), other: counts(7)})


def test_all_addresses_and_the_node_port_of_a_service_count_together():
    node = node_with(Svc("web", node_ports=(30080,), external_ips=("203.0.113.20",)), host=("192.0.2.11",))
    for address, port in ((VIP, 80), ("203.0.113.20", 80), ("192.0.2.11", 30080)):
        count(node.fake, address, 3, port)
    assert audited(node) == Traffic({WEB: counts(9)})


def test_somebody_elses_virtual_servers_have_no_numbers():
    node = node_with()
    node.fake.state[Kind.VIRTUAL_SERVER][vs_key("198.51.100.1", 80)] = VirtualServer("rr")
    node.fake.state[Kind.REAL_SERVER][vs_key("198.51.100.1", 80)] = b""
    count(node.fake, "198.51.100.1", 5)
    assert audited(node) == Traffic()


def test_a_counter_goes_on_where_it_was_when_an_address_goes():
    both = Svc("web", external_ips=("203.0.113.20",))
    node = node_with(both)
    count(node.fake, VIP, 5)
    count(node.fake, "203.0.113.20", 7)
    assert audited(node).ports[WEB] == counts(12)
    node.sync(cluster(Svc("web")))
    count(node.fake, VIP, 6)
    assert audited(node).ports[WEB] == counts(13)


def test_a_counter_goes_on_when_a_virtual_server_is_made_anew():
    node = node_with(Svc("web"))
    count(node.fake, VIP, 5)
    audited(node)
    count(node.fake, VIP, 2)
    assert audited(node).ports[WEB] == counts(7)


def test_a_dump_that_misses_a_virtual_server_changes_nothing():
    node = node_with(Svc("web"))
    count(node.fake, VIP, 5)
    audited(node)
    listed = node.fake.kernel.ipvs.virtual_servers
    node.fake.kernel.ipvs.virtual_servers = lambda **_: []
    assert audited(node) == Traffic({WEB: counts(5)})
    node.fake.kernel.ipvs.virtual_servers = listed
    count(node.fake, VIP, 6)
    assert audited(node) == Traffic({WEB: counts(6)})


def test_k53_of_more_ports_than_may_have_series_the_busiest_have_them():
    node = node_with(*(Svc(f"web-{n}", (f"10.96.0.{n}",)) for n in range(1, 5)), limit=2)
    for n, connections in enumerate((1, 30, 2, 40), 1):
        count(node.fake, f"10.96.0.{n}", connections)
    traffic = audited(node)
    assert {name.service for name in traffic.ports} == {"web-2", "web-4"}
    assert traffic.left_out == 2


def test_who_has_series_keeps_them_though_another_becomes_busier():
    node = node_with(Svc("first"), limit=1)
    count(node.fake, VIP, 1)
    audited(node)
    node.sync(cluster(Svc("first"), Svc("second", ("10.96.0.21",))))
    count(node.fake, "10.96.0.21", 1000)
    traffic = audited(node)
    assert ([name.service for name in traffic.ports], traffic.left_out) == (["first"], 1)


def test_k40_what_is_free_again_goes_to_another_and_nothing_is_left_behind():
    node = node_with(Svc("first"), limit=1)
    audited(node)
    node.sync(cluster(Svc("second", ("10.96.0.21",))))
    assert [name.service for name in audited(node).ports] == ["second"]
    assert {key.address for key in node.reconciler.traffic._last} == {addr("10.96.0.21")}


def test_what_cannot_be_read_stays_and_is_told_once():
    node = node_with(Svc("web"))
    count(node.fake, VIP, 5)
    audited(node)

    def fails(**_: object) -> list:
        raise KernelError("cannot list", errno.ENOMEM)

    node.fake.kernel.ipvs.virtual_servers = fails
    with capture_logs() as logs:
        traffic = [audited(node) for _ in range(2)]
    assert traffic == [Traffic({WEB: counts(5)})] * 2
    assert [log["log_level"] for log in logs if log["event"] == "traffic_not_read"] == ["warning", "debug"]


@pytest.mark.parametrize("in_full", [False, True])
def test_it_costs_one_message_an_audit(in_full):
    plain, counted = Node(), Node()
    counted.reconciler.traffic.limit = 10
    spent = []
    for node in (plain, counted):
        node.sync(cluster(*(Svc(f"web-{n}", (f"10.96.0.{n}",)) for n in range(1, 9))))
        before = node.fake.messages
        node.reconciler.audit(in_full=in_full)
        spent.append(node.fake.messages - before)
    assert spent[1] - spent[0] == 1
