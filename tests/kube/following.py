"""The real watch against a scripted server, in a thread, with waits made short; and a cluster that is told into."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ipvsproxy.clock import Clock, SystemClock
from ipvsproxy.cluster.events import (
    Changed,
    ClusterEvent,
    Forbidden,
    Forgotten,
    Listed,
    NodeAddresses,
    Rejected,
    Removed,
)
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.other_nodes import OtherNodesWatch
from ipvsproxy.kube.recovery import Timing
from ipvsproxy.kube.resources import SERVICES, Resource
from ipvsproxy.kube.watch import Watch
from ipvsproxy.model.addr import format_addr

LIMIT_S = 10.0
QUICK = Timing(
    silence_s=5.0, first_retry_s=0.001, longest_retry_s=0.01, longest_unreachable_s=0.01, longest_retry_after_s=0.05
)


class Following:
    """What a watch has told so far, in short words: `+web`, `-web`, `Listed`, `!Service default/web`, `n2 ADDRESS`."""

    def __init__(self, watch: Watch | OtherNodesWatch, reactions: Mapping[str, Callable[[], None]]) -> None:
        self.watch = watch
        self.told: list[str] = []
        self._reactions = reactions
        self.batches: list[Sequence[ClusterEvent]] = []
        self._news = threading.Condition()

    def deliver(self, events: Sequence[ClusterEvent]) -> None:
        """Take a batch; the watch asks for nothing more before the reactions to it are over."""
        news = [_short(event) for event in events]
        with self._news:
            self.batches.append(events)
            self.told += news
            self._news.notify_all()
        for word in news:
            if react := self._reactions.get(word):
                react()

    def wait_for(self, *expected: str, limit_s: float = LIMIT_S) -> None:
        """Wait until exactly this was told; fails at once on anything else."""
        with self._news:
            self._news.wait_for(lambda: len(self.told) >= len(expected), limit_s)
            assert self.told == list(expected)


def _short(event: ClusterEvent) -> str:
    match event:
        case Changed(ref=ref):
            return f"+{ref.name}"
        case Removed(ref=ref):
            return f"-{ref.name}"
        case Listed():
            return "Listed"
        case Rejected(notes=notes):
            return f"!{notes[0].subject}"
        case NodeAddresses(name=name, addresses=addresses):
            return " ".join((name, *map(format_addr, addresses)))
        case Forgotten() | Forbidden():
            return type(event).__name__


@contextlib.contextmanager
def following(
    at: str | ApiServer,
    resource: Resource = SERVICES,
    timing: Timing = QUICK,
    clock: Clock | None = None,
    reactions: Mapping[str, Callable[[], None]] = MappingProxyType({}),
) -> Iterator[Following]:
    """Follow the server, or the one at this URL; at the end the watch is stopped and its thread has ended.

    `reactions`: what to do as soon as one of the short words is told.
    """
    server = at if isinstance(at, ApiServer) else ApiServer(Access(master=at))
    watch = Watch(server, resource, clock or SystemClock(), timing=timing, spread=lambda: 0.5)
    with running(watch, reactions) as found:
        yield found


@contextlib.contextmanager
def running(
    watch: Watch | OtherNodesWatch, reactions: Mapping[str, Callable[[], None]] = MappingProxyType({})
) -> Iterator[Following]:
    """Let it run in a thread; at the end it is stopped and its thread has ended."""
    found = Following(watch, reactions)
    thread = threading.Thread(target=found.watch.run, args=(found.deliver,), name="watch")
    thread.start()
    try:
        yield found
    finally:
        found.watch.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the watch did not stop"


def eventually(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait until something is so; fails at the safety limit."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.005)
