"""What the sync thread publishes for load balancers, and when."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.model.names import ServiceName
from tests.builders import addr, blob, vs_key
from tests.clusters import Node, Svc, cluster

WEB = Svc("web", local=True, external_policy="Local", health_port=32100, ingress=(("203.0.113.10", "VIP"),))
LOAD_BALANCER = vs_key("203.0.113.10", 80)
OTHER = msgspec.structs.replace(
    WEB, name="other", ips=("10.96.0.22",), health_port=32101, ingress=(("203.0.113.11", "VIP"),)
)
PLAIN = Svc("plain", ("10.96.0.21",))
STOPPING = api.EndpointConditions(ready=False, serving=True, terminating=True)


def with_endpoints(service: Svc, *addresses: str) -> Svc:
    return msgspec.structs.replace(service, endpoints=tuple((address, True) for address in addresses))


def stopping(service: Svc):
    """The cluster with this Service, all whose endpoints terminate and still serve."""
    objects = cluster(service)
    ref = ObjectRef("EndpointSlice", "default", f"{service.name}-ipv4")
    found = objects[ref]
    assert isinstance(found, api.EndpointSlice)
    ended = tuple(msgspec.structs.replace(each, conditions=STOPPING) for each in found.endpoints or ())
    return {**objects, ref: msgspec.structs.replace(found, endpoints=ended)}


def told(node: Node) -> dict[str, tuple[int, int]]:
    """What is published of each Service: its port and its IPv4 count."""
    checks = node.published[-1].checks
    return {name.name: (check.port, check.local_endpoints[Family.IPV4]) for name, check in checks.items()}


def test_nothing_is_published_before_the_cluster_is_known_in_full():
    node = Node()
    node.sync()
    assert node.published == []


def test_the_first_full_sync_publishes_once_and_after_the_kernel_has_it():
    node = Node()
    seen = []
    node.reconciler.publish_health = lambda _: seen.append(dict(node.fake.state[Kind.REAL_SERVER]))
    node.sync(cluster(WEB, PLAIN))
    assert [LOAD_BALANCER in state for state in seen] == [True]


def test_only_a_load_balancer_with_local_policy_is_asked_about():
    node = Node()
    node.sync(cluster(WEB, PLAIN))
    assert told(node) == {"web": (32100, 1)}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(cluster(WEB, with_endpoints(PLAIN, "10.244.1.9")), id="another Service's endpoints"),
        pytest.param(cluster(WEB), id="a Service that nobody asks about goes"),
        pytest.param(cluster(msgspec.structs.replace(WEB, affinity_s=60), PLAIN), id="the Service, but not its health"),
    ],
)
def test_a_change_of_no_health_check_publishes_nothing(after):
    node = Node()
    node.sync(cluster(WEB, PLAIN))
    node.sync(after)
    assert len(node.published) == 1


@pytest.mark.parametrize(
    "after,told_after",
    [
        pytest.param(with_endpoints(WEB, "10.244.1.5", "10.244.1.6"), {"web": (32100, 2)}, id="one endpoint more"),
        pytest.param(with_endpoints(WEB), {"web": (32100, 0)}, id="none left"),
        pytest.param(msgspec.structs.replace(WEB, health_port=32101), {"web": (32101, 1)}, id="another port"),
        pytest.param(msgspec.structs.replace(WEB, external_policy="Cluster", health_port=0), {}, id="policy Cluster"),
        pytest.param(PLAIN, {}, id="the Service is gone"),
    ],
)
def test_a_change_of_a_health_check_is_published(after, told_after):
    node = Node()
    node.sync(cluster(WEB))
    node.sync(cluster(after))
    assert (told(node), len(node.published)) == (told_after, 2)


def test_a_change_of_one_health_check_leaves_the_others_the_same_objects():
    node = Node()
    node.sync(cluster(WEB, OTHER))
    node.sync(cluster(with_endpoints(WEB, "10.244.1.5", "10.244.1.6"), OTHER))
    before, after = (snapshot.checks[ServiceName("default", "other")] for snapshot in node.published)
    assert before is after


def test_k17_a_node_whose_endpoints_all_terminate_serves_with_them_and_says_that_it_has_none():
    node = Node()
    node.sync(cluster(WEB))
    node.sync(stopping(WEB))
    assert node.fake.state[Kind.REAL_SERVER][LOAD_BALANCER] == blob(("10.244.1.5", 8080))
    assert told(node) == {"web": (32100, 0)}


def test_k25_a_node_without_an_endpoint_of_the_service_says_so():
    node = Node()
    node.sync(cluster(msgspec.structs.replace(WEB, local=False)))
    assert told(node) == {"web": (32100, 0)}


def test_health_checks_are_answered_on_all_addresses_and_a_new_one_publishes_nothing():
    node = Node(host=("192.0.2.11",))
    node.sync(cluster(WEB))
    assert node.published[-1].addresses == (addr("0.0.0.0"), addr("::"))
    node.has("192.0.2.11", "192.0.2.50")
    node.sync()
    assert len(node.published) == 1


def test_where_node_ports_are_bound_to_a_network_its_addresses_are_followed():
    node = Node(host=("192.0.2.11", "198.51.100.11"), node_port_cidrs=("192.0.2.0/24", "::1/128"))
    node.sync(cluster(WEB))
    node.has("192.0.2.11", "192.0.2.50", "198.51.100.11")
    node.sync()
    assert [snapshot.addresses for snapshot in node.published] == [
        (addr("192.0.2.11"),),
        (addr("192.0.2.11"), addr("192.0.2.50")),
    ]
