"""What owners of Services are told by Events, and when: each fault once, and not again while it stays as it is."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.model.api_objects import EndpointPort
from ipvsproxy.model.enums import Family
from ipvsproxy.model.notices import Notice
from tests.clusters import Cluster, Node, Svc, cluster

OWN = "192.0.2.11"


def told_by(node: Node) -> list[Notice]:
    told: list[Notice] = []
    node.reconciler.tell = told.append
    return told


def reasons(told: list[Notice]) -> list[tuple[str, str]]:
    return [(notice.name, notice.reason) for notice in told]


def with_slice_port(service: Svc, name: str) -> Cluster:
    """The Service's slice has a port of this name only."""
    objects = cluster(service)
    ref = ObjectRef("EndpointSlice", "default", f"{service.name}-ipv4")
    port = EndpointPort(name, "TCP", 8080)
    return {**objects, ref: msgspec.structs.replace(objects[ref], ports=(port,))}


def test_a_source_range_that_is_none_is_told_to_the_owner_with_its_field_and_place():
    node = Node()
    told = told_by(node)
    service = Svc("web", ingress=(("203.0.113.10", "VIP"),), source_ranges=("198.51.100.0/24", "198.51.100.0/33"))
    node.sync(cluster(service))
    (notice,) = told
    assert (notice.kind, notice.namespace, notice.name, notice.reason) == ("Service", "default", "web", "InvalidField")
    assert 'spec.loadBalancerSourceRanges[1]: "198.51.100.0/33" is not a CIDR' in notice.text


def test_what_stays_wrong_is_not_told_again_when_something_else_of_the_service_changes():
    node = Node()
    told = told_by(node)
    service = Svc("web", ingress=(("203.0.113.10", "VIP"),), source_ranges=("all",))
    node.sync(cluster(service))
    node.sync(cluster(msgspec.structs.replace(service, external_ips=("203.0.113.20",))))
    assert reasons(told) == [("web", "InvalidField")]


def test_what_is_wrong_with_a_service_that_is_served_first_is_told_too(events):
    node = Node()
    told = told_by(node)
    node.sync(with_slice_port(Svc("kubernetes", ("10.96.0.1",), ((443, "TCP"),)), "other"))
    assert reasons(told) == [("kubernetes", "NoEndpointPort")]
    assert [line["object"] for line in events if line["event"] == "object_remarked"] == ["Service default/kubernetes"]


def test_a_family_that_this_node_lacks_is_no_fault_of_the_services_owner(events):
    node = Node(families=frozenset({Family.IPV4}))
    told = told_by(node)
    node.sync(cluster(Svc("six", ("2001:db8:96::20",))))
    assert told == []
    assert [line["object"] for line in events if line["event"] == "object_rejected"] == ["Service default/six"]


@pytest.mark.parametrize(
    "service,what",
    [
        pytest.param(Svc("web", external_ips=(OWN,)), "external IP", id="an external IP"),
        pytest.param(Svc("web", ingress=((OWN, "VIP"),)), "load-balancer IP", id="a load-balancer IP"),
        pytest.param(Svc("web", (OWN,)), "cluster IP", id="a cluster IP"),
    ],
)
def test_a_vip_that_is_an_address_of_the_node_is_told_once_and_is_no_warning_in_the_log(service, what, events):
    node = Node(host=[OWN])
    told = told_by(node)
    node.sync(cluster(service))
    node.sync(cluster(msgspec.structs.replace(service, endpoints=(("10.244.1.6", True),))))
    assert reasons(told) == [("web", "AddressOfNode")]
    assert told[0].text.startswith(f"{what} {OWN} is an address of this node")
    assert [line["log_level"] for line in events if line["event"] == "object_remarked"] == ["info"]


def test_a_port_that_no_slice_has_is_told_and_again_only_after_it_was_put_right():
    node = Node()
    told = told_by(node)
    service = Svc("web", ports=((80, "TCP"),))
    node.sync(with_slice_port(service, "other"))
    node.sync(with_slice_port(msgspec.structs.replace(service, affinity_s=60), "other"))
    assert reasons(told) == [("web", "NoEndpointPort")]
    assert '"p80tcp" (80/TCP) leads nowhere' in told[0].text
    node.sync(with_slice_port(service, "p80tcp"))
    assert len(told) == 1
    node.sync(with_slice_port(service, "other"))
    assert len(told) == 2


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param((), id="there are no endpoints at all"),
        pytest.param((("10.244.1.5", False),), id="the endpoints are not ready yet"),
    ],
)
def test_a_service_that_waits_for_its_pods_is_told_nothing(endpoints):
    node = Node()
    told = told_by(node)
    node.sync(cluster(Svc("web", endpoints=endpoints)))
    assert told == []
