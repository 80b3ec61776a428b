"""Node ports on addresses that left the node while nobody watched: the kernel state tells whose they are (K48)."""

from __future__ import annotations

import errno

import pytest

from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from tests.builders import addr, vs_key
from tests.clusters import Node, Svc, cluster

FIRST, FLOATING, FLOATING_6 = "192.0.2.11", "192.0.2.50", "2001:db8:1::50"
DUAL = ("10.96.0.20", "2001:db8:96::20")
SERVICE = Svc("a", DUAL, node_ports=(30001,))
LEFT = {vs_key(FLOATING, 30001), vs_key(FLOATING_6, 30001)}


def virtual_servers(node: Node):
    return set(node.fake.state[Kind.VIRTUAL_SERVER])


def traces(node: Node) -> set[str]:
    entries = (entry for entry in node.fake.state[Kind.SUPPORT_ENTRY] if isinstance(entry, SetEntry))
    return {str(entry) for entry in entries if entry.set_name.endswith("NODE-PORT-IPS")}


def served_on_all() -> Node:
    node = Node(host=[FIRST, FLOATING, FLOATING_6])
    node.sync(cluster(SERVICE))
    assert virtual_servers(node) > LEFT
    return node


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(cluster(SERVICE), id="its Service lives"),
        pytest.param({}, id="its Service went too"),
        pytest.param(cluster(Svc("a", DUAL)), id="its Service gave the node port up"),
    ],
)
def test_k48_a_node_port_on_an_address_that_left_between_two_runs_is_removed_at_the_next_start(now):
    first = served_on_all()
    second = Node(first.fake, host=[FIRST])
    second.sync(now)
    assert not virtual_servers(second) & LEFT
    assert traces(second) == {f"KUBE-NODE-PORT-IPS {FIRST}"}


def test_k48_a_node_port_on_an_address_that_left_between_two_runs_is_removed_by_clean_up():
    first = served_on_all()
    second = Node(first.fake, host=[FIRST])
    second.reconciler.remove_all()
    assert virtual_servers(second) == traces(second) == set()


def test_k48_an_address_that_never_was_the_nodes_may_have_a_foreign_virtual_server_at_one_of_our_node_ports():
    first = served_on_all()
    foreign = vs_key("192.0.2.99", 30001)
    first.fake.state[Kind.VIRTUAL_SERVER][foreign] = VirtualServer("wlc")
    first.fake.state[Kind.REAL_SERVER][foreign] = b""
    second = Node(first.fake, host=[FIRST])
    second.sync({})
    assert virtual_servers(second) == {foreign}


def test_k48_at_no_moment_is_there_a_node_port_that_nothing_tells_to_be_ours():
    """Whatever the moment of a crash, and whatever addresses have left by the next start."""
    node = Node(host=[FIRST])
    untold = []

    def look():
        known = {entry.address for entry in node.fake.state[Kind.SUPPORT_ENTRY] if "PORT-IPS" in entry.set_name}
        ports = {entry.port for entry in node.fake.state[Kind.SUPPORT_ENTRY] if "PORT-TCP" in entry.set_name}
        untold.extend(
            key
            for key in virtual_servers(node)
            if key.port > 30000 and (key.address not in known or key.port not in ports)
        )

    node.fake.after_message = look
    node.sync(cluster(SERVICE))
    for addresses in ((FIRST, FLOATING, FLOATING_6), (FLOATING,), (FIRST,)):
        node.has(*addresses)
        node.reconciler.sync()
    node.sync({})
    assert untold == []
    assert not virtual_servers(node)


def test_an_address_that_comes_is_one_entry_however_many_services_there_are():
    node = Node(host=[FIRST])
    node.sync(cluster(*(Svc(f"s{n}", (f"10.96.1.{n}",)) for n in range(1, 50))))
    node.has(FIRST, FLOATING)
    assert node.sync() == 1
    node.has(FIRST)
    assert node.sync() == 1
    assert traces(node) == {f"KUBE-NODE-PORT-IPS {FIRST}"}


def test_only_addresses_that_serve_node_ports_leave_a_trace():
    excluded = parse_cidr("198.51.100.0/24")
    assert excluded is not None
    node = Node(
        host=[FIRST, FLOATING, "198.51.100.11", "127.0.0.1"],
        node_port_cidrs=("192.0.2.0/28", "198.51.100.0/24"),
        exclude=(excluded,),
    )
    node.sync(cluster(SERVICE))
    assert traces(node) == {f"KUBE-NODE-PORT-IPS {FIRST}"}


def test_a_trace_that_is_refused_costs_no_node_port():
    node = Node(host=[FIRST])
    node.fake.faults = {("add", Kind.SUPPORT_ENTRY, SetEntry("KUBE-NODE-PORT-IPS", addr(FIRST))): errno.ENOMEM}
    node.sync(cluster(SERVICE))
    assert vs_key(FIRST, 30001) in virtual_servers(node)


def test_addresses_that_come_before_the_node_is_known_do_not_bring_rules_about():
    node = Node(host=[FIRST], needs_node=True)
    node.has(FIRST, FLOATING)
    node.reconciler.sync()
    assert node.fake.state[Kind.RULES] == {}
