"""How many messages a change costs, on the fake kernel: their number is the first thing that makes a sync dear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import msgspec
import pytest

from ipvsproxy.cluster.events import Changed
from tests.clusters import Cluster, Node, Svc, cluster

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
    """A node that serves `shop(services)`."""
    node = synced(services)
    node.sync(shop(services))
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


@pytest.mark.parametrize("endpoints", [pytest.param(11, id="one endpoint more"), pytest.param(9, id="one less")])
def test_one_endpoint_is_one_message(node, services, endpoints):
    assert node.sync(shop(services) | cluster(svc(3, endpoints))) == 1


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
