"""The tracker: what has changed, and that nothing is left behind."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ipvsproxy.cluster.events import ApiObject, Changed, Forbidden, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.cluster.tracker import Changes, Counts, Tracker
from ipvsproxy.model.addr import format_addr, parse_addr
from ipvsproxy.model.api_objects import EndpointSlice, Node, Service
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import LABEL_SERVICE_NAME, ServiceName
from ipvsproxy.model.notes import Note

WEB, API = ServiceName("default", "web"), ServiceName("default", "api")
NOTHING = Changes()


def service(name="web", cluster_ip="10.96.0.10", **changes) -> Service:
    spec = {"clusterIP": cluster_ip, "ports": [{"port": 80}], **changes}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, Service)


def endpoint_slice(name="web-1", owner="web", *addresses, version="1") -> EndpointSlice:
    metadata = {"name": name, "namespace": "default", "labels": {LABEL_SERVICE_NAME: owner}, "resourceVersion": version}
    endpoints = [{"addresses": [address]} for address in addresses]
    return msgspec.convert(
        {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 8080}]}, EndpointSlice
    )


def node(name="n1", *addresses, pod_cidrs=()) -> Node:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"podCIDRs": list(pod_cidrs)}, "status": status}, Node)


def ref(item: ApiObject) -> ObjectRef:
    return ObjectRef(type(item).__name__, item.metadata.namespace, item.metadata.name)


def changed(item: ApiObject) -> Changed:
    return Changed(ref(item), item)


def removed(item: ApiObject) -> Removed:
    return Removed(ref(item))


@pytest.fixture
def tracker() -> Tracker:
    return Tracker("n1", frozenset(Family))


@pytest.fixture
def settled(tracker) -> Tracker:
    """A tracker that knows the Service web with one slice, and has told so."""
    tell(tracker, changed(service()), changed(endpoint_slice("web-1", "web", "10.0.0.1")))
    tracker.take()
    return tracker


def tell(tracker, *events):
    for event in events:
        tracker.note(event)


@pytest.mark.parametrize("order", list(itertools.permutations(("Service", "EndpointSlice", "Node"))))
def test_it_is_ready_once_services_and_slices_are_listed_in_any_order(order):
    tracker = Tracker("n1", Family)
    for number, kind in enumerate(order, 1):
        tracker.note(Listed(kind))
        assert tracker.ready is ({"Service", "EndpointSlice"} <= set(order[:number]))
        assert tracker.has_heard_of_node is ("Node" in order[:number])


@pytest.mark.parametrize(
    "event,notes",
    [
        pytest.param(changed(node("n1")), 0, id="its object"),
        pytest.param(changed(node("n2")), None, id="not of another one"),
        pytest.param(Listed("Node"), 0, id="that there is none"),
        pytest.param(Forbidden("Node", "refused (403)"), 1, id="that it may not be read, which is said"),
    ],
)
def test_our_node_is_heard_of_by(event, notes):
    tracker = Tracker("n1", Family)
    tell(tracker, event, event)
    assert tracker.has_heard_of_node is (notes is not None)
    assert len(tracker.take().notes) == (notes or 0)


def test_a_touched_service_is_named_once_and_only_once(tracker):
    tell(tracker, changed(service()), changed(endpoint_slice("web-1", "web", "10.0.0.1")), changed(service("api")))
    assert tracker.take() == Changes((API, WEB))
    assert tracker.take() == NOTHING


def test_the_view_is_the_service_and_its_slices_by_name(tracker):
    tell(tracker, changed(service()), *(changed(endpoint_slice(name, "web", "10.0.0.1")) for name in ("b", "a")))
    tell(tracker, changed(endpoint_slice("a", "web", "10.0.0.2")))
    view, slices = tracker.view(WEB)
    assert view is not None
    assert view.name == WEB
    assert [format_addr(addr) for piece in slices for addr, _ in piece.records()] == ["10.0.0.2", "10.0.0.1"]
    assert tracker.view(API) == (None, ())
    assert list(tracker.names()) == [WEB]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([changed(service())], id="the same Service again"),
        pytest.param([changed(endpoint_slice("web-1", "web", "10.0.0.1", version="2"))], id="only the version is new"),
        pytest.param(
            [changed(service(cluster_ip="10.96.0.11")), changed(service())], id="a Service changed and changed back"
        ),
        pytest.param([removed(service()), changed(service())], id="a Service removed and made again"),
        pytest.param(
            [removed(endpoint_slice()), changed(endpoint_slice("web-1", "web", "10.0.0.1"))], id="a slice gone and back"
        ),
        pytest.param([changed(service("api")), removed(service("api"))], id="a Service made and removed"),
        pytest.param(
            [
                changed(endpoint_slice("web-1", "api", "10.0.0.1")),
                changed(endpoint_slice("web-1", "web", "10.0.0.1")),
            ],
            id="a slice moved to another Service and back",
        ),
        pytest.param([removed(endpoint_slice("other"))], id="an unknown slice removed"),
        pytest.param([changed(service("head", "None"))], id="a headless Service"),
    ],
)
def test_a_change_that_leaves_no_difference_vanishes(settled, events):
    tell(settled, *events)
    assert settled.take() == NOTHING
    assert settled.counts.pending == 0


def test_a_change_that_was_taken_counts_as_known(settled):
    settled.note(changed(service(cluster_ip="10.96.0.11")))
    assert settled.take().services == (WEB,)
    settled.note(changed(service()))
    assert settled.take().services == (WEB,)


def test_a_slice_replaced_by_another_is_one_change_without_a_gap(settled):
    tell(settled, removed(endpoint_slice()), changed(endpoint_slice("web-2", "web", "10.0.0.1")))
    assert settled.take().services == (WEB,)
    _, slices = settled.view(WEB)
    assert [format_addr(addr) for piece in slices for addr, _ in piece.records()] == ["10.0.0.1"]


def test_a_slice_whose_label_changes_leaves_its_old_service(settled):
    settled.note(changed(endpoint_slice("web-1", "api", "10.0.0.1")))
    assert settled.take().services == (API, WEB)
    assert settled.view(WEB)[1] == ()
    assert len(settled.view(API)[1]) == 1


def test_a_slice_that_turns_bad_or_headless_leaves_its_service(settled):
    settled.note(changed(endpoint_slice("web-1", "", "10.0.0.1")))
    assert settled.take().services == (WEB,)
    assert settled.view(WEB)[1] == ()


def test_a_service_that_is_given_to_another_proxy_is_gone(settled):
    settled.note(changed(service(cluster_ip="None")))
    assert settled.take().services == (WEB,)
    assert settled.view(WEB)[0] is None


def test_equal_slice_names_of_two_namespaces_do_not_mix(settled):
    other = msgspec.structs.replace(
        endpoint_slice(), metadata=msgspec.structs.replace(endpoint_slice().metadata, namespace="b")
    )
    settled.note(changed(other))
    settled.note(removed(other))
    assert len(settled.view(WEB)[1]) == 1


def test_a_note_is_told_once_until_it_changes(tracker):
    bad = service(externalIPs=["x"])
    tell(tracker, changed(bad), changed(bad))
    assert [note.subject for note in tracker.take().notes] == ["Service default/web"]
    tracker.note(changed(bad))
    assert tracker.take().notes == ()
    tell(tracker, changed(service()), changed(bad))
    assert len(tracker.take().notes) == 1


def test_rejected_files_are_handed_on(tracker):
    note = Note("a.yaml:1", "not a mapping")
    tracker.note(Rejected((note,)))
    assert tracker.take().notes == (note,)
    assert tracker.take().notes == ()


def test_our_node_is_kept_and_others_are_not(tracker):
    tracker.note(changed(node("n2", "10.0.0.2")))
    assert tracker.take() == NOTHING
    tracker.note(changed(node("n1", "10.0.0.1", pod_cidrs=["10.244.1.0/24"])))
    assert tracker.take() == Changes(node_changed=True)
    assert [format_addr(addr) for addr in tracker.node.addresses] == ["10.0.0.1"]
    assert tracker.knows_node


def test_what_our_node_said_last_holds_when_it_is_gone_and_that_is_said_once(tracker):
    tracker.note(changed(node("n1", "10.0.0.1", pod_cidrs=["10.244.1.0/24"])))
    tracker.take()
    said = tracker.node
    tell(tracker, removed(node("n1")), removed(node("n1")))
    changes = tracker.take()
    assert (changes.services, changes.node_changed) == ((), False)
    assert [(note.subject, note.reason) for note in changes.notes] == [("Node n1", "is gone; what it said last holds")]
    assert tracker.node == said
    assert not tracker.knows_node


def test_a_node_that_comes_back_with_another_pod_network_has_changed(tracker):
    tracker.note(changed(node("n1", "10.0.0.1", pod_cidrs=["10.244.1.0/24"])))
    tracker.take()
    tell(tracker, removed(node("n1")), changed(node("n1", "10.0.0.1", pod_cidrs=["10.244.7.0/24"])))
    assert tracker.take().node_changed
    assert [str(cidr) for cidr in tracker.node.pod_cidrs] == ["10.244.7.0/24"]
    assert tracker.knows_node


@pytest.mark.parametrize(
    "given,told,node_ips",
    [  # the reference's table, less the loopback that stands in for what nobody said
        pytest.param("10.0.0.1", (), ["10.0.0.1"], id="an address alone"),
        pytest.param(None, ("fd00:1234::1",), ["fd00:1234::1"], id="the Node alone"),
        pytest.param("80.80.80.80", ("2001:db8::2", "90.90.90.90"), ["80.80.80.80", "2001:db8::2"], id="its family's"),
        pytest.param("::1", ("90.90.90.90", "2001:db8::2"), ["90.90.90.90", "::1"], id="the other family's"),
    ],
)
def test_the_bind_address_holds_against_the_nodes_own_of_its_family(given, told, node_ips):
    tracker = Tracker("n1", frozenset(Family), node_ip=parse_addr(given) if given else None)
    if told:
        tracker.note(changed(node("n1", *told)))
    assert [format_addr(address) for address in tracker.node.primary_ips] == node_ips


def test_given_node_addresses_hold_against_the_node_object():
    given = (bytes([10, 0, 0, 9]),)
    tracker = Tracker("n1", frozenset(Family), given)
    assert tracker.node.addresses == given
    tracker.note(changed(node("n1", "10.0.0.1", pod_cidrs=["10.244.1.0/24"])))
    assert tracker.node.addresses == given
    assert [str(cidr) for cidr in tracker.node.pod_cidrs] == ["10.244.1.0/24"]


def test_k40_everything_is_empty_when_the_api_is(tracker):
    for number in range(500):
        name = f"web-{number}"
        bad, piece = service(name, externalIPs=["x"]), endpoint_slice(f"{name}-1", name, "10.0.0.1")
        tell(tracker, changed(bad), changed(piece), removed(piece))
        if number % 7 == 0:
            tracker.take()
        tell(tracker, changed(piece), removed(bad), removed(piece))
    tracker.take()
    assert tracker.counts == Counts(0, 0, 0, 0, 0)
    assert tracker._slices == {}


def test_k55_only_the_served_family_is_in_the_view():
    tracker = Tracker("n1", frozenset({Family.IPV4}))
    dual = service(clusterIPs=["10.96.0.10", "fd00::1"], ipFamilies=["IPv4", "IPv6"])
    tracker.note(changed(dual))
    view, _ = tracker.view(WEB)
    assert view is not None
    assert [format_addr(addr) for addr in view.cluster_ips] == ["10.96.0.10"]
    assert tracker.take().notes == ()


@pytest.mark.parametrize("allowed", [True, False])
def test_external_ips_count_as_not_given_where_the_gate_is_off(allowed):
    tracker = Tracker("n1", frozenset(Family), external_ips=allowed)
    tell(tracker, changed(service(externalIPs=["192.0.2.80"])))
    tracker.take()
    view, _ = tracker.view(WEB)
    assert view is not None
    assert bool(view.external_ips) is allowed
