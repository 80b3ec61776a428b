"""What the cluster says: compaction loses nothing, and the tracker tells every difference and no other."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ipvsproxy.cluster.events import Changed, ClusterEvent, ObjectRef, Removed
from ipvsproxy.cluster.slices import compact_slice
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.api_objects import EndpointSlice, Service
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import LABEL_HEADLESS, LABEL_SERVICE_NAME, ServiceName

NAMES = ("a", "b", "c")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.9.0.3")
HINTS = {"forZones": ("a", "b"), "forNodes": ("n1", "n2")}
maybe = st.sampled_from((None, True, False))

endpoints = st.fixed_dictionaries(
    {
        "addresses": st.lists(st.sampled_from((*ADDRESSES, "nonsense", "fd00::1")), max_size=2),
        "conditions": st.fixed_dictionaries({"ready": maybe, "serving": maybe, "terminating": maybe}),
        "nodeName": st.sampled_from((None, "n1", "n2")),
        "hints": st.fixed_dictionaries(
            {key: st.lists(st.builds(dict, name=st.sampled_from(names)), max_size=2) for key, names in HINTS.items()}
        )
        | st.none(),
    }
)


def endpoint_slice(name, owner, items, labels=None) -> EndpointSlice:
    metadata = {"name": name, "namespace": "default", "labels": {LABEL_SERVICE_NAME: owner, **(labels or {})}}
    return msgspec.convert({"metadata": metadata, "addressType": "IPv4", "endpoints": items}, EndpointSlice)


@given(st.lists(endpoints, max_size=8).flatmap(lambda items: st.tuples(st.just(items), st.permutations(items))))
@settings(max_examples=60)
def test_a_compact_slice_holds_each_good_address_once_in_any_order(pair):
    items, shuffled = pair
    compact, notes = compact_slice(endpoint_slice("a-1", "a", items), "n1")
    other, _ = compact_slice(endpoint_slice("a-1", "a", shuffled), "n1")
    assert compact is not None
    assert compact == other
    firsts = [(item["addresses"] or ["nonsense"])[0] for item in items]
    told = [format_addr(addr) for addr, _ in compact.records()]
    assert told == sorted(set(firsts) & set(ADDRESSES))
    assert len(notes) == (0 if set(firsts) <= set(ADDRESSES) else 1)


@st.composite
def services(draw) -> ClusterEvent:
    name = draw(st.sampled_from(NAMES))
    ref = ObjectRef("Service", "default", name)
    if draw(st.booleans()):
        return Removed(ref)
    spec = {
        "clusterIP": draw(st.sampled_from(("10.96.0.1", "10.96.0.2", "None"))),
        "ports": [{"port": draw(st.sampled_from((0, 80)))}],
    }
    return Changed(ref, msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, Service))


@st.composite
def slices(draw) -> ClusterEvent:
    name = draw(st.sampled_from(NAMES))
    ref = ObjectRef("EndpointSlice", "default", f"{name}-1")
    if draw(st.booleans()):
        return Removed(ref)
    labels = draw(st.sampled_from(({}, {}, {LABEL_HEADLESS: ""})))
    owner = draw(st.sampled_from((*NAMES, "")))
    return Changed(ref, endpoint_slice(ref.name, owner, draw(st.lists(endpoints, max_size=2)), labels))


def views(tracker):
    """With the names of the slices: one that takes the place of an equal one of another name is a difference."""
    services = [ServiceName("default", name) for name in NAMES]
    return {name.name: (tracker.view(name), set(tracker._slices.get(name, ()))) for name in services}


@given(st.lists(st.lists(services() | slices(), max_size=6), max_size=5))
@settings(max_examples=60)
def test_each_take_names_exactly_the_services_that_differ(rounds):
    tracker = Tracker("n1", frozenset(Family))
    last: dict[ObjectRef, ClusterEvent] = {}
    for events in rounds:
        before = views(tracker)
        for event in events:
            assert isinstance(event, Changed | Removed)
            tracker.note(event)
            last[event.ref] = event
        differing = {name for name, view in views(tracker).items() if view != before[name]}
        assert {name.name for name in tracker.take().services} == differing

    from_scratch = Tracker("n1", frozenset(Family))
    for event in last.values():
        from_scratch.note(event)
    assert views(tracker) == views(from_scratch)

    for ref in last:
        tracker.note(Removed(ref))
    tracker.take()
    assert set(tracker.counts) == {0}
