"""Health check node ports: load balancers ask there which nodes have endpoints of a Service.

One thread for the listeners of all Services. It owns its sockets; the sync thread hands it a snapshot of all there is
to say, by one assignment, when something in it has changed. Nothing else passes between the two: a server that is
behind sees the newest snapshot only, and a slow client is no matter of the sync thread.

A place that cannot be listened at costs itself alone: it is said once, tried again with back-off, and at once when
another place of ours goes. differs: kube-proxy gives up a Service's other addresses too, and logs every attempt.
Source: kubernetes v1.37.2 pkg/proxy/healthcheck/service_health.go.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.health_check import HealthSnapshot
from ipvsproxy.errors import describe_errno
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.accept_loop import AcceptLoop
from ipvsproxy.serve.health_answer import health_answer
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.listening import listen, listening_hint
from ipvsproxy.serve.places import Place, moved

log = structlog.get_logger()

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0  # kube-proxy's sync period, after which it tries again
_TOLD = 5  # examples in a log line


class NodePortServer:
    """Listens at the places of the newest snapshot. `max_listeners`: more would leave no files for the rest of us.

    `tell` is called with what owners of Services must know; it must not wait.
    """

    def __init__(self, clock: Clock, max_listeners: int) -> None:
        self.tell: Callable[[Notice], None] = lambda _: None
        self._clock = clock
        self._max_listeners = max_listeners
        self._published = self._taken = HealthSnapshot()
        self._refused: dict[Place, int] = {}  # with the errno that was told
        self._retry_s = FIRST_RETRY_S
        self._retry_at: float | None = None
        self._loop: AcceptLoop[Place] = AcceptLoop("health-check-ports", clock, self._answer)
        self._is_healthy: Callable[[], bool] = lambda: False

    def publish(self, snapshot: HealthSnapshot) -> None:
        """From now on say this; from any thread."""
        self._published = snapshot
        self._loop.wake()

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._loop.stop()

    def run(self, is_healthy: Callable[[], bool]) -> None:
        """Answer until `stop` is called. `is_healthy`: does the proxy do its work? Asked for each answer."""
        self._is_healthy = is_healthy
        self._loop.run(self._work)

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._loop.close()

    def _work(self) -> float | None:
        """Take what is published, so that no answer is older than that; when there is something to try again."""
        self._take_snapshot()
        if self._retry_at is not None and self._clock.monotonic() >= self._retry_at:
            self._try_again()
        return self._retry_at

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
        self._loop.shut(places)
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
        if len(self._loop.listeners) >= self._max_listeners:
            return errno.EMFILE
        try:
            listener = listen(place)
        except OSError as error:
            return error.errno or errno.EIO
        self._loop.open(place, listener)
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
        opened = sorted(place for place in tried if place in self._loop.listeners)
        for place in opened:
            del self._refused[place]
        if opened:
            log.info("health_check_ports_open", count=len(opened), some=[str(place) for place in opened[:_TOLD]])
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._retry_at = self._clock.monotonic() + self._retry_s if self._refused else None
