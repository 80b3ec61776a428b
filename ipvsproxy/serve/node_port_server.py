"""Health check node ports: load balancers ask there which nodes have endpoints of a Service.

One thread for the listeners of all Services. It owns its sockets; the sync thread hands it a snapshot of all there is
to say, by one assignment, when something in it has changed. Nothing else passes between the two: a server that is
behind sees the newest snapshot only, and a slow client is no matter of the sync thread.

A place that cannot be listened at costs itself alone: it is said once, tried again with back-off, and at once when
another place of ours goes. differs: kube-proxy gives up a Service's other addresses too, and logs every attempt.
Source: kubernetes v1.37.2 pkg/proxy/healthcheck/service_health.go.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.health_check import HealthSnapshot
from ipvsproxy.errors import describe_errno
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.connections import Connection, Connections
from ipvsproxy.serve.health_answer import health_answer
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.listening import listen, listening_hint
from ipvsproxy.serve.places import Place, moved

log = structlog.get_logger()

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0  # kube-proxy's sync period, after which it tries again
_ACCEPTED_AT_ONCE = 16
_TOLD = 5  # examples in a log line
_SHORT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class NodePortServer:
    """Listens at the places of the newest snapshot. `max_listeners`: more would leave no files for the rest of us.

    `tell` is called with what owners of Services must know; it must not wait.
    """

    def __init__(self, clock: Clock, max_listeners: int) -> None:
        self.tell: Callable[[Notice], None] = lambda _: None
        self._clock = clock
        self._max_listeners = max_listeners
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._is_stopped = False
        self._published = self._taken = HealthSnapshot()
        self._listeners: dict[Place, socket.socket] = {}
        self._refused: dict[Place, int] = {}  # with the errno that was told
        self._retry_s = FIRST_RETRY_S
        self._retry_at: float | None = None
        self._connections: Connections[Place] = Connections(self._selector, clock, self._answer)
        self._is_healthy: Callable[[], bool] = lambda: False

    def publish(self, snapshot: HealthSnapshot) -> None:
        """From now on say this; from any thread."""
        self._published = snapshot
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._is_stopped = True
        os.eventfd_write(self._wake, 1)

    def run(self, is_healthy: Callable[[], bool]) -> None:
        """Answer until `stop` is called. `is_healthy`: does the proxy do its work? Asked for each answer."""
        self._is_healthy = is_healthy
        try:
            while not self._is_stopped:
                self._turn()
        finally:
            self._close_places({*self._listeners})
            self._connections.close()

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._selector.close()
        os.close(self._wake)

    def _turn(self) -> None:
        events = self._selector.select(self._timeout_s())
        self._take_snapshot()  # first: an answer is never older than what was published before the question
        for key, _ in events:
            if isinstance(key.data, Connection):
                self._connections.move_on(key.data)
            elif isinstance(key.data, Place):
                self._accept(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        self._connections.end_overdue()
        if self._retry_at is not None and self._clock.monotonic() >= self._retry_at:
            self._try_again()

    def _timeout_s(self) -> float | None:
        """Until something is due; None without anything that is."""
        due = [at for at in (self._connections.next_end, self._retry_at) if at is not None]
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    def _answer(self, place: Place, _: Request) -> Answer:
        check = self._taken.checks[place.service]  # its connections are closed when a Service goes
        count = check.local_endpoints[family_of(place.address)]
        return health_answer(place.service, count, proxy_healthy=self._is_healthy())

    def _take_snapshot(self) -> None:
        snapshot = self._published
        if snapshot is self._taken:
            return
        gone, new = moved(self._taken, snapshot)
        self._close_places(gone)  # first: a port may have gone from one Service to another
        self._taken = snapshot
        self._open_places(new)
        if gone and self._refused:
            self._try_again()

    def _close_places(self, places: set[Place]) -> None:
        for place in places:
            self._refused.pop(place, None)
            listener = self._listeners.pop(place, None)
            if listener is not None:
                self._selector.unregister(listener)
                listener.close()
        if places:
            self._connections.close_of(places)
        if not self._refused:
            self._retry_at = None

    def _open_places(self, places: Iterable[Place]) -> None:
        """Listen there, and say once for each errno where that cannot be."""
        refused: dict[int, list[Place]] = {}
        for place in sorted(places):
            number = self._listen(place)
            if number:
                refused.setdefault(number, []).append(place)
        for number, found in refused.items():
            self._refuse(found, number)

    def _listen(self, place: Place) -> int:
        """Begin to listen there; 0, or the errno."""
        if len(self._listeners) >= self._max_listeners:
            return errno.EMFILE
        try:
            listener = listen(place)
        except OSError as error:
            return error.errno or errno.EIO
        self._listeners[place] = listener
        self._selector.register(listener, selectors.EVENT_READ, place)
        return 0

    def _refuse(self, places: Sequence[Place], number: int) -> None:
        """Keep for later; what is already known is not told again."""
        told = [place for place in places if self._refused.get(place) != number]
        self._refused.update(dict.fromkeys(places, number))
        if told:
            self._retry_s = FIRST_RETRY_S
            self._retry_at = self._clock.monotonic() + self._retry_s
            log.error(
                "health_check_ports_refused",
                errno=describe_errno(number),
                count=len(told),
                some=[str(place) for place in told[:_TOLD]],
                effect="load balancers take this node for dead",
                hint=listening_hint(number),
            )
        for place in told:
            self.tell(self._notice(place, number))

    def _notice(self, place: Place, number: int) -> Notice:
        """Under the reason that kube-proxy gives."""
        text = f"health check node port {place.port} is not answered: {place}: {describe_errno(number)}"
        uid = self._taken.checks[place.service].uid
        return Notice("Service", *place.service, uid, "FailedToStartServiceHealthcheck", "Listen", text)

    def _try_again(self) -> None:
        """Listen where that was refused; what works now is told."""
        tried = {*self._refused}
        self._open_places(tried)
        opened = sorted(place for place in tried if place in self._listeners)
        for place in opened:
            del self._refused[place]
        if opened:
            log.info("health_check_ports_open", count=len(opened), some=[str(place) for place in opened[:_TOLD]])
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._retry_at = self._clock.monotonic() + self._retry_s if self._refused else None

    def _accept(self, place: Place) -> None:
        """Take in who waits there, some at a time so that the others have their turn."""
        for _ in range(_ACCEPTED_AT_ONCE):
            listener = self._listeners.get(place)
            if listener is None:  # closed since the selector saw it
                return
            try:
                stream, _ = listener.accept()
            except OSError as error:
                if error.errno in _SHORT_OF:  # any other is what has happened to the client meanwhile: accept(2)
                    self._give_up(place, error.errno)
                return
            self._connections.add(stream, place)

    def _give_up(self, place: Place, number: int) -> None:
        """Close a listener that cannot accept, or the selector would report it without a pause; it opens again."""
        self._close_places({place})
        self._refuse([place], number)
