"""What the cluster says, in words for people."""

from __future__ import annotations

import msgspec

from ipvsproxy.cluster.endpoints_v1 import mirror_endpoints
from ipvsproxy.cluster.events import Changed, Listed, ObjectRef
from ipvsproxy.cluster.known import KnownEndpoint, KnownPort, KnownService, known_services
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import LABEL_SERVICE_NAME
from tests.clusters import Svc, cluster, events


def tracker(*services: Svc) -> Tracker:
    made = Tracker("n1", frozenset(Family))
    for event in events({}, cluster(*services)):
        made.note(event)
    made.take()
    return made


def known(*services: Svc) -> list[KnownService]:
    return [*known_services(tracker(*services).snapshot)]


def endpoint(address, pod=None, node=None, zone=None, **conditions) -> api.Endpoint:
    target = api.TargetRef("Pod", pod) if pod else None
    return api.Endpoint((address,), api.EndpointConditions(**conditions), target, node, zone)


def slice_of(service: str, name: str, *endpoints: api.Endpoint, family: str = "IPv4") -> Changed:
    metadata = api.Metadata(name=name, namespace="default", labels={LABEL_SERVICE_NAME: service})
    ref = ObjectRef("EndpointSlice", "default", name)
    return Changed(ref, api.EndpointSlice(metadata, family, endpoints, (api.EndpointPort("http", "TCP", 8080),)))


def with_slices(*slices: Changed) -> Tracker:
    made = tracker(Svc("web", endpoints=()))
    for event in slices:
        made.note(event)
    return made


def endpoints(made: Tracker) -> tuple[KnownEndpoint, ...]:
    (service,) = known_services(made.snapshot)
    return service.endpoints


def test_k53_a_service_is_told_with_every_address_and_port():
    service = Svc(
        "web", ("10.96.0.20", "fd00::20"), ((80, "TCP"), (53, "UDP")), node_ports=(30080, 0),
        external_ips=("192.0.2.7",), ingress=(("198.51.100.3", "VIP"),),
    )  # fmt: skip
    (found,) = known(service)
    assert (found.namespace, found.name) == ("default", "web")
    assert found.addresses == ("10.96.0.20", "fd00::20", "192.0.2.7", "198.51.100.3")
    assert found.ports == (KnownPort("TCP", 80, "p80tcp", 30080), KnownPort("UDP", 53, "p53udp"))


def test_older_services_come_first_since_they_have_what_others_want_too():
    first, second, third = (
        Svc("new", created="2026-02-01T00:00:00Z"),
        Svc("ageless", created=""),
        Svc("old", created="2026-01-01T00:00:00Z"),
    )
    assert [service.name for service in known(first, second, third)] == ["old", "new", "ageless"]


def test_k53_an_endpoint_is_told_with_its_pod_its_node_and_its_zone():
    made = with_slices(slice_of("web", "web-1", endpoint("10.244.1.5", "web-abc", "n2", "a")))
    assert endpoints(made) == (KnownEndpoint("10.244.1.5", "ready", "web-abc", "n2", "a"),)


def test_endpoints_keep_their_own_names_whatever_the_order_of_their_addresses():
    made = with_slices(slice_of("web", "web-1", endpoint("10.244.1.9", "nine"), endpoint("10.244.1.5", "five")))
    assert [(found.address, found.pod) for found in endpoints(made)] == [("10.244.1.5", "five"), ("10.244.1.9", "nine")]


def test_endpoints_that_stop_or_are_not_ready_say_so():
    made = with_slices(
        slice_of(
            "web",
            "web-1",
            endpoint("10.244.1.1", ready=True),
            endpoint("10.244.1.2", ready=False, serving=True, terminating=True),
            endpoint("10.244.1.3", ready=False, serving=False, terminating=True),
            endpoint("10.244.1.4", ready=False),
        )
    )
    assert [found.state for found in endpoints(made)] == ["ready", "terminating", "not-ready", "not-ready"]


def test_an_address_in_two_slices_is_told_by_the_one_that_counts():
    made = with_slices(
        slice_of("web", "web-1", endpoint("10.244.1.5", "old", ready=False)),
        slice_of("web", "web-2", endpoint("10.244.1.5", "new", ready=True)),
        slice_of("web", "web-3", endpoint("10.244.1.5", "older", ready=False)),
    )
    assert endpoints(made) == (KnownEndpoint("10.244.1.5", "ready", "new"),)


def test_an_address_twice_in_one_slice_is_told_by_the_one_that_counts():
    made = with_slices(
        slice_of("web", "web-1", endpoint("10.244.1.5", "new", ready=True), endpoint("10.244.1.5", "old", ready=False))
    )
    assert endpoints(made) == (KnownEndpoint("10.244.1.5", "ready", "new"),)


def test_names_that_would_break_a_line_are_not_shown():
    made = with_slices(slice_of("web", "web-1", endpoint("10.244.1.5", "a\tb"), endpoint("10.244.1.6", "c\nd")))
    assert [found.pod for found in endpoints(made)] == ["", ""]


def test_a_pod_that_got_another_name_is_no_change_of_its_service_but_is_told():
    made = with_slices(slice_of("web", "web-1", endpoint("10.244.1.5", "web-abc")))
    made.note(Listed("EndpointSlice"))
    made.take()
    made.note(slice_of("web", "web-1", endpoint("10.244.1.5", "web-xyz")))
    assert made.take().services == ()
    assert endpoints(made)[0].pod == "web-xyz"


def test_a_snapshot_stays_as_it_was_when_the_cluster_goes_on():
    made = with_slices(slice_of("web", "web-1", endpoint("10.244.1.5", "web-abc")))
    before = made.snapshot
    made.note(slice_of("web", "web-2", endpoint("10.244.1.6", "web-xyz")))
    (service,) = known_services(before)
    assert [found.pod for found in service.endpoints] == ["web-abc"]


def test_names_of_endpoints_v1_are_read_too():

    address = {"ip": "10.244.1.5", "nodeName": "n2", "targetRef": {"kind": "Pod", "name": "web-abc"}}
    value = {"metadata": {"name": "web"}, "subsets": [{"addresses": [address]}]}
    (mirrored,) = mirror_endpoints(msgspec.convert(value, api.Endpoints))
    (found,) = mirrored.endpoints
    assert (found.target_ref.name, found.node_name) == ("web-abc", "n2")
