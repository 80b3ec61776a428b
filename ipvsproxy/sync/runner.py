"""When to sync: when something happened, but not too soon after the last time, and when a retry is due.

There is no periodic sync: the mirror says what is applied, so without news there is nothing to send. What there is
every sync period is an audit: has somebody else changed what is ours? And every second a glance at the rules: who
flushes them opens every closed port, and nothing tells of it (K36).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeAlias

import msgspec
import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.known import Snapshot
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.gateways import DefaultGateways
from ipvsproxy.kernel.monitor import DeviceChanged, HostAddresses
from ipvsproxy.model.figures import Asked, Audits, Figures, Pass
from ipvsproxy.model.vitals import FamilyVitals, Vitals
from ipvsproxy.sync.news import News
from ipvsproxy.sync.reconciler import Reconciler, SyncResult

log = structlog.get_logger()

TAKE_S = 0.5  # who sends without a pause must not keep what he has sent from being put in force
FULL_AUDIT_EVERY = 10  # the others take a quick look (sync/mirror.py)
GLANCE_S = 1.0
_SPARED = 4  # times as long as a glance took passes before the next: a busy writer of rules must not keep us busy


class Signal(Enum):
    """What is asked of the sync thread itself."""

    STOP = auto()


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """Somebody asks what is known now: `answer` is called with it between two passes, in the sync thread."""

    answer: Callable[[Snapshot], None]


# What one look at the cluster told comes as one message: a sync never sees half of it.
Message: TypeAlias = (
    tuple[ClusterEvent, ...] | DeviceChanged | HostAddresses | DefaultGateways | SnapshotWanted | Signal
)


class Inbox(Protocol):
    """The one queue between the threads."""

    @property
    def arrived_at(self) -> float:
        """When the message that `get` returned last was put in (monotonic seconds)."""

    def get(self, timeout_s: float) -> Message | None:
        """The next message; None when `timeout_s` seconds, which may be infinite, passed without one."""


class Periods(msgspec.Struct, frozen=True):
    """The least time between two syncs, the time between two audits, and that between two glances, in seconds."""

    min_sync_s: float = 0.0
    audit_s: float = math.inf
    glance_s: float = math.inf


class Runner:
    """The sync thread's loop.

    `figures` and `audited` are new after each pass, for any thread; `report` is called with what the pass was like, in
    this thread, and must not wait.
    """

    def __init__(self, inbox: Inbox, tracker: Tracker, reconciler: Reconciler, clock: Clock, periods: Periods) -> None:
        self._inbox = inbox
        self._tracker = tracker
        self._reconciler = reconciler
        self._clock = clock
        self._periods = periods
        self._pending = False
        self._not_before = clock.monotonic()
        self._retry_at: float | None = None
        self._is_full = False  # whether the last sync had all that the cluster wants in it
        self._progressed_at = clock.monotonic()
        self._families = dict.fromkeys(sorted(tracker.families), FamilyVitals())
        self._audit_at = clock.monotonic() + periods.audit_s
        self._audits = 0
        self._glance_at = clock.monotonic() + periods.glance_s
        self._refused = 0
        self._is_first = True
        self._news = News(time.time())
        self.audited = Audits()
        self.figures = Figures()
        self.report: Callable[[Pass], None] = lambda _: None

    @property
    def vitals(self) -> Vitals:
        """How this thread is doing; for any thread."""
        return Vitals(
            self._families,
            limit_s=2 * self._periods.audit_s,
            progressed_at=max(self._progressed_at, self._reconciler.progressed_at),
            node_is_eligible=self._tracker.node_is_eligible,
        )

    @property
    def is_healthy(self) -> bool:
        """Whether every family is served as asked for; for any thread."""
        return self.vitals.all_healthy(self._clock.monotonic())

    @property
    def asked(self) -> Asked:
        """What the cluster has asked for; for any thread."""
        return self._news.asked

    def run(self) -> None:
        """Work until STOP; a sync in flight is finished, the kernel state stays. Raises what a sync raises."""
        while True:
            due = min(self._sync_at(), self._audit_at, self._glance_at)
            message = self._inbox.get(max(0.0, due - self._clock.monotonic()))
            latest = self._clock.monotonic() + TAKE_S
            while message is not None:
                if message is Signal.STOP:
                    return
                self._take(message)
                message = self._inbox.get(0) if self._clock.monotonic() < latest else None
            if self._clock.monotonic() >= self._sync_at():
                self._sync()
            if self._clock.monotonic() >= self._audit_at:
                self._audit()
            if self._clock.monotonic() >= self._glance_at:
                self._glance()

    def _sync_at(self) -> float:
        if self._pending:
            return self._not_before
        return math.inf if self._retry_at is None else self._retry_at

    def _take(self, message: Message) -> None:
        if isinstance(message, DeviceChanged):
            self._pending |= self._reconciler.device_changed(message)
        elif isinstance(message, HostAddresses):
            self._pending |= self._reconciler.host_changed(message.addresses)
        elif isinstance(message, DefaultGateways):
            self._pending |= self._reconciler.gateways_changed(message.addresses)
        elif isinstance(message, SnapshotWanted):
            message.answer(self._reconciler.snapshot)
        elif not isinstance(message, Signal):
            matters = False
            for event in message:
                matters |= self._tracker.note(event)
            self._news.note(message)
            if matters:
                self._news.ask(self._inbox.arrived_at, time.time())
            self._pending |= matters
        if self._pending:
            self._begin()

    def _begin(self) -> None:
        """From now on there is something to do, unless there was already."""
        if not all([vitals.asked_at is not None for vitals in self._families.values()]):  # noqa: C419 - half the cost
            now = self._clock.monotonic()
            self._families = {
                family: vitals if vitals.asked_at is not None else msgspec.structs.replace(vitals, asked_at=now)
                for family, vitals in self._families.items()
            }

    def _end(self, result: SyncResult, ended: float) -> None:
        """A pass is over: what it has not left where it was is as asked for, unless something new waits."""
        self._progressed_at = ended
        self._families = {
            family: _failed(vitals) if family in result.failed else self._succeeded(vitals, is_full=result.is_full)
            for family, vitals in self._families.items()
        }

    def _publish(self, done: Pass) -> None:
        tally = self._reconciler.tally
        self.figures = self._reconciler.figures
        self.report(msgspec.structs.replace(done, batches=tally.take_batches(), looks=tally.take_looks()))

    def _succeeded(self, vitals: FamilyVitals, *, is_full: bool) -> FamilyVitals:
        if self._pending:
            return msgspec.structs.replace(vitals, is_failing=False)
        return FamilyVitals(updated_at=time.time() if is_full else vitals.updated_at)

    def _sync(self) -> None:
        self._begin()
        started = self._clock.monotonic()
        result = self._reconciler.sync()
        ended = self._clock.monotonic()
        is_full = self._is_full
        self._is_full = result.is_full
        fails_anew = self._fails_anew(result)
        is_news = self._is_first or fails_anew or result.services > 0 or result.operations > 0
        self._is_first = False
        self._pending = False
        self._end(result, ended)
        latencies, programming = self._news.take_latencies(ended), self._news.take_programming(time.time())
        self._publish(
            Pass(
                tuple(self._families),
                ended - started,
                is_full=result.is_full,
                latencies=latencies if is_full else (),
                programming=programming if is_full else (),
            )
        )
        self._not_before = ended + self._periods.min_sync_s
        self._retry_at = result.retry_at
        # What fails is tried and what drains is looked at again and again, and mostly found as it was.
        _report("sync_finished", result, (ended - started) * 1000, log.info if is_news else log.debug)

    def _audit(self) -> None:
        self._begin()
        self._audits += 1
        started = self._clock.monotonic()
        in_full = self._audits % FULL_AUDIT_EVERY == 0
        result = self._reconciler.audit(in_full=in_full)
        ended = self._clock.monotonic()
        self._end(result, ended)
        self.audited = self.audited.after(time.time(), in_full=in_full)
        self._publish(Pass(tuple(self._families), ended - started, is_audit=True))
        self._audit_at = ended + self._periods.audit_s
        self._retry_at = result.retry_at
        reminds = in_full and result.refused > 0
        if self._fails_anew(result) or reminds or result.operations:
            _report("audit_finished", result, (ended - started) * 1000, log.info)

    def _glance(self) -> None:
        started = self._clock.monotonic()
        result = self._reconciler.glance()
        ended = self._clock.monotonic()
        self._glance_at = ended + max(self._periods.glance_s, _SPARED * (ended - started))
        if result is not None:
            self._end(result, ended)
            self._publish(Pass(tuple(self._families), ended - started, is_full=False))
            self._retry_at = result.retry_at
            _report("rules_put_right", result, (ended - started) * 1000, log.info)

    def _fails_anew(self, result: SyncResult) -> bool:
        """Whether another number of objects is refused than last time: each has said why, once (applier.py)."""
        before, self._refused = self._refused, result.refused
        return result.refused != before


def _failed(vitals: FamilyVitals) -> FamilyVitals:
    return msgspec.structs.replace(vitals, is_failing=True)


def _report(event: str, result: SyncResult, duration_ms: float, tell: Callable[..., None]) -> None:
    tell(
        event,
        mode="ipvs",
        services=result.services,
        operations=result.operations,
        refused=result.refused,
        waiting=result.waiting,
        draining=result.draining,
        duration_ms=round(duration_ms, 1),
    )
