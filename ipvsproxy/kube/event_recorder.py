"""Notices → Events in the API server (events.k8s.io/v1), by a thread of its own.

Events are a courtesy: nothing waits for them, and none is worth a second try. The same one is told once in ten minutes,
and there is a limit for all together, so that a cluster with a thousand faults is not also flooded by reports on them.
Every node sees the same faulty Service, so a warning's name is made of what it says: the first node creates the Event,
the others' are refused as there already, until the API server has forgotten it (an hour, as it comes).
Source: k8s.io/api v0.37.2 events/v1; limits as those of client-go's tools/events, simplified.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Protocol

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.kube.client import ApiServer
from ipvsproxy.kube.recovery import Interruption
from ipvsproxy.model.notices import Notice

log = structlog.get_logger()

_AGAIN_S = 600.0
_REMEMBERED = 1000
_WAITING = 100
_BURST = 25
_REFILL_S = 10.0
_LONGEST_NOTE = 1024  # characters; k8s.io/kubernetes pkg/apis/core/validation/events.go
_ANSWER_S = 10.0
_CREATED = 201
_CONFLICT = 409  # told already, by another node or an earlier run
_CONTROLLER = "ipvsproxy"
_DEFAULT_NAMESPACE = "default"  # of Events about objects that have none


class EventSink(Protocol):
    """Where Events go."""

    def create(self, namespace: str, event: dict[str, object]) -> None:
        """Create one. Raises Interruption."""


class ApiEventSink:
    """The API server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def create(self, namespace: str, event: dict[str, object]) -> None:
        """Create one, over a connection of its own. Raises Interruption."""
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        with self._server.connect() as session, session.post(path, event, _ANSWER_S) as response:
            status = response.status
            response.read()
        if status not in {_CREATED, _CONFLICT}:
            log.info("event_refused", status=status, hint="the ServiceAccount needs create on events.events.k8s.io")


class Limiter:
    """Which notices are told: not the same one again so soon, and not too many in all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._left = float(_BURST)
        self._counted_at = clock.monotonic()

    def lets_pass(self, notice: Notice) -> bool:
        """Whether to tell it now; asking counts as telling."""
        now = self._clock.monotonic()
        about = (notice.kind, notice.namespace, notice.name, notice.uid, notice.reason, notice.text)
        if now - self._told.get(about, -_AGAIN_S) < _AGAIN_S:
            return False
        self._left = min(float(_BURST), self._left + (now - self._counted_at) / _REFILL_S)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        self._told[about] = now
        self._told.move_to_end(about)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True


class EventRecorder:
    """Takes notices from any thread and creates Events in its own."""

    def __init__(self, sink: EventSink, node_name: str, clock: Clock) -> None:
        self._sink = sink
        self._instance = f"{_CONTROLLER}-{node_name}"
        self._limiter = Limiter(clock)
        self._queue: queue.Queue[Notice | None] = queue.Queue(_WAITING)
        self._last_trouble = ""

    @property
    def waiting(self) -> int:
        """How many are still to be looked at."""
        return self._queue.qsize()

    def record(self, notice: Notice) -> None:
        """Tell it some time soon, or never: this does not wait."""
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            log.debug("event_dropped", reason=notice.reason, name=notice.name)

    def record_now(self, notice: Notice) -> None:
        """Tell it before returning, which takes some seconds at most: for the last words of a program that ends."""
        self._create(notice)

    def run(self) -> None:
        """Work until `stop`."""
        while (notice := self._queue.get()) is not None:
            if self._limiter.lets_pass(notice):
                self._create(notice)

    def stop(self) -> None:
        """End `run` after the Event that it may be at; what waits is dropped."""
        while True:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                with contextlib.suppress(queue.Empty):  # `run` was quicker
                    self._queue.get_nowait()
            else:
                return

    def _create(self, notice: Notice) -> None:
        namespace = notice.namespace or _DEFAULT_NAMESPACE
        try:
            self._sink.create(namespace, event_body(notice, self._instance, datetime.now(UTC)))
        except Interruption as trouble:
            tell = log.debug if trouble.reason == self._last_trouble else log.info
            tell("event_not_told", reason=trouble.reason)
            self._last_trouble = trouble.reason


def event_body(notice: Notice, instance: str, now: datetime) -> dict[str, object]:
    """The Event object, ready for JSON."""
    regarding = {"apiVersion": "v1", "kind": notice.kind, "name": notice.name}
    optional = {"namespace": notice.namespace, "uid": notice.uid}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{notice.name}.{_digest(notice, now)}",
            "namespace": notice.namespace or _DEFAULT_NAMESPACE,
        },
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning" if notice.is_warning else "Normal",
        "reason": notice.reason,
        "action": notice.action,
        "note": notice.text[:_LONGEST_NOTE],
        "regarding": regarding | {key: value for key, value in optional.items() if value},
        "reportingController": _CONTROLLER,
        "reportingInstance": instance[:128],
    }


def _digest(notice: Notice, now: datetime) -> str:
    """Equal for equal warnings; no moment in a node's life is equal to another."""
    said = repr(notice) if notice.is_warning else f"{notice!r} {now.isoformat()}"
    return hashlib.blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()
