"""External addresses that are somebody else's: another Node's, a pod's (K33); who is asked for the Nodes, and when."""

from __future__ import annotations

import pytest

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import (
    OTHER_NODE,
    Changed,
    Forbidden,
    Forgotten,
    Listed,
    NodeAddresses,
    ObjectRef,
    Removed,
)
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import api_objects as api
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import format_addr, parse_cidr
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.model.notices import Notice
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Node, Svc, cluster
from tests.witness import Witness, served

OWN, OTHER, OTHER_V6 = "192.0.2.11", "192.0.2.12", "2001:db8:1::12"
FREE = "203.0.113.20"
POD = "10.244.2.5"
CLUSTER_IPS = ("10.96.0.20", "2001:db8:96::20")

both_ways = pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda *ips: Svc("a", CLUSTER_IPS, external_ips=ips), id="external IP"),
        pytest.param(lambda *ips: Svc("a", CLUSTER_IPS, ingress=tuple((ip, "VIP") for ip in ips)), id="balancer IP"),
    ],
)


class Asked:
    """Whether the other Nodes are wanted, call for call."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def follow(self, *, wanted: bool) -> None:
        self.calls.append(wanted)


def at(name: str, *addresses: str) -> NodeAddresses:
    return NodeAddresses(name, tuple(map(addr, addresses)))


def node_object(name: str, *addresses: str, pod_cidrs: tuple[str, ...] = ()) -> Changed:
    status = api.NodeStatus(tuple(api.NodeAddress("InternalIP", address) for address in addresses))
    found = api.Node(metadata=api.Metadata(name=name), spec=api.NodeSpec(pod_cidrs=pod_cidrs), status=status)
    return Changed(ObjectRef("Node", "", name), found)


def following(fake: FakeKernel | None = None, asked: Asked | None = None) -> Node:
    """A node that will be told of the others, as with an API server."""
    return Node(fake, host=[OWN], claims=Claims(waits_for_nodes=True), other_nodes=asked or Asked())


def told(node: Node, *events) -> int:
    for event in events:
        node.tracker.note(event)
    return node.sync()


def bound(node: Node) -> set[str]:
    return {format_addr(address) for address in node.fake.state[Kind.ADDRESS]}  # type: ignore[arg-type]


def anywhere(node: Node, *addresses: str) -> list[object]:
    """What the kernel has with one of these addresses."""
    wanted = set(map(addr, addresses))
    return [
        key
        for objects in node.fake.state.values()
        for key in objects
        if (key if isinstance(key, bytes) else getattr(key, "address", None)) in wanted
    ]


def said(events) -> list[str]:
    return [f"{e['object']}: {e['reason']}" for e in events if e["event"] == "object_rejected"]


# Another Node's address


@both_ways
def test_k33_nothing_is_programmed_for_an_address_of_another_node(way):
    node = Node(host=[OWN])
    told(node, at("n2", OTHER, OTHER_V6))
    node.sync(cluster(way(OTHER, OTHER_V6, FREE)))
    assert anywhere(node, OTHER, OTHER_V6) == []
    assert bound(node) == {*CLUSTER_IPS, FREE}
    assert vs_key(FREE, 80) in served(node.fake.state)


@both_ways
def test_k33_a_node_that_comes_frees_its_bound_address_in_one_sync_and_one_that_goes_gives_it_back(way):
    node = Node(host=[OWN])
    node.sync(cluster(way(OTHER, FREE)))
    assert OTHER in bound(node)
    witness = Witness(node.fake)
    assert told(node, at("n2", OTHER)) == 4  # accept entry, virtual server with its real one, address, closing entry
    assert anywhere(node, OTHER) == []
    told(node, at("n2"))
    assert OTHER in bound(node)
    assert vs_key(OTHER, 80) in served(node.fake.state)
    assert vs_key(FREE, 80) in witness.before & served(node.fake.state)


@pytest.mark.parametrize("leaver, last", [("n2", "n3"), ("n3", "n2")])
def test_k33_an_address_that_two_nodes_name_is_left_to_the_one_that_still_does(leaver, last):
    node = Node(host=[OWN])
    told(node, at("n2", OTHER))
    node.sync(cluster(Svc("a", external_ips=(OTHER,))))
    told(node, at("n3", OTHER))
    assert told(node, at(leaver, "192.0.2.99")) == 0
    assert anywhere(node, OTHER) == []
    told(node, at(last))
    assert OTHER in bound(node)


def test_k33_a_cluster_ip_is_ours_whatever_other_nodes_say():
    node = Node(host=[OWN])
    told(node, at("n2", "10.96.0.20"))
    node.sync(cluster(Svc("a"), Svc("b", ("10.96.0.21",), ports=((81, "TCP"),), external_ips=("10.96.0.20",))))
    assert bound(node) == {"10.96.0.20", "10.96.0.21"}
    assert vs_key("10.96.0.20", 80) in served(node.fake.state)


def test_k32_an_address_of_an_own_interface_is_served_though_another_node_names_it_too(events):
    node = Node(host=[OWN])
    told(node, at("old-name", OWN))
    node.sync(cluster(Svc("a", external_ips=(OWN,))))
    assert vs_key(OWN, 80) in served(node.fake.state, {addr(OWN)})
    assert OWN not in bound(node)
    assert said(events) == []


def test_k32_an_address_that_fails_over_to_this_node_is_served_here_and_left_alone_when_it_moves_on():
    """A VRRP address that the other Node's status names as its own."""
    node = Node(host=[OWN])
    told(node, at("n2", OTHER, FREE))
    node.sync(cluster(Svc("a", external_ips=(FREE,))))
    assert anywhere(node, FREE) == []
    assert node.has(OWN, FREE)
    node.sync()
    assert vs_key(FREE, 80) in served(node.fake.state, {addr(FREE)})
    assert FREE not in bound(node)
    node.has(OWN)
    node.sync()
    assert anywhere(node, FREE) == []


def test_k33_it_is_said_once_with_service_address_and_node_and_again_when_it_changes(events):
    node = Node(host=[OWN])
    told(node, at("n2", OTHER))
    services = Svc("a", external_ips=(OTHER, FREE)), Svc("b", ("10.96.0.21",), ports=((81, "TCP"),))
    node.sync(cluster(*services))
    node.sync(cluster(services[0], Svc("b", ("10.96.0.21",), ports=((82, "TCP"),))))
    told(node, at("n2", OTHER, "192.0.2.99"))
    said_of_a = "Service default/a: external IP 192.0.2.12"
    assert said(events) == [said_of_a + " is an address of Node n2"]
    told(node, at("n3", FREE))
    assert said(events)[1:] == [
        said_of_a + " is an address of Node n2; external IP 203.0.113.20 is an address of Node n3",
    ]
    told(node, at("n2"), at("n3"))
    told(node, at("n2", OTHER))
    assert said(events)[2:] == [said_of_a + " is an address of Node n2"]


def test_k33_the_services_owner_is_told_by_a_notice():
    node = Node(host=[OWN])
    notices: list[Notice] = []
    node.reconciler.tell = notices.append
    told(node, at("n2", OTHER))
    node.sync(cluster(Svc("a", external_ips=(OTHER,))))
    told(node, at("n2", OTHER, "192.0.2.99"))
    (notice,) = notices
    assert (notice.kind, notice.namespace, notice.name) == ("Service", "default", "a")
    assert notice.text.startswith("external IP 192.0.2.12 is an address of Node n2. It is not served on this node")
    told(node, at("n2"))
    assert len(notices) == 1


def test_k33_other_nodes_of_a_folder_count():
    node = Node(host=[OWN])
    told(node, node_object(NODE, OWN), node_object("n2", OTHER))
    node.sync(cluster(Svc("a", external_ips=(OTHER,))))
    assert anywhere(node, OTHER) == []
    told(node, Removed(ObjectRef("Node", "", "n2")))
    assert OTHER in bound(node)


# An address of our own Node


@both_ways
def test_k32_an_address_of_our_node_that_no_interface_has_is_neither_bound_nor_closed(way, events):
    """A cloud translates its ExternalIP; k3s names it as a load balancer's (k3s-io/k3s#7183)."""
    node = following()
    told(node, Listed(OTHER_NODE), node_object(NODE, OWN, FREE))
    node.sync(cluster(way(OWN, FREE)))
    assert anywhere(node, FREE) == []
    assert vs_key(OWN, 80) in served(node.fake.state, {addr(OWN)})
    assert said(events)[0].endswith("203.0.113.20 is an address of this Node that none of its interfaces has")


@both_ways
def test_k32_an_address_of_our_node_is_served_as_soon_as_an_interface_has_it_and_as_long(way):
    node = Node(host=[OWN])
    told(node, node_object(NODE, OWN, FREE))
    node.sync(cluster(way(FREE)))
    node.has(OWN, FREE)
    node.sync()
    assert vs_key(FREE, 80) in served(node.fake.state, {addr(FREE)})
    assert FREE not in bound(node)
    node.has(OWN)
    node.sync()
    assert anywhere(node, FREE) == []


def test_k32_an_address_that_our_node_comes_to_have_is_let_go_in_one_sync_and_bound_again_afterwards():
    node = Node(host=[OWN])
    told(node, node_object(NODE, OWN))
    node.sync(cluster(Svc("a", external_ips=(FREE,))))
    assert FREE in bound(node)
    told(node, node_object(NODE, OWN, FREE))
    assert anywhere(node, FREE) == []
    told(node, node_object(NODE, OWN))
    assert FREE in bound(node)


# A pod's address


def pod_node(*own: str, cluster_cidr: str = "10.244.0.0/16", pod_cidr: str = "10.244.1.0/24") -> Node:
    cidr = parse_cidr(cluster_cidr)
    assert cidr is not None
    node = Node(host=own, claims=Claims((cidr,)))
    told(node, node_object(NODE, *own, pod_cidrs=(pod_cidr,)))
    return node


@both_ways
def test_k33_an_address_of_the_pods_is_not_served_and_said_so(way, events):
    node = pod_node(OWN, cluster_cidr="10.244.0.0/17", pod_cidr="10.244.129.0/24")
    node.sync(cluster(way(POD, "10.244.129.7", FREE)))
    assert anywhere(node, POD, "10.244.129.7") == []
    assert FREE in bound(node)
    assert len(said(events)) == 1
    assert "10.244.2.5 is in the pod network 10.244.0.0/17" in said(events)[0]
    assert "10.244.129.7 is in the pod network 10.244.129.0/24" in said(events)[0]


def test_k33_a_network_that_pods_share_with_nodes_tells_nothing_of_who_has_an_address():
    node = pod_node(OWN, cluster_cidr="192.0.2.0/24")
    node.sync(cluster(Svc("a", external_ips=("192.0.2.77",))))
    assert "192.0.2.77" in bound(node)


def test_k33_our_node_that_is_known_late_frees_a_bound_address_of_a_pod():
    cidr = parse_cidr("10.244.0.0/16")
    assert cidr is not None
    node = Node(host=[OWN], claims=Claims((cidr,)))
    node.sync(cluster(Svc("a", external_ips=(POD,))))
    assert POD in bound(node)
    told(node, node_object(NODE, OWN))
    assert anywhere(node, POD) == []


# An address that lingers without its Service


BYSTANDER = Svc("bystander", ("10.96.0.21",), ports=((81, "TCP"),))


def with_an_open_stream(asked: Asked) -> Node:
    """A node that has lost the Service of OTHER, to which a client is connected."""
    node = following(asked=asked)
    node.sync(cluster(Svc("a", external_ips=(OTHER,)), BYSTANDER))
    told(node, Listed(OTHER_NODE))
    node.fake.connections[vs_key(OTHER, 80), real_servers.identity(blob(("10.244.1.5", 8080)))] = 1
    node.sync(cluster(BYSTANDER))
    assert OTHER in bound(node)
    return node


def test_k33_an_address_that_lingers_is_let_go_in_one_sync_when_a_node_has_it():
    node = with_an_open_stream(Asked())
    assert node.tracker.note(at("n2", OTHER))
    node.sync()
    assert anywhere(node, OTHER) == []
    node.sync()
    assert node.tracker.counts.claims == 1  # the Node's address


def test_k33_no_address_begins_to_linger_that_a_node_has_come_to_have_when_its_service_goes():
    node = with_an_open_stream(Asked())
    node.sync(cluster(Svc("a", external_ips=(OTHER,)), BYSTANDER))
    node.tell(cluster(BYSTANDER))
    node.tracker.note(at("n2", OTHER))
    node.sync()
    assert anywhere(node, OTHER) == []


def test_other_nodes_are_followed_while_an_address_lingers_that_could_be_theirs():
    asked = Asked()
    node = with_an_open_stream(asked)
    assert asked.calls == [True]
    node.fake.connections.clear()
    node.clock.now += 3600
    node.sync()
    assert OTHER not in bound(node)
    assert asked.calls == [True, False]


def test_a_cluster_ip_that_lingers_asks_for_nobody():
    asked = Asked()
    node = following(asked=asked)
    node.sync(cluster(Svc("a"), BYSTANDER))
    node.fake.connections[vs_key("10.96.0.20", 80), real_servers.identity(blob(("10.244.1.5", 8080)))] = 1
    node.sync(cluster(BYSTANDER))
    assert "10.96.0.20" in bound(node)
    assert asked.calls == []


# The gateway's address


@both_ways
def test_k33_the_gateway_is_left_alone_from_the_moment_on_at_which_it_is_one(way, events):
    node = Node(host=[OWN])
    node.sync(cluster(way(FREE)))
    assert FREE in bound(node)
    assert node.reconciler.gateways_changed(frozenset({addr(FREE)}))
    node.sync()
    assert anywhere(node, FREE) == []
    assert said(events)[0].endswith("203.0.113.20 is the gateway of a default route of this node")
    assert not node.reconciler.gateways_changed(frozenset({addr(FREE), addr("192.0.2.1")}))
    assert node.reconciler.gateways_changed(frozenset({addr("192.0.2.1")}))
    node.sync()
    assert FREE in bound(node)


# Before the other Nodes are known


@both_ways
def test_k33_nothing_external_is_bound_at_start_before_the_other_nodes_are_listed(way, events):
    node = following()
    node.sync(cluster(way(OTHER, FREE)))
    assert bound(node) == set(CLUSTER_IPS)  # those do not wait
    told(node, at("n2", OTHER))
    assert anywhere(node, OTHER, FREE) == []
    told(node, Listed(OTHER_NODE))
    assert bound(node) == {*CLUSTER_IPS, FREE}
    assert anywhere(node, OTHER) == []
    assert len(said(events)) == 1


def test_k33_what_a_former_run_has_bound_serves_through_the_start_but_not_an_address_of_a_node():
    services = cluster(Svc("a", external_ips=(OTHER, FREE)))
    first = Node(host=[OWN])
    first.sync(services)
    node = following(first.fake)
    witness = Witness(node.fake)
    assert node.sync(services) == 0
    assert told(node, at("n2", OTHER)) == 4  # at once: it need not wait for the rest of the list
    assert told(node, Listed(OTHER_NODE)) == 0
    assert bound(node) == {"10.96.0.20", FREE}
    assert vs_key(FREE, 80) in witness.before & served(node.fake.state)


def test_k32_the_nodes_own_address_is_served_before_the_other_nodes_are_listed():
    node = following()
    node.sync(cluster(Svc("a", external_ips=(OWN,))))
    assert vs_key(OWN, 80) in served(node.fake.state, {addr(OWN)})


def test_k33_nodes_that_may_not_be_listed_hold_nothing_up_and_it_is_said_once(events):
    node = following()
    node.sync(cluster(Svc("a", external_ips=(FREE,))))
    told(node, Forbidden(OTHER_NODE, "refused (403): nodes is forbidden"))
    assert FREE in bound(node)
    told(node, Forbidden(OTHER_NODE, "refused (403): nodes is forbidden"))
    (line,) = [event for event in events if event["event"] == "object_rejected"]
    assert line["object"] == "other Nodes"
    assert "nodes is forbidden" in line["reason"]
    assert "list and watch on nodes" in line["hint"]


def test_k33_rights_that_are_granted_later_protect_from_then_on():
    node = following()
    node.sync(cluster(Svc("a", external_ips=(OTHER,))))
    told(node, Forbidden(OTHER_NODE, "refused (403)"))
    told(node, at("n2", OTHER), Listed(OTHER_NODE))
    assert anywhere(node, OTHER) == []


def test_rights_that_are_taken_away_leave_what_was_told_last_in_force(events):
    node = following()
    node.sync(cluster(Svc("a", external_ips=(OTHER,))))
    told(node, at("n2", OTHER), Listed(OTHER_NODE))
    assert told(node, Forbidden(OTHER_NODE, "refused (403)")) == 0
    assert "other Nodes" not in "".join(said(events))


# Who is asked


def test_other_nodes_are_asked_for_while_an_address_could_be_theirs_and_not_longer():
    asked = Asked()
    node = following(asked=asked)
    node.sync(cluster(Svc("a", node_ports=(30080,), ingress=((FREE, "Proxy"),))))
    assert asked.calls == []
    node.sync(cluster(Svc("a", external_ips=(FREE,)), Svc("b", ("10.96.0.21",), ingress=((FREE, "VIP"),))))
    node.sync(cluster(Svc("b", ("10.96.0.21",), ingress=((FREE, "VIP"),))))
    assert asked.calls == [True]
    node.sync(cluster(Svc("b", ("10.96.0.21",))))
    assert asked.calls == [True, False]
    node.sync(cluster(Svc("a", external_ips=(FREE,))))
    assert asked.calls == [True, False, True]


def test_what_is_forgotten_counts_no_more_and_new_addresses_wait_again():
    node = following()
    node.sync(cluster(Svc("a", external_ips=(FREE,))))
    told(node, at("n2", OTHER), Listed(OTHER_NODE))
    told(node, Forgotten(OTHER_NODE))
    assert bound(node) == {"10.96.0.20", FREE}
    node.sync(cluster(Svc("a", external_ips=(FREE, OTHER))))
    assert OTHER not in bound(node)
    told(node, Listed(OTHER_NODE))  # n2 has gone meanwhile
    assert OTHER in bound(node)


def test_a_start_says_how_many_addresses_wait(events):
    following().sync(cluster(Svc("a", external_ips=(FREE, OTHER))))
    (line,) = [event for event in events if event["event"] == "other_nodes_wanted"]
    assert (line["wanted"], line["addresses_waiting"]) == (True, 2)


# Cost


def test_a_node_that_comes_or_goes_plans_only_the_services_that_name_its_addresses():
    node = Node(host=[OWN])
    node.sync(
        cluster(
            Svc("a", external_ips=(OTHER,)),
            *(Svc(f"s{n}", (f"10.96.1.{n}",), ingress=((f"203.0.113.{n}", "VIP"),)) for n in range(1, 50)),
        )
    )
    assert not any(node.tracker.note(at(f"n{n}", f"198.51.100.{n}")) for n in range(2, 200))
    for event in (at("n2", OTHER), at("n2")):
        assert node.tracker.note(event)
        assert node.reconciler.sync().services == 1
