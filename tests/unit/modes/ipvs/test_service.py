"""One Service → its objects. Whole states: tests/golden."""

from __future__ import annotations

import pytest

from ipvsproxy.cluster.services import ServicePort, read_service
from ipvsproxy.cluster.slices import CompactSlice, compact_slice
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.modes.ipvs.service import ServiceOptions, plan_service, port_endpoints
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Svc, cluster

BOTH = frozenset(Family)
HTTP = ServicePort("http", Protocol.TCP, 80)
READY = api.EndpointConditions(ready=True, serving=True, terminating=False)
NOT_READY = api.EndpointConditions(ready=False, serving=False, terminating=False)
STOPPING = api.EndpointConditions(ready=False, serving=True, terminating=True)


def piece(*endpoints, ports=(("http", "TCP", 8080),), family="IPv4", name="web-1"):
    """A compact slice of (address[, conditions[, node]])."""
    found = []
    for address, *more in endpoints:
        conditions, node = (*more, None, None)[:2]
        found.append(api.Endpoint(addresses=(address,), conditions=conditions, node_name=node))
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


def usable(*pieces: CompactSlice, port=HTTP, family=Family.IPV4):
    return sorted(port_endpoints(port, pieces, family).usable)


def local(*pieces: CompactSlice, port=HTTP, family=Family.IPV4):
    return sorted(port_endpoints(port, pieces, family).local)


def planned(service: Svc, *, families=BOTH, scheduler="rr"):
    objects = cluster(service)
    view, notes = read_service(next(o for o in objects.values() if isinstance(o, api.Service)), families)
    assert notes == ()
    assert view is not None
    slices = [compact_slice(o, NODE)[0] for o in objects.values() if isinstance(o, api.EndpointSlice)]
    return plan_service(view, [s for s in slices if s], ServiceOptions(families, scheduler)).objects


# Endpoints of a port

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
        pytest.param(api.EndpointConditions(ready=False, serving=False, terminating=True), False, id="terminating"),
    ],
)
def test_an_endpoint_is_served_when_it_is_ready(conditions, served):
    assert usable(piece(("10.244.1.5", conditions))) == ([FIVE] if served else [])


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


# Objects of a Service


def test_a_port_is_a_virtual_server_its_real_servers_its_entries_and_its_address():
    objects = planned(Svc("web", local=True))
    key, vip = vs_key("10.96.0.20", 80), addr("10.96.0.20")
    assert objects == {
        (Kind.VIRTUAL_SERVER, key): VirtualServer("rr"),
        (Kind.REAL_SERVER, key): blob(("10.244.1.5", 8080)),
        (Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", vip, 6, 80)): True,
        (Kind.BOUND_ENTRY, SetEntry("KUBE-IPVS-IPS", vip)): True,
        (Kind.ADDRESS, vip): True,
        (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOOP-BACK", FIVE[0], 6, 8080, FIVE[0])): True,
    }


def test_ipv6_objects_stand_in_the_ipv6_sets():
    objects = planned(Svc("web", ("fd00:10:96::20",), endpoints=(("fd00:10:244::5", True),), local=True))
    names = {key.set_name for _, key in objects if isinstance(key, SetEntry)}
    assert names == {"KUBE-6-CLUSTER-IP", "KUBE-6-IPVS-IPS", "KUBE-6-LOOP-BACK"}


@pytest.mark.parametrize(
    "endpoints", [pytest.param((), id="none"), pytest.param((("10.244.1.5", False),), id="none that is ready")]
)
def test_a_service_without_usable_endpoints_has_an_empty_virtual_server_which_refuses_at_once(endpoints):
    objects = planned(Svc("web", endpoints=endpoints))
    assert objects[Kind.REAL_SERVER, vs_key("10.96.0.20", 80)] == b""
    assert (Kind.ADDRESS, addr("10.96.0.20")) in objects


def test_k19_two_ports_share_one_address():
    objects = planned(Svc("web", ports=((80, "TCP"), (443, "TCP"), (443, "UDP"))))
    assert [key for kind, key in objects if kind is Kind.ADDRESS] == [addr("10.96.0.20")]
    assert {key for kind, key in objects if kind is Kind.VIRTUAL_SERVER} == {
        vs_key("10.96.0.20", 80), vs_key("10.96.0.20", 443), vs_key("10.96.0.20", 443, Protocol.UDP),
    }  # fmt: skip


@pytest.mark.parametrize(
    "scheduler,affinity_s,settings",
    [
        pytest.param("rr", 0, VirtualServer("rr"), id="rr"),
        pytest.param("lc", 0, VirtualServer("lc"), id="another scheduler"),
        pytest.param("rr", 600, VirtualServer("rr", VirtualServerFlags.PERSISTENT, 600), id="affinity"),
        pytest.param("mh", 0, VirtualServer("mh", VirtualServerFlags.SCHEDULER_2), id="mh hashes the port too"),
        pytest.param(
            "mh",
            60,
            VirtualServer("mh", VirtualServerFlags.SCHEDULER_2 | VirtualServerFlags.PERSISTENT, 60),
            id="mh with affinity",
        ),
        pytest.param("sh", 0, VirtualServer("sh"), id="sh has no flag"),
    ],
)
def test_a_virtual_server_is_set_up(scheduler, affinity_s, settings):
    objects = planned(Svc("web", affinity_s=affinity_s), scheduler=scheduler)
    assert objects[Kind.VIRTUAL_SERVER, vs_key("10.96.0.20", 80)] == settings


def test_k55_a_family_that_is_not_served_brings_no_object():
    service = Svc("web", ("10.96.0.20", "fd00:10:96::20"), endpoints=(("10.244.1.5", True), ("fd00:10:244::5", True)))
    only_four = planned(service, families=frozenset({Family.IPV4}))
    assert only_four == planned(Svc("web"))
