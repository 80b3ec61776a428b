"""How many messages a change costs, on the fake kernel: their number is the first thing that makes a sync dear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import msgspec
import pytest

from ipvsproxy.cluster.events import ApiObject, Changed, ObjectRef
from ipvsproxy.model import api_objects as api
from ipvsproxy.model import real_servers
from ipvsproxy.sync.lingering import CHECK_S
from tests.builders import blob, vs_key
from tests.clusters import NODE, Cluster, Node, Svc, cluster

FEW, MANY = pytest.param(10, id="10 Services"), pytest.param(1000, id="1,000 Services")
ENDPOINTS = 10
OTHER_PORTS = ((80, "TCP"), (443, "TCP"), (53, "UDP"))


def svc(number: int, endpoints: int = ENDPOINTS, ports: tuple[tuple[int, str], ...] = ((80, "TCP"),)) -> Svc:
    high, low = divmod(number, 250)
    ready = tuple((f"10.{128 + high}.{low}.{place + 1}", True) for place in range(endpoints))
    return Svc(f"s{number}", ips=(f"10.96.{high}.{low + 1}",), ports=ports, endpoints=ready)


@cache
def shop(services: int) -> Cluster:
    return cluster(*(svc(number) for number in range(services)))


@cache
def synced(services: int) -> Node:
    """One node for all tests: a first sync takes a second."""
    node = Node()
    node.sync(shop(services))
    return node


@pytest.fixture(params=[FEW, MANY])
def services(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def node(services: int) -> Node:
    """A node that serves `shop(services)`, and to which nobody is connected."""
    node = synced(services)
    node.fake.connections.clear()
    node.sync(shop(services))
    node.pass_time(CHECK_S)
    return node


@pytest.fixture
def reads(node: Node, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often subsystems of the node's kernel are read in each of the ways."""
    counted: Counter[str] = Counter()

    def counting(way: str, read: Callable[[], object]) -> Callable[[], object]:
        def counting_read() -> object:
            counted[way] += 1
            return read()

        return counting_read

    for subsystem in node.fake.kernel.subsystems:
        for way in ("read", "fingerprint", "survey"):
            if hasattr(subsystem, way):
                monkeypatch.setattr(subsystem, way, counting(way, getattr(subsystem, way)))
    return counted


def test_a_first_sync_costs_a_message_for_each_server_and_address_and_two_for_the_sets(services):
    assert Node().sync(shop(services)) == services * (1 + ENDPOINTS + 1) + 2


def test_one_endpoint_more_is_one_message(node, services):
    assert node.sync(shop(services) | cluster(svc(3, ENDPOINTS + 1))) == 1


@pytest.mark.parametrize(
    "is_connected, messages",
    [
        pytest.param(False, 3, id="nobody is connected to: weight 0, the question, the deletion"),
        pytest.param(True, 2, id="somebody is connected to: weight 0, the question"),
    ],
)
def test_k37_one_endpoint_less_that(node, services, is_connected, messages):
    connect(node, svc(3).endpoints[-1][0], is_connected=is_connected)

    assert node.sync(shop(services) | cluster(svc(3, ENDPOINTS - 1))) == messages


def test_what_drains_costs_a_message_each_time_it_is_looked_at_and_two_at_its_end(node, services):
    leaving = svc(3).endpoints[-1][0]
    connect(node, leaving)
    node.sync(shop(services) | cluster(svc(3, ENDPOINTS - 1)))
    costs = []
    for is_connected in (True, False, False):
        connect(node, leaving, is_connected=is_connected)
        node.clock.now += CHECK_S
        costs.append(node.sync())

    assert costs == [1, 2, 0]


@pytest.mark.parametrize(
    "connections, messages",
    [
        pytest.param(0, 5, id="nobody is connected to: two entries, the question, virtual server and address"),
        pytest.param(2, 2 + ENDPOINTS, id="somebody is connected to: an entry, the question, each real server"),
    ],
)
def test_a_service_less_that(node, services, connections, messages):
    for address, _ in svc(3).endpoints[:connections]:
        connect(node, address)
    rest = {ref: found for ref, found in shop(services).items() if "s3" not in ref.name.split("-")}

    assert node.sync(rest) == messages


def connect(node: Node, server: str, *, is_connected: bool = True) -> None:
    """Whether a client is connected to this endpoint of the fourth Service."""
    (address,) = svc(3).ips
    node.fake.connections[vs_key(address, 80), real_servers.identity(blob((server, 8080)))] = int(is_connected)


def test_one_endpoint_more_is_one_message_for_each_virtual_server_of_its_service(node, services):
    node.sync(shop(services) | cluster(svc(3, ports=OTHER_PORTS)))

    assert node.sync(shop(services) | cluster(svc(3, ENDPOINTS + 1, OTHER_PORTS))) == len(OTHER_PORTS)


def test_events_that_change_nothing_that_is_read_are_no_message(node, services):
    for ref, found in shop(services).items():
        labels = {**(found.metadata.labels or {}), "stage": "green"}
        metadata = msgspec.structs.replace(found.metadata, resource_version="2", labels=labels)
        node.tracker.note(Changed(ref, msgspec.structs.replace(found, metadata=metadata)))

    assert node.sync() == 0


def test_a_sync_reads_nothing_of_the_kernel(node, services, reads):
    assert node.sync(shop(services) | cluster(svc(3, ENDPOINTS + 1))) == 1

    assert not reads


def test_a_quick_audit_without_drift_sends_nothing_and_looks_once_at_each_subsystem(node, reads):
    node.reconciler.audit(in_full=False)  # after changes of our own it reads what it cannot tell from drift
    reads.clear()
    before = node.fake.messages

    node.reconciler.audit(in_full=False)

    assert node.fake.messages == before
    assert reads == {"survey": 1, "fingerprint": len(node.fake.kernel.subsystems) - 1}


def test_a_full_audit_without_drift_sends_nothing_and_reads_each_subsystem_once(node, reads):
    before = node.fake.messages

    node.reconciler.audit(in_full=True)

    assert node.fake.messages == before
    assert reads == {"read": len(node.fake.kernel.subsystems)}


# Each kind of change to one Service with every kind of frontend, beside the others. Half of its endpoints are here.
# What is added to one set is one message, however many entries it is; so is what is deleted.

HERE, THERE = tuple(f"10.244.1.{n}" for n in range(1, 6)), tuple(f"10.244.2.{n}" for n in range(1, 6))
EDGE = Svc(
    "edge", ips=("10.98.0.1",), endpoints=tuple((ip, True) for ip in (*HERE, *THERE)), here=HERE,
    node_ports=(30080,), external_ips=("203.0.113.20",), ingress=(("203.0.113.10", "VIP"),),
)  # fmt: skip
HOST = ("192.0.2.11",)
INSIDE, OUTSIDE, ADDRESSES = 1, 3, 3
FRONTENDS = INSIDE + OUTSIDE
HAIRPIN, NODE_PORT, ACCEPT, CLOSING, GUARD, RANGES = 1, 1, 3, 1, 1, 1  # sets
LOCAL_SETS = 3  # load-balancer IPs, node ports and health check ports with policy Local
SETS = HAIRPIN + NODE_PORT + ACCEPT + CLOSING
MOVED = 2  # an external IP leaves one set for another
LEAVING, ASKED = 2, 1  # a real server loses its weight, then goes; whether anybody is connected to any of them


@pytest.fixture
def edge(node: Node, services: int) -> Iterator[Node]:
    """A node that serves EDGE and `shop(services)`, and has an address for node ports."""
    node.has(*HOST)
    node.sync(shop(services) | cluster(EDGE))
    yield node
    node.has()
    node.sync(shop(services))


@pytest.mark.parametrize(
    "change,messages",
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({"affinity_s": 60}, FRONTENDS, id="affinity edits the virtual servers in place"),
        pytest.param(
            {"ports": ((81, "TCP"),)},
            # The node port stays, and leads to another port of the endpoints.
            (FRONTENDS - 1) * (1 + ENDPOINTS + ASKED + 1)
            + (1 + LEAVING) * ENDPOINTS
            + ASKED
            + 2 * HAIRPIN
            + 2 * ACCEPT,
            id="a port edited",
        ),
        pytest.param(
            {"external_policy": "Local", "health_port": 32100},
            OUTSIDE * (len(THERE) * LEAVING + ASKED) + LOCAL_SETS + MOVED,
            id="external policy Local: the endpoints elsewhere go",
        ),
        pytest.param(
            {"external_policy": "Local", "health_port": 32100, "here": ()},
            HAIRPIN + LOCAL_SETS + MOVED + GUARD,
            id="external policy Local without an endpoint here: no real server changes",
        ),
        pytest.param({"internal_policy": "Local"}, len(THERE) * LEAVING + ASKED, id="internal policy Local"),
        pytest.param({"source_ranges": ("198.51.100.0/24",)}, RANGES + GUARD, id="a source range"),
        pytest.param({"node_ports": ()}, 1 + NODE_PORT, id="the node port goes"),
        pytest.param({"external_ips": ()}, 1 + 1 + 1 + CLOSING, id="an external IP goes"),
    ],
)
def test_a_change_of_a_service_costs_what_it_touches(edge, services, change, messages):
    assert edge.sync(shop(services) | cluster(msgspec.structs.replace(EDGE, **change))) == messages


def test_a_service_costs_its_frontends_and_endpoints_when_it_comes_and_its_frontends_when_it_goes(edge, services):
    assert edge.sync(shop(services)) == FRONTENDS + ADDRESSES * (1 + ASKED) + SETS

    assert edge.sync(shop(services) | cluster(EDGE)) == FRONTENDS * (1 + ENDPOINTS) + ADDRESSES + SETS


def test_an_address_of_the_node_costs_its_trace_and_the_node_ports_that_it_serves(edge):
    edge.has(*HOST, "198.51.100.11")
    assert edge.sync() == 1 + 1 + ENDPOINTS

    edge.has(*HOST)
    assert edge.sync() == 1 + 1


def test_another_zone_of_the_node_costs_the_endpoints_that_hints_name(edge, services):
    in_zones = {ref: hinted(found) if ref.name.startswith("s3-") else found for ref, found in shop(services).items()}
    edge.tracker.note(in_zone("a"))
    edge.sync({**in_zones, **cluster(EDGE)})

    edge.tracker.note(in_zone("b"))

    assert edge.sync() == ENDPOINTS // 2 * (1 + LEAVING) + ASKED


def hinted(found: ApiObject) -> ApiObject:
    """The slice with every other endpoint for zone a, the rest for b."""
    assert isinstance(found, api.EndpointSlice)
    endpoints = tuple(
        msgspec.structs.replace(endpoint, hints=api.EndpointHints(for_zones=(api.Hint("ab"[place % 2]),)))
        for place, endpoint in enumerate(found.endpoints or ())
    )
    return msgspec.structs.replace(found, endpoints=endpoints)


def in_zone(zone: str) -> Changed:
    node = api.Node(api.Metadata(NODE, labels={"topology.kubernetes.io/zone": zone}))
    return Changed(ObjectRef("Node", "", NODE), node)
