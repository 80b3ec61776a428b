"""Memory follows what there is, not what there was (K40)."""

from __future__ import annotations

import gc
import io
from pathlib import Path

import pytest

from ipvsproxy import log
from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.cluster.tracker import Counts
from ipvsproxy.config.types import LogFormat
from ipvsproxy.kube.resources import watched
from ipvsproxy.model.kernel_objects import Kind
from tests.clusters import NODE, Node, Svc, cluster

WARM_UP = 1000
ALLOWED = 1.10
KEPT = cluster(Svc("kept", ("10.96.255.1",)))


def resident_bytes() -> int:
    gc.collect()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.fixture
def node() -> Node:
    log.configure(LogFormat.JSON, 0, io.StringIO())  # no line for each object, which pytest would keep
    node = Node()
    node.sync(KEPT)
    return node


def churn(node: Node, numbers: range) -> None:
    """A Service with its slice comes and goes for each number, always under a new name."""
    for number in numbers:
        address = f"10.{100 + number // 65536}.{number // 256 % 256}.{number % 256}"
        node.sync({**KEPT, **cluster(Svc(f"web-{number}", (address,)))})
        node.sync(KEPT)
        node.reconciler.tally.take_batches()  # as the runner does behind each pass


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(3000, id="3,000 cycles"),
        pytest.param(100_000, id="100,000 cycles", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_k40_services_that_came_and_went_leave_no_memory_behind(node, cycles):
    churn(node, range(WARM_UP))
    after_warm_up = resident_bytes()
    churn(node, range(WARM_UP, cycles))
    assert resident_bytes() <= after_warm_up * ALLOWED


def test_k40_a_thousand_slices_that_change_their_names_leave_no_trace(node):
    (service, slice_ref) = cluster(Svc("web"))
    found = cluster(Svc("web"))
    for number in range(1000):
        renamed = ObjectRef("EndpointSlice", "default", f"web-{number}")
        node.sync({**KEPT, service: found[service], renamed: found[slice_ref]})
    assert node.tracker.counts == Counts(services=2, slices=2, pending=0, noted=0, claims=0)
    assert len(node.fake.state[Kind.REAL_SERVER]) == 2
    node.tell({})
    node.reconciler.sync()
    assert node.tracker.counts == Counts(0, 0, 0, 0, 0)


def test_k40_pods_are_not_watched():
    assert {resource.kind for resource in watched(NODE)} == {"Service", "EndpointSlice", "Node"}
