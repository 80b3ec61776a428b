"""The endpoints that a Service port uses."""

from __future__ import annotations

import itertools

import pytest

from ipvsproxy.cluster import endpoints
from ipvsproxy.cluster.endpoints import Verdict
from ipvsproxy.cluster.services import ServicePort
from ipvsproxy.cluster.slices import CompactSlice, compact_slice
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family, Protocol
from tests.builders import addr
from tests.clusters import NODE

HTTP = ServicePort("http", Protocol.TCP, 80)
READY = api.EndpointConditions(ready=True, serving=True, terminating=False)
NOT_READY = api.EndpointConditions(ready=False, serving=False, terminating=False)
STOPPING = api.EndpointConditions(ready=False, serving=True, terminating=True)
STOPPED = api.EndpointConditions(ready=False, serving=False, terminating=True)


def piece(*members, ports=(("http", "TCP", 8080),), family="IPv4", name="web-1"):
    """A compact slice of (address[, conditions[, node[, zones[, nodes]]]])."""
    found = []
    for address, *more in members:
        conditions, node, zones, nodes = (*more, None, None, None, None)[:4]
        hints = api.EndpointHints(tuple(map(api.Hint, zones or ())), tuple(map(api.Hint, nodes or ())))
        found.append(api.Endpoint(addresses=(address,), conditions=conditions, node_name=node, hints=hints))
    whole = api.EndpointSlice(
        metadata=api.Metadata(name=name, namespace="default", labels={"kubernetes.io/service-name": "web"}),
        address_type=family,
        endpoints=tuple(found),
        ports=tuple(api.EndpointPort(*port) for port in ports),
    )
    compact, notes = compact_slice(whole, NODE)
    assert notes == ()
    assert compact is not None
    return compact


def usable(*pieces: CompactSlice, port=HTTP, family=Family.IPV4, zone=""):
    found = endpoints.port_endpoints(port, pieces, family, zone)
    return sorted(endpoints.having(found, endpoints.needed(found)))


def usable_here(*pieces: CompactSlice, zone=""):
    found = endpoints.port_endpoints(HTTP, pieces, Family.IPV4, zone)
    return sorted(endpoints.having(found, endpoints.needed_here(found)))


def local(*pieces: CompactSlice):
    return sorted(endpoints.here(endpoints.port_endpoints(HTTP, pieces, Family.IPV4)))


FIVE = (addr("10.244.1.5"), 8080)
SIX = (addr("10.244.1.6"), 8080)


@pytest.mark.parametrize(
    "conditions,served",
    [
        pytest.param(READY, True, id="ready"),
        pytest.param(None, True, id="nothing said"),
        pytest.param(api.EndpointConditions(), True, id="an empty condition"),
        pytest.param(api.EndpointConditions(serving=False), True, id="not serving, but nothing said of ready"),
        pytest.param(NOT_READY, False, id="not ready"),
        pytest.param(STOPPING, False, id="terminating and serving"),
        pytest.param(STOPPED, False, id="terminating"),
    ],
)
def test_an_endpoint_is_used_beside_a_ready_one_when_it_is_ready_too(conditions, served):
    assert usable(piece(("10.244.1.5", conditions), ("10.244.1.6", READY))) == [*([FIVE] if served else []), SIX]


@pytest.mark.parametrize(
    "port,number",
    [
        pytest.param(HTTP, 8080, id="by name and protocol"),
        pytest.param(ServicePort("dns", Protocol.UDP, 53), 5353, id="UDP"),
        pytest.param(ServicePort("dns", Protocol.TCP, 53), None, id="the name in another protocol"),
        pytest.param(ServicePort("other", Protocol.TCP, 8080), None, id="the number under another name"),
        pytest.param(ServicePort("", Protocol.TCP, 80), None, id="a port without a name"),
    ],
)
def test_a_port_is_found_in_a_slice(port, number):
    found = usable(piece(("10.244.1.5",), ports=(("http", "TCP", 8080), ("dns", "UDP", 5353))), port=port)
    assert found == ([(addr("10.244.1.5"), number)] if number else [])


def test_a_port_without_a_name_is_the_slices_port_without_a_name():
    port = ServicePort("", Protocol.TCP, 80)
    assert usable(piece(("10.244.1.5",), ports=((None, None, 8080),)), port=port) == [FIVE]


def test_slices_may_bring_different_numbers_for_one_port():
    second = piece(("10.244.1.6",), ports=(("http", "TCP", 9090),), name="web-2")
    assert usable(piece(("10.244.1.5",)), second) == [FIVE, (addr("10.244.1.6"), 9090)]


def test_an_address_in_two_slices_counts_once():
    assert usable(piece(("10.244.1.5",)), piece(("10.244.1.5",), ("10.244.1.6",), name="web-2")) == [FIVE, SIX]


@pytest.mark.parametrize("other", [pytest.param(NOT_READY, id="not ready"), pytest.param(STOPPING, id="terminating")])
def test_an_address_that_is_ready_in_one_slice_is_served_whatever_the_order(other):
    ready, not_ready = piece(("10.244.1.5", READY)), piece(("10.244.1.5", other), name="web-2")
    assert usable(ready, not_ready) == usable(not_ready, ready) == [FIVE]


def test_one_address_with_two_ports_is_two_endpoints():
    second = piece(("10.244.1.5",), ports=(("http", "TCP", 9090),), name="web-2")
    assert usable(piece(("10.244.1.5",)), second) == [FIVE, (addr("10.244.1.5"), 9090)]


def test_a_slice_of_the_other_family_brings_nothing():
    six = piece(("fd00:10:244::5",), family="IPv6")
    assert usable(six) == []
    assert usable(six, family=Family.IPV6) == [(addr("fd00:10:244::5"), 8080)]


@pytest.mark.parametrize(
    "conditions",
    [pytest.param(c, id=name) for c, name in ((READY, "ready"), (NOT_READY, "not"), (STOPPING, "stopping"))],
)
def test_k03_an_endpoint_of_this_node_is_local_in_any_state(conditions):
    assert local(piece(("10.244.1.5", conditions, NODE), ("10.244.2.5", conditions, "n2"), ("10.244.3.5",))) == [FIVE]


# Endpoints that stop but still serve


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((), id="alone"),
        pytest.param((NOT_READY,), id="beside one that is not ready"),
        pytest.param((STOPPED,), id="beside one that has stopped"),
    ],
)
def test_k17_an_endpoint_that_stops_stands_in_where_none_is_ready(others):
    found = piece(("10.244.1.5", STOPPING, NODE), *((f"10.244.1.{9 + n}", c, NODE) for n, c in enumerate(others)))
    assert usable(found) == usable_here(found) == [FIVE]


def test_k17_where_it_stands_in_is_told_for_the_node_and_for_the_cluster_apart():
    found = piece(("10.244.1.5", STOPPING, NODE), ("10.244.1.6", READY, "n2"))
    assert usable(found) == [SIX]
    assert usable_here(found) == [FIVE]


def test_an_endpoint_that_is_ready_though_it_stops_is_ready():
    published = api.EndpointConditions(ready=True, serving=True, terminating=True)
    assert usable(piece(("10.244.1.5", published), ("10.244.1.6", READY))) == [FIVE, SIX]


@pytest.mark.parametrize("node", [pytest.param("n2", id="another node"), pytest.param(None, id="no node")])
def test_an_endpoint_of(node):
    found = piece(("10.244.1.5", READY, node))
    assert usable(found) == [FIVE]
    assert usable_here(found) == []


# Topology hints. Our node is in zone a.

A, B, OURS, THEIRS = ("a",), ("b",), (NODE,), ("n2",)


@pytest.mark.parametrize(
    "five,six,kept",
    [
        pytest.param((A,), (B,), [FIVE], id="our zone's are used"),
        pytest.param((("b", "a"),), (B,), [FIVE], id="several zones may be named"),
        pytest.param((A,), (None,), [FIVE, SIX], id="one without a hint turns hints off"),
        pytest.param((B,), (B,), [FIVE, SIX], id="none for our zone turns them off"),
        pytest.param((None, OURS), (None, THEIRS), [FIVE], id="our node's are used"),
        pytest.param((None, THEIRS), (None, THEIRS), [FIVE, SIX], id="none for our node turns hints for nodes off"),
        pytest.param((None, OURS), (None, None), [FIVE, SIX], id="one without a node turns hints for nodes off"),
        pytest.param((A, OURS), (A, THEIRS), [FIVE], id="the node goes before the zone"),
        pytest.param((A, THEIRS), (B, THEIRS), [FIVE], id="where no node is ours the zone decides"),
        pytest.param((A, OURS), (B, None), [FIVE], id="where one has no node the zone decides"),
    ],
)
def test_hints_narrow_what_is_used(five, six, kept):
    found = piece(("10.244.1.5", READY, "n3", *five), ("10.244.1.6", READY, "n4", *six))
    assert usable(found, zone="a") == kept


def test_a_node_without_a_zone_follows_no_hint_for_zones():
    found = piece(("10.244.1.5", READY, None, A), ("10.244.1.6", READY, None, B))
    assert usable(found) == [FIVE, SIX]
    assert usable(found, zone="b") == [SIX]


def test_endpoints_that_are_not_ready_neither_block_hints_nor_count():
    hinted = ("10.244.1.5", READY, None, A)
    assert usable(piece(hinted, ("10.244.1.6", READY, None, B), ("10.244.1.7", NOT_READY)), zone="a") == [FIVE]
    assert usable(piece(("10.244.1.6", READY, None, B), ("10.244.1.7", NOT_READY, None, A)), zone="a") == [SIX]


def test_hints_never_narrow_the_endpoints_of_this_node():
    found = piece(("10.244.1.5", READY, NODE, B), ("10.244.1.6", READY, "n2", A))
    assert usable(found, zone="a") == [SIX]
    assert usable_here(found, zone="a") == [FIVE]


def test_endpoints_that_stop_stand_in_whatever_their_hints():
    assert usable(piece(("10.244.1.5", STOPPING, None, B), ("10.244.1.6", STOPPING, None, A)), zone="a") == [FIVE, SIX]


def test_hints_of_several_slices_count_as_one_list():
    one, two = piece(("10.244.1.5", READY, None, A)), piece(("10.244.1.6", READY, None, B), name="web-2")
    plain = piece(("10.244.1.7",), name="web-3")
    assert usable(one, two, zone="a") == [FIVE]
    assert usable(one, two, plain, zone="a") == [FIVE, SIX, (addr("10.244.1.7"), 8080)]


def test_hints_stay_with_their_endpoint_whatever_the_order_in_the_slice():
    members = [("10.244.1.6", READY, None, B), ("10.244.1.5", READY, None, A), ("10.244.1.7", READY, None, B)]
    for order in itertools.permutations(members):
        assert usable(piece(*order), zone="a") == [FIVE]


# The reason is the flag that an endpoint lacks


def verdicts(*pieces: CompactSlice, zone="", here=False):
    found = endpoints.port_endpoints(HTTP, pieces, Family.IPV4, zone)
    needed = endpoints.needed_here(found) if here else endpoints.needed(found)
    reasons = {address: endpoints.verdict(flags, needed) for (address, _), flags in found.items()}
    assert {address for address, reason in reasons.items() if reason.is_used} == {
        address for address, _ in endpoints.having(found, needed)
    }
    return reasons[FIVE[0]]


@pytest.mark.parametrize(
    "five,beside,where,reason",
    [
        pytest.param((READY,), (NOT_READY,), {}, Verdict.USED, id="ready"),
        pytest.param((NOT_READY,), (READY,), {}, Verdict.NOT_READY, id="not ready beside a ready one"),
        pytest.param((NOT_READY,), (NOT_READY,), {}, Verdict.NOT_READY, id="not ready, as all"),
        pytest.param((NOT_READY,), (STOPPING,), {}, Verdict.NOT_READY, id="not ready beside one that stands in"),
        pytest.param((STOPPING,), (READY,), {}, Verdict.TERMINATING, id="terminating beside a ready one"),
        pytest.param((STOPPING,), (NOT_READY,), {}, Verdict.STANDS_IN, id="terminating where none is ready"),
        pytest.param((STOPPED,), (READY,), {}, Verdict.STOPPED, id="stopped beside a ready one"),
        pytest.param((STOPPED,), (STOPPING,), {}, Verdict.STOPPED, id="stopped beside one that stands in"),
        pytest.param((READY, "n2"), (READY, NODE), {"here": True}, Verdict.OTHER_NODE, id="on another node"),
        pytest.param((READY, "n2"), (READY, "n3"), {"here": True}, Verdict.OTHER_NODE, id="none is here"),
        pytest.param((NOT_READY, NODE), (READY, NODE), {"here": True}, Verdict.NOT_READY, id="here, not ready"),
        pytest.param((STOPPING, NODE), (READY, "n2"), {"here": True}, Verdict.STANDS_IN, id="here, stands in"),
        pytest.param(
            (READY, None, ("b",)), (READY, None, ("a",)), {"zone": "a"}, Verdict.HINTED_ZONE, id="another zone's"
        ),
        pytest.param((READY, None, ("a",)), (READY, None, ("b",)), {"zone": "a"}, Verdict.USED, id="our zone's"),
        pytest.param((READY, None, ("b",)), (READY, None, ("c",)), {"zone": "a"}, Verdict.USED, id="no zone is ours"),
        pytest.param(
            (READY, None, None, ("n2",)), (READY, None, None, (NODE,)), {}, Verdict.HINTED_NODE, id="another node's"
        ),
        pytest.param(
            (NOT_READY, None, ("b",)), (READY, None, ("a",)), {"zone": "a"}, Verdict.NOT_READY,
            id="not ready and another zone's",
        ),
    ],
)  # fmt: skip
def test_an_endpoint_is_used_or_not_because(five, beside, where, reason):
    assert verdicts(piece(("10.244.1.5", *five), ("10.244.1.6", *beside)), **where) is reason
