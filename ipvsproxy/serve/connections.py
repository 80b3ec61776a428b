"""Open connections of who asks us something: read a request, answer, wait for the client to close.

Whoever connects is a stranger. So nobody is waited for: all sockets are non-blocking; a connection lives for `LIFE_S`
at most, whatever its client does in that time; of `MAX_CONNECTIONS` the oldest goes when another one comes, for a load
balancer's request arrives one round trip after its connection; and a connection holds `MAX_HEAD_BYTES` and one piece,
or what its client has not taken of an answer.

After an answer our side is shut and what still comes is dropped until the client closes. Closing at once would, where
something lies unread (a body, a second request), send a reset that can overtake the answer: RFC 9112 §9.6.
differs: Go's server, which kube-proxy uses, waits without an end and holds 1 MB, for any number of connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Generic, TypeVar

from ipvsproxy.clock import Clock
from ipvsproxy.serve.http_messages import Answer, Request, read_request, refusal, render

LIFE_S = 10.0
MAX_CONNECTIONS = 256
_PIECE_BYTES = 4 << 10
_DROPPED_BYTES = 64 << 10  # who sends more after its answer is not going to read it

P = TypeVar("P")  # where somebody connected, in whatever words the server has for it


class Connection(Generic[P]):
    """One accepted connection; `end_at` on the monotonic clock. `unsent`: what the kernel has not taken yet."""

    __slots__ = ("dropped", "end_at", "is_answered", "place", "received", "stream", "unsent")

    def __init__(self, stream: socket.socket, place: P, end_at: float) -> None:
        self.stream = stream
        self.place = place
        self.end_at = end_at
        self.received = b""
        self.unsent = memoryview(b"")
        self.is_answered = False
        self.dropped = 0


class Connections(Generic[P]):
    """All of them; used by one thread, which owns `selector`. `answer` is asked once for each request."""

    def __init__(self, selector: selectors.BaseSelector, clock: Clock, answer: Callable[[P, Request], Answer]) -> None:
        self._selector = selector
        self._clock = clock
        self._answer = answer
        self._open: dict[Connection[P], None] = {}  # in the order of their ends

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_end(self) -> float | None:
        """When the oldest one must go."""
        return next((connection.end_at for connection in self._open), None)

    def add(self, stream: socket.socket, place: P) -> None:
        """Take over an accepted socket."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._close(next(iter(self._open)))
        stream.settimeout(0)
        connection = Connection(stream, place, self._clock.monotonic() + LIFE_S)
        self._open[connection] = None
        self._selector.register(stream, selectors.EVENT_READ, connection)

    def move_on(self, connection: Connection[P]) -> None:
        """The selector reports it: room for more of the answer, something that has come, or the client's end."""
        if connection not in self._open:  # closed since the selector saw it
            return
        if connection.unsent:
            self._send(connection)
        else:
            self._read(connection)

    def end_overdue(self) -> None:
        """Close those whose time is up."""
        now = self._clock.monotonic()
        for connection in [*self._open]:
            if connection.end_at > now:
                return
            self._close(connection)

    def close_of(self, places: set[P]) -> None:
        """These places are no more: who has asked there hears nothing, instead of an answer without a meaning."""
        for connection in [connection for connection in self._open if connection.place in places]:
            self._close(connection)

    def close(self) -> None:
        """Close all."""
        for connection in [*self._open]:
            self._close(connection)

    def _read(self, connection: Connection[P]) -> None:
        try:
            piece = connection.stream.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._close(connection)
        elif connection.is_answered:
            connection.dropped += len(piece)
            if connection.dropped > _DROPPED_BYTES:
                self._close(connection)
        else:
            self._take(connection, piece)

    def _take(self, connection: Connection[P], piece: bytes) -> None:
        connection.received += piece
        request = read_request(connection.received)
        if isinstance(request, Request):
            self._answer_with(connection, self._answer(connection.place, request), request)
        elif isinstance(request, HTTPStatus):
            self._answer_with(connection, refusal(request), Request("GET"))

    def _answer_with(self, connection: Connection[P], answer: Answer, request: Request) -> None:
        connection.unsent = memoryview(render(answer, request, time.time()))
        connection.received = b""
        connection.is_answered = True
        self._send(connection)

    def _send(self, connection: Connection[P]) -> None:
        """Send what the kernel takes now; what is left goes when the selector sees room for it."""
        try:
            connection.unsent = connection.unsent[connection.stream.send(connection.unsent) :]
            if not connection.unsent:
                connection.stream.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        wanted = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        if self._selector.get_key(connection.stream).events != wanted:
            self._selector.modify(connection.stream, wanted, connection)

    def _close(self, connection: Connection[P]) -> None:
        del self._open[connection]
        self._selector.unregister(connection.stream)
        with contextlib.suppress(OSError):
            connection.stream.close()
