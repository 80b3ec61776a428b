"""Our Node object where plans depend on it: waited for, followed, and gone."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.events import Changed, Forbidden, Listed, ObjectRef, Removed
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry
from ipvsproxy.sync.node_wait import WAIT_S
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Cluster, Node, Svc, cluster

WEB = cluster(Svc("web"))
KEY = vs_key("10.96.0.20", 80)
REF = ObjectRef("Node", "", NODE)
NAT = RuleTable("nat", Family.IPV4)


def told(node: Node, *networks: str) -> None:
    """Our Node is there, with these pod networks."""
    spec = {"podCIDRs": list(networks)}
    status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}
    found = msgspec.convert({"metadata": {"name": NODE}, "spec": spec, "status": status}, api.Node)
    node.tracker.note(Changed(REF, found))


def waiting() -> Node:
    """A node in mode NodeCIDR that knows all but its Node object."""
    node = Node(needs_node=True)
    node.tell(WEB)
    node.tracker.note(Listed("Node"))
    return node


def serves(node: Node) -> bool:
    return KEY in node.fake.state[Kind.VIRTUAL_SERVER]


def rules(node: Node) -> str:
    return str(node.fake.state[Kind.RULES][NAT])


def events_named(events: list, name: str) -> list:
    return [event for event in events if event["event"] == name]


def test_a_mode_that_needs_the_node_waits_for_it_to_be_listed_and_touches_no_rule_before():
    node = Node(needs_node=True)
    node.tell(WEB)
    node.reconciler.sync()
    assert node.fake.messages == 0
    told(node, "10.244.1.0/24")
    node.tracker.note(Listed("Node"))
    node.reconciler.sync()
    assert serves(node)


@pytest.mark.parametrize(
    "comes",
    [
        pytest.param((), id="a Node without networks"),
        pytest.param(None, id="no Node of our name"),
    ],
)
def test_a_node_that_does_not_say_enough_is_waited_for_and_planned_for_as_soon_as_it_does(comes, events):
    node = waiting()
    if comes is not None:
        told(node, *comes)
    result = node.reconciler.sync()
    assert (node.fake.messages, result.retry_at) == (0, WAIT_S)
    assert len(events_named(events, "waiting_for_node")) == 1
    node.clock.now = WAIT_S - 1
    told(node, "10.244.1.0/24")
    assert node.reconciler.sync().retry_at is None
    assert serves(node)
    assert "10.244.1.0/24" in rules(node)


def test_k55_the_wait_for_a_node_is_bounded_and_its_end_is_said(events):
    node = waiting()
    node.reconciler.sync()
    node.clock.now = WAIT_S
    node.reconciler.sync()
    assert serves(node)
    assert [line["log_level"] for line in events_named(events, "node_not_known")] == ["warning"]


def test_pod_networks_that_come_after_the_wait_are_in_force_in_one_sync():
    node = waiting()
    node.pass_time(WAIT_S)
    assert "10.244.1.0/24" not in rules(node)
    told(node, "10.244.1.0/24")
    node.reconciler.sync()
    assert "10.244.1.0/24" in rules(node)


def test_a_change_of_the_pod_network_rewrites_the_rules_and_touches_no_virtual_server(events):
    node = waiting()
    told(node, "10.244.1.0/24")
    node.reconciler.sync()
    before = dict(node.fake.state[Kind.VIRTUAL_SERVER])
    events.clear()
    told(node, "10.244.7.0/24")
    node.reconciler.sync()
    assert "10.244.7.0/24" in rules(node)
    assert "10.244.1.0/24" not in rules(node)
    assert node.fake.state[Kind.VIRTUAL_SERVER] == before
    touched = {line["operation"].split()[1] for line in events_named(events, "operation_applied")}
    assert touched == {"rules"}
    assert [line["pod_networks"] for line in events_named(events, "node_changed")] == [["10.244.7.0/24"]]


def test_k25_pods_of_a_family_of_which_the_node_has_no_network_are_said_to_be_outside_once(events):
    node = waiting()
    told(node, "10.244.1.0/24")
    node.reconciler.sync()
    told(node, "10.244.7.0/24")
    node.reconciler.sync()
    (line,) = events_named(events, "pods_count_as_outside")
    assert (line["family"], line["log_level"]) == ("IPv6", "warning")
    told(node, "10.244.7.0/24", "fd00:244:1::/64")
    node.reconciler.sync()
    told(node, "fd00:244:1::/64")
    node.reconciler.sync()
    assert [line["family"] for line in events_named(events, "pods_count_as_outside")] == ["IPv6", "IPv4"]


def test_a_node_that_is_deleted_changes_nothing_and_its_next_word_counts():
    node = waiting()
    told(node, "10.244.1.0/24")
    node.reconciler.sync()
    sent = node.fake.messages
    node.tracker.note(Removed(REF))
    node.reconciler.sync()
    assert node.fake.messages == sent
    told(node, "10.244.7.0/24")
    node.reconciler.sync()
    assert "10.244.7.0/24" in rules(node)


# Where nothing but Services' plans depends on it

NEAR, FAR = "10.244.1.5", "10.244.2.5"
BALANCER = "203.0.113.10"
OWN_WAY_IN = SetEntry("KUBE-LOAD-BALANCER-SOURCE-IP", addr(BALANCER), 6, 80, addr(BALANCER))


def hinted() -> Cluster:
    """A Service with an endpoint for each of two zones, at a load balancer that our Node may use."""
    ranges = ("192.0.2.0/24",)
    service = Svc("web", endpoints=((NEAR, True), (FAR, True)), ingress=((BALANCER, "VIP"),), source_ranges=ranges)
    objects = cluster(service)
    (ref,) = (ref for ref in objects if ref.kind == "EndpointSlice")
    slice_ = objects[ref]
    assert isinstance(slice_, api.EndpointSlice)
    endpoints = tuple(
        msgspec.structs.replace(endpoint, hints=api.EndpointHints(for_zones=(api.Hint(zone),)))
        for endpoint, zone in zip(slice_.endpoints or (), ("za", "zb"), strict=True)
    )
    return {**objects, ref: msgspec.structs.replace(slice_, endpoints=endpoints)}


def our_node() -> Changed:
    found = api.Node(
        api.Metadata(NODE, labels={"topology.kubernetes.io/zone": "za"}),
        status=api.NodeStatus((api.NodeAddress("InternalIP", "192.0.2.11"),)),
    )
    return Changed(REF, found)


def restarted() -> Node:
    """A node whose former run knew its Node, and which has heard all but of that."""
    former = Node(host=("192.0.2.11",))
    former.tracker.note(our_node())
    former.sync(hinted())
    assert former.fake.state[Kind.REAL_SERVER][KEY] == blob((NEAR, 8080))
    assert OWN_WAY_IN in former.fake.state[Kind.SUPPORT_ENTRY]
    node = Node(former.fake, host=("192.0.2.11",), hears_of_node=False)
    node.tell(hinted())
    return node


def test_k14_k36_a_start_neither_crosses_zones_nor_shuts_the_node_out_because_its_node_is_told_last(events):
    node = restarted()
    assert node.sync() == 0
    (line,) = events_named(events, "waiting_for_node")
    assert (line["lacks"], line["at_most_s"]) == ("any word of it", WAIT_S)
    node.tracker.note(our_node())
    assert node.sync() == 0
    assert node.reconciler.sync().retry_at is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Listed("Node"), id="there is no such Node"),
        pytest.param(Forbidden("Node", "refused (403)"), id="it may not be read"),
    ],
)
def test_an_answer_without_a_node_ends_the_wait(answer, events):
    node = restarted()
    node.sync()
    node.tracker.note(answer)
    assert node.sync() > 0
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob((NEAR, 8080), (FAR, 8080))
    assert events_named(events, "node_not_known") == []
    node.tracker.note(our_node())
    node.sync()
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob((NEAR, 8080))


def test_a_server_that_never_answers_about_our_node_holds_nothing_up_for_long(events):
    node = restarted()
    assert node.reconciler.sync().retry_at == WAIT_S
    node.pass_time(WAIT_S)
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob((NEAR, 8080), (FAR, 8080))
    assert [line["lacks"] for line in events_named(events, "node_not_known")] == ["any word of it"]


def test_who_has_heard_that_there_is_no_node_does_not_wait(events):
    node = Node()
    node.sync(WEB)
    assert serves(node)
    assert events_named(events, "waiting_for_node") == []
