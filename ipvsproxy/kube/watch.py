"""One resource followed on the API server: list, then watch, for ever, whatever happens to server or connection.

        ┌────────────── 410, or storage that was restored ─────────────────┐
        ▼                                                                  │
      LIST  as a stream of events, or where that is refused in pages ──→ WATCH from there ──→ cut, silent, ended:
        ▲                                                       complete   ▲                     wait a little
        └── cut: nothing is concluded from it ──┐                          └─ from the last event or bookmark ─┘

Blocking reads in a thread of its own; every read has a time-out, and `stop` shuts the socket down. Each connection
reads tokens and certificates anew, and each watch ends after some minutes, by the server or else by us, so that new
ones come into force.
The rest is in other files: what the bytes say (wire.py), what of it is news (told.py), what to do when it goes wrong
(recovery.py), how the bytes come here (client.py).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.events import ClusterEvent, Forbidden
from ipvsproxy.kube.recovery import (
    Asks,
    Backoff,
    Cause,
    Interruption,
    Timing,
    without_cut_stream,
    without_refused,
)
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES, Resource
from ipvsproxy.kube.told import Told
from ipvsproxy.kube.wire import (
    MAX_PAGE_BYTES,
    Absent,
    Arrival,
    Bookmark,
    Page,
    Present,
    Reader,
    interruption_of,
    lines_of,
)

log = structlog.get_logger()

Deliver: TypeAlias = Callable[[Sequence[ClusterEvent]], None]

_OK = 200
_SHORTEST_WATCH_S = 1.0


class Response(Protocol):
    """An answer whose body is still to be read. All but `status` raise Interruption."""

    @property
    def status(self) -> int:
        """HTTP's."""

    @property
    def retry_after_s(self) -> float | None:
        """What the server asks for."""

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes."""

    def read(self, most: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole body, of `most` bytes at the most."""

    def shut_down(self) -> None:
        """Make a read that waits in another thread end. Raises nothing."""


class Session(Protocol):
    """One connection with the credentials of now."""

    @property
    def server(self) -> str:
        """The server's address, for the log."""

    def get(self, path: str, query: Mapping[str, str], silence_s: float) -> AbstractContextManager[Response]:
        """Send a request; reads wait at most `silence_s` seconds each. Raises Interruption."""


class Server(Protocol):
    """The API server, wherever it is."""

    def connect(self) -> AbstractContextManager[Session]:
        """Read configuration and credentials. Raises Interruption."""


class Watch:
    """Follows one resource. `run` and `read_once` belong to one thread; `stop` and the attributes are for any."""

    def __init__(
        self,
        server: Server,
        resource: Resource,
        clock: Clock,
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen, so that sharing it is safe
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.resource = resource
        self.heard_at: float | None = None
        """When the newest news came, bookmarks included (the clock's monotonic seconds); None before the first."""
        self.is_connected = False
        """Whether the server answers: a watch is open, or has just ended in good order."""
        self._server = server
        self._clock = clock
        self._timing = timing
        self._spread = spread
        self._asks = Asks()
        self._asks_less_since = 0.0
        self._known_refusals: set[str] = set()
        self._reader = Reader(resource)
        self._told = Told(resource.kind, resource.if_none)
        self._backoff = Backoff(timing, spread)
        self._unfinished_streams = 0
        self._began_at = 0.0
        self._trouble = ""
        self._connected_is_known = False
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: Response | None = None

    def run(self, deliver: Deliver) -> None:
        """Tell the list, Listed, and then each change, until stopped; one call of `deliver` for each read with news.

        A list that the server forbids is told as such, once, and tried again all the same.
        Raises what `deliver` raises; the server's troubles are waited out.
        """
        while not self._stopping.is_set():
            interruption = self._attempt(deliver)
            if not self._stopping.is_set():
                self._tell_forbidden(interruption, deliver)
                self._stopping.wait(self._recover(interruption))

    def read_once(self, deliver: Deliver) -> None:
        """Tell the list and Listed, in pages, without a second try but for refused selectors. Raises Interruption."""
        self._asks = self._asks._replace(streaming=False)
        while True:
            try:
                with self._server.connect() as session:
                    return self._list_in_pages(session, deliver)
            except Interruption as interruption:
                asks = without_refused(self._asks, interruption.status)
                if asks is None:
                    raise
                self._asks = asks

    def stop(self) -> None:
        """Make `run` return: at once from reads and waits; before an answer has begun, when its time-out is over."""
        self._stopping.set()
        with self._lock:
            if self._open is not None:
                self._open.shut_down()

    def _attempt(self, deliver: Deliver) -> Interruption:
        """One connection, from its start to its end; why it ended."""
        if self._asks != Asks() and self._clock.monotonic() - self._asks_less_since >= self._timing.ask_again_s:
            self._asks, self._unfinished_streams = Asks(), 0
        try:
            with self._server.connect() as session:
                if self._told.resume_at is None and not self._asks.streaming:
                    self._list_in_pages(session, deliver)
                return self._follow(session, deliver)
        except Interruption as interruption:
            return interruption

    def _list_in_pages(self, session: Session, deliver: Deliver) -> None:
        self._told.begin_list()
        token = ""
        tokens: set[str] = set()
        while True:
            page = self._read_page(session, token)
            events = [event for item in page.items if (event := self._take(item)) is not None]
            token = page.continue_token
            if not token:
                return deliver([*events, *self._told.end_list(page.version)])
            if events:
                deliver(events)
            if token in tokens:
                raise Interruption(Cause.MALFORMED, "a list that begins again: its continue token came before")
            tokens.add(token)

    def _read_page(self, session: Session, token: str) -> Page:
        query = {
            **self._selectors(),
            "limit": str(self._timing.page_size),
            **({"continue": token} if token else {}),
        }
        with self._answer(session, query) as response:
            page = self._reader.read_page(response.read(MAX_PAGE_BYTES))
        self.heard_at = self._clock.monotonic()
        return page

    def _follow(self, session: Session, deliver: Deliver) -> Interruption:
        """Read one watch to its end."""
        query = self._watch_query()
        self._began_at = self._clock.monotonic()
        with self._answer(session, query) as response:
            self.is_connected = True
            self._tell_connected(session, query)
            if "sendInitialEvents" in query:
                self._told.begin_list()
                self._unfinished_streams += 1
            self._read_lines(response, float(query["timeoutSeconds"]), deliver)
        if self._told.is_listing:
            return Interruption(Cause.CUT, "the list was not complete")
        if not self._lasts:
            return Interruption(Cause.ENDED_EARLY)
        self._prosper()
        return Interruption(Cause.ENDED)

    def _read_lines(self, response: Response, asked_s: float, deliver: Deliver) -> None:
        """Read until the server ends it, or should have done so. Raises Interruption.

        The time-out of each read counts bytes; here it is counted what they say: blanks and halves of lines are none.
        """
        spoke_at = self._clock.monotonic()
        ends_at = spoke_at + asked_s + self._timing.overtime_s
        for lines in lines_of(response.chunks()):
            if lines:
                self._hear(lines, deliver)
            now = self._clock.monotonic()
            if now >= ends_at:
                return
            if lines:
                spoke_at = now
            elif now - spoke_at >= self._timing.silence_s:
                raise Interruption(Cause.SILENT, "bytes came, but nothing whole for longer than bookmarks take")

    def _watch_query(self) -> dict[str, str]:
        timing = self._timing
        seconds = timing.shortest_watch_s + self._spread() * (timing.longest_watch_s - timing.shortest_watch_s)
        query = {
            **self._selectors(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(seconds)),
        }
        if self._told.resume_at is not None:
            return {**query, "resourceVersion": self._told.resume_at}
        return {**query, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}

    def _selectors(self) -> dict[str, str]:
        wanted = {
            "labelSelector": self.resource.labels if self._asks.labels else "",
            "fieldSelector": self.resource.fields if self._asks.fields else "",
        }
        return {name: selector for name, selector in wanted.items() if selector}

    @contextmanager
    def _answer(self, session: Session, query: Mapping[str, str]) -> Iterator[Response]:
        """A good answer, which `stop` can end while it is open. Raises Interruption."""
        with session.get(self.resource.path, query, self._timing.silence_s) as response:
            with self._lock:
                self._open = response
            try:
                if self._stopping.is_set():
                    raise Interruption(Cause.ENDED)
                if response.status != _OK:
                    raise interruption_of(response.status, response.read(), response.retry_after_s)
                yield response
            finally:
                with self._lock:
                    self._open = None

    def _hear(self, lines: Sequence[bytes], deliver: Deliver) -> None:
        was_listing, before = self._told.is_listing, self._told.resume_at
        self._deliver(lines, deliver)
        self.heard_at = self._clock.monotonic()
        if not was_listing and (self._lasts or self._told.resume_at != before):
            self._prosper()

    @property
    def _lasts(self) -> bool:
        """Whether the watch has lasted for so long that opening it again and again would cost nobody much."""
        return self._clock.monotonic() - self._began_at >= _SHORTEST_WATCH_S

    def _deliver(self, lines: Sequence[bytes], deliver: Deliver) -> None:
        """Hand on what the lines say, also those before a line that interrupts: they are remembered as told."""
        events: list[ClusterEvent] = []
        try:
            for line in lines:
                events += self._events(line)
        finally:
            if events:
                deliver(events)

    def _events(self, line: bytes) -> list[ClusterEvent]:
        said = self._reader.read_line(line)
        if not isinstance(said, Bookmark):
            event = self._take(said)
            return [] if event is None else [event]
        if said.ends_list and self._told.is_listing:
            self._unfinished_streams = 0
            return self._told.end_list(said.version)
        self._told.bookmark(said)
        return []

    def _take(self, arrival: Arrival) -> ClusterEvent | None:
        """Its news; what a selector would have left out is absent."""
        if isinstance(arrival, Present) and not self.resource.keeps(arrival.object):
            return self._told.take(Absent(arrival.ref, arrival.version))
        return self._told.take(arrival)

    def _recover(self, interruption: Interruption) -> float:
        """Put right for the next connection what can be; the seconds to wait for it."""
        self.is_connected &= interruption.is_routine
        asks = without_refused(self._asks, interruption.status)
        if asks is not None:
            self._ask_less(asks, str(interruption))
            return 0.0
        self._ask_less(without_cut_stream(self._asks, self._unfinished_streams), str(interruption))
        if interruption.needs_list:
            self._told.expire()
        wait_s = self._backoff.next_s(interruption)
        self._tell_lost(interruption, wait_s)
        return wait_s

    def _ask_less(self, asks: Asks, reason: str) -> None:
        """Do without what was refused, for a time; told loudly the first time."""
        left_out = {name for name in Asks._fields if getattr(asks, name) != getattr(self._asks, name)}
        if not left_out:
            return
        tell = log.debug if left_out <= self._known_refusals else log.info
        tell("watch_simplified", kind=self.resource.kind, without=sorted(left_out), reason=reason)
        self._known_refusals |= left_out
        self._asks, self._asks_less_since = asks, self._clock.monotonic()

    def _prosper(self) -> None:
        """Forget troubles. A list alone does not show that all is well: one that is cut or expires again is costly."""
        self._backoff.reset()
        self._trouble = ""
        self._connected_is_known = False

    def _tell_forbidden(self, interruption: Interruption, deliver: Deliver) -> None:
        is_known = str(interruption) == self._trouble
        if interruption.is_forbidden and self._told.resume_at is None and not is_known:
            deliver((Forbidden(self.resource.kind, str(interruption)),))

    def _tell_connected(self, session: Session, query: Mapping[str, str]) -> None:
        """Tell of a connection; of the next ones too, unless it is the same trouble that ends them all."""
        tell = log.debug if self._connected_is_known else log.info
        self._connected_is_known = True
        tell(
            "watch_connected",
            kind=self.resource.kind,
            server=session.server,
            resource_version=query.get("resourceVersion", ""),
            lists="sendInitialEvents" in query,
            tries=self._backoff.tries,
        )

    def _tell_lost(self, interruption: Interruption, wait_s: float) -> None:
        """Tell of the end of a connection: the same trouble loudly once, then with its count."""
        if interruption.is_routine:
            return
        trouble = str(interruption)
        is_known = trouble == self._trouble
        self._trouble = trouble
        self._connected_is_known &= is_known
        tell = log.debug if is_known else log.warning
        tell(
            "watch_lost",
            kind=self.resource.kind,
            reason=trouble,
            tries=self._backoff.tries,
            retry_in_s=round(wait_s, 2),
            effect="what was told last stays in force",
        )
