"""When to sync: when something happened, but not too soon after the last time, and when a retry is due.

There is no periodic sync here: the mirror says what is applied, so without news there is nothing to send.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol, TypeAlias

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.monitor import DeviceChanged
from ipvsproxy.sync.reconciler import Reconciler, SyncResult

log = structlog.get_logger()


class Signal(Enum):
    """What is asked of the sync thread itself."""

    STOP = auto()


# What one look at the cluster told comes as one message: a sync never sees half of it.
Message: TypeAlias = tuple[ClusterEvent, ...] | DeviceChanged | Signal


class Inbox(Protocol):
    """The one queue between the threads."""

    def get(self, timeout_s: float | None) -> Message | None:
        """The next message; None when `timeout_s` seconds passed without one. None as time-out waits for ever."""


class Runner:
    """The sync thread's loop."""

    def __init__(
        self, inbox: Inbox, tracker: Tracker, reconciler: Reconciler, clock: Clock, *, min_sync_period_s: float
    ) -> None:
        self._inbox = inbox
        self._tracker = tracker
        self._reconciler = reconciler
        self._clock = clock
        self._min_sync_period_s = min_sync_period_s
        self._pending = False
        self._not_before = clock.monotonic()
        self._retry_at: float | None = None

    def run(self) -> None:
        """Work until STOP; a sync in flight is finished, the kernel state stays. Raises what a sync raises."""
        while True:
            message = self._inbox.get(self._wait_s())
            while message is not None:
                if message is Signal.STOP:
                    return
                self._take(message)
                message = self._inbox.get(0)
            if self._is_due():
                self._sync()

    def _wait_s(self) -> float | None:
        now = self._clock.monotonic()
        if self._pending:
            return max(0.0, self._not_before - now)
        return None if self._retry_at is None else max(0.0, self._retry_at - now)

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        if self._pending:
            return now >= self._not_before
        return self._retry_at is not None and now >= self._retry_at

    def _take(self, message: Message) -> None:
        if isinstance(message, DeviceChanged):
            self._pending |= self._reconciler.device_changed(message)
        elif not isinstance(message, Signal):
            self._pending = True
            for event in message:
                self._tracker.note(event)

    def _sync(self) -> None:
        started = self._clock.monotonic()
        result = self._reconciler.sync()
        ended = self._clock.monotonic()
        self._pending = False
        self._not_before = ended + self._min_sync_period_s
        self._retry_at = result.retry_at
        _report(result, (ended - started) * 1000)


def _report(result: SyncResult, duration_ms: float) -> None:
    log.info(
        "sync_finished",
        mode="ipvs",
        services=result.services,
        operations=result.operations,
        refused=result.refused,
        waiting=result.waiting,
        duration_ms=round(duration_ms, 1),
    )
