"""The loop that every server here runs in its thread: take in who waits at its listeners, let connections move on.

It sleeps while nobody asks and nothing is due. A listener that cannot accept, for want of files or for whatever reason
the system gives, pauses: its clients wait in its queue, and it keeps its address. The selector would report it without
a pause otherwise.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import describe_errno
from ipvsproxy.serve.connections import Connection, Connections
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.listening import listening_hint

log = structlog.get_logger()

PAUSE_S = 1.0  # Go's net/http waits as long for want of files
_ACCEPTED_AT_ONCE = 16

P = TypeVar("P", bound=Hashable)  # where a listener is, in words of the server that print as an address


class AcceptLoop(Generic[P]):
    """`name` is the server's in the log. `answer` is asked once for each request, with the place where it came in.

    All but `wake` and `stop` belongs to the thread that runs it. `listeners`: read only.
    """

    def __init__(self, name: str, clock: Clock, answer: Callable[[P, Request], Answer]) -> None:
        self.listeners: dict[P, socket.socket] = {}
        self._name = name
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._is_stopped = False
        self._paused: dict[P, float] = {}  # until when, on the monotonic clock
        self._is_short = False
        self.connections: Connections[P] = Connections(self._selector, clock, answer)

    def wake(self) -> None:
        """Make it call its work soon; from any thread."""
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._is_stopped = True
        self.wake()

    def run(self, work: Callable[[], float | None]) -> None:
        """Until `stop` is called. Raises what `work` raises.

        `work` is called at each turn, before anybody is answered, and says when it wants to be called again (monotonic
        seconds), if nothing happens before.
        """
        try:
            due = work()
            while not self._is_stopped:
                due = self._turn(work, due)
        finally:
            self.shut({*self.listeners})
            self.connections.close()

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._selector.close()
        os.close(self._wake)

    def open(self, place: P, listener: socket.socket) -> None:
        """Take over a socket that listens."""
        self.listeners[place] = listener
        self._selector.register(listener, selectors.EVENT_READ, _Listening(place))

    def shut(self, places: Iterable[P]) -> None:
        """Close the listeners there, and the connections that came in by them."""
        gone = {*places}
        for place in gone:
            listener = self.listeners.pop(place, None)
            if listener is not None:
                if self._paused.pop(place, None) is None:
                    self._selector.unregister(listener)
                listener.close()
        if gone:
            self.connections.close_of(gone)

    def timeout_s(self, due: float | None = None) -> float | None:
        """How long to sleep where work is due then; None: until something happens."""
        times = [at for at in (due, self.connections.next_end, *self._paused.values()) if at is not None]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def _turn(self, work: Callable[[], float | None], due: float | None) -> float | None:
        events = self._selector.select(self.timeout_s(due))
        due = work()
        for key, _ in events:
            if isinstance(key.data, Connection):
                self.connections.move_on(key.data)
            elif isinstance(key.data, _Listening):
                self._accept(key.data.place)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        self.connections.end_overdue()
        self._resume()
        return due

    def _accept(self, place: P) -> None:
        """Take in who waits there, some at a time so that the others have their turn."""
        for _ in range(_ACCEPTED_AT_ONCE):
            listener = self.listeners.get(place)
            if listener is None or place in self._paused:  # closed since the selector saw it
                return
            try:
                stream, _ = listener.accept()
            except BlockingIOError:
                self._is_short = False
                return
            except ConnectionError:  # what has happened to the client meanwhile: accept(2)
                continue
            except OSError as error:
                self._pause(place, listener, error.errno or 0)
                return
            self.connections.add(stream, place)

    def _pause(self, place: P, listener: socket.socket, number: int) -> None:
        """Let the clients there wait; said once, whichever listener it is, until one has accepted all of its own."""
        self._selector.unregister(listener)
        self._paused[place] = self._clock.monotonic() + PAUSE_S
        (log.debug if self._is_short else log.error)(
            "server_cannot_accept",
            server=self._name,
            address=str(place),
            errno=describe_errno(number),
            hint=listening_hint(number),
            retry_in_s=PAUSE_S,
        )
        self._is_short = True

    def _resume(self) -> None:
        now = self._clock.monotonic()
        for place in [place for place, at in self._paused.items() if at <= now]:
            del self._paused[place]
            self._selector.register(self.listeners[place], selectors.EVENT_READ, _Listening(place))


class _Listening(Generic[P]):
    """What the selector gives back for a listener: its place, which may be of any type."""

    __slots__ = ("place",)

    def __init__(self, place: P) -> None:
        self.place = place
