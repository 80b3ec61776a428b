"""A proxy that starts beside an API server which answers slowly: what stands in the kernel waits for whole lists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from ipvsproxy.cluster.events import Listed
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kube.resources import ENDPOINT_SLICES
from ipvsproxy.model.kernel_objects import Kind
from tests.builders import vs_key
from tests.clusters import Node
from tests.kube.following import Following, following
from tests.kube.scripted_server import (
    HOLD,
    Answer,
    Gate,
    added,
    after,
    bookmark,
    page,
    refusal,
    service,
    serving,
    stream,
)

A, B, GONE = (service(name, 1, f"10.96.0.2{number}") for number, name in enumerate(("a", "b", "gone")))


def endpoint_slice(owner: str, address: str) -> dict:
    return {
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"name": f"{owner}-1", "namespace": "default", "resourceVersion": "1",
                     "labels": {"kubernetes.io/service-name": owner}},
        "endpoints": [{"addresses": [address]}], "ports": [{"port": 8080, "protocol": "TCP"}],
    }  # fmt: skip


SLICE_A, SLICE_B = endpoint_slice("a", "10.244.1.5"), endpoint_slice("b", "10.244.2.5")
NO_STREAMS = refusal(422, "Invalid")


def whole(*items: dict) -> list[Answer]:
    return [stream(added(*items), bookmark(9, ends_list=True), HOLD)]


def in_two_parts(gate: Gate, first: dict, second: dict) -> list[Answer]:
    return [stream(added(first), gate, added(second), bookmark(9, ends_list=True), HOLD)]


def in_two_pages(gate: Gate, first: dict, second: dict) -> list[Answer]:
    kind = f"{first['kind']}List"
    pages = [page([first], 9, "more", kind), after(gate, page([second], 9, kind=kind))]
    return [NO_STREAMS] * 3 + pages + [stream(HOLD)]


class Proxy:
    """A proxy of this kernel, started anew; it follows the two servers and is told by the test when to sync."""

    def __init__(self, fake: FakeKernel, services: Following, slices: Following) -> None:
        self.services, self.slices = services, slices
        self._node = Node(fake)
        self._node.tracker.note(Listed("Node"))
        self._taken = {id(services): 0, id(slices): 0}

    def sync(self) -> None:
        """Take what the watches have told so far, and sync."""
        for found in (self.services, self.slices):
            news = found.batches[self._taken[id(found)] :]
            self._taken[id(found)] += len(news)
            for batch in news:
                for event in batch:
                    self._node.tracker.note(event)
        self._node.reconciler.sync()


@contextlib.contextmanager
def proxy(fake: FakeKernel, services: Sequence[Answer], slices: Sequence[Answer]) -> Iterator[Proxy]:
    with (
        serving(services) as one,
        serving(slices) as other,
        following(one.url) as told_services,
        following(other.url, ENDPOINT_SLICES) as told_slices,
    ):
        yield Proxy(fake, told_services, told_slices)


@pytest.fixture
def kernel() -> FakeKernel:
    """What a former run has left: two Services with an endpoint each, and one that was deleted since."""
    fake = FakeKernel()
    with proxy(fake, whole(A, B, GONE), whole(SLICE_A, SLICE_B)) as former:
        former.services.wait_for("+a", "+b", "+gone", "Listed")
        former.slices.wait_for("+a-1", "+b-1", "Listed")
        former.sync()
    return fake


@pytest.mark.parametrize("slowly", [in_two_parts, in_two_pages])
@pytest.mark.parametrize("last", ["Service", "EndpointSlice"])
def test_k14_beside_a_slow_api_server_nothing_is_removed_before_both_lists_are_whole(kernel, slowly, last):
    gates = {"Service": Gate(), "EndpointSlice": Gate()}
    before = {kind: dict(found) for kind, found in kernel.state.items()}
    lists = slowly(gates["Service"], A, B), slowly(gates["EndpointSlice"], SLICE_A, SLICE_B)
    with proxy(kernel, *lists) as again:
        again.sync()
        assert kernel.state == before
        for gate in sorted(gates, key=lambda kind: kind == last):
            gates[gate].open.set()
            found, names = (again.services, ("+a", "+b")) if gate == "Service" else (again.slices, ("+a-1", "+b-1"))
            found.wait_for(*names, "Listed")
            assert kernel.state == before
            again.sync()
            assert (kernel.state == before) is (gate != last)
    gone = vs_key("10.96.0.22", 80)
    assert kernel.state[Kind.VIRTUAL_SERVER].keys() == before[Kind.VIRTUAL_SERVER].keys() - {gone}
    assert kernel.state[Kind.REAL_SERVER] == {k: v for k, v in before[Kind.REAL_SERVER].items() if k != gone}
