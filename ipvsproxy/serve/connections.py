"""Open connections of health check clients: read a request, answer, wait for the client to close.

Whoever connects is a stranger. So nobody is waited for: all sockets are non-blocking; a connection lives for `LIFE_S`
at most, whatever its client does in that time; of `MAX_CONNECTIONS` the oldest goes when another one comes, for a load
balancer's request arrives one round trip after its connection; and a connection holds `MAX_HEAD_BYTES` and one piece.

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

from ipvsproxy.clock import Clock
from ipvsproxy.serve.http_messages import Answer, Request, read_request, refusal, render
from ipvsproxy.serve.places import Place

LIFE_S = 10.0
MAX_CONNECTIONS = 256
_PIECE_BYTES = 4 << 10
_DROPPED_BYTES = 64 << 10  # who sends more after its answer is not going to read it


class Connection:
    """One accepted connection; `end_at` on the monotonic clock."""

    __slots__ = ("dropped", "end_at", "is_answered", "place", "received", "stream")

    def __init__(self, stream: socket.socket, place: Place, end_at: float) -> None:
        self.stream = stream
        self.place = place
        self.end_at = end_at
        self.received = b""
        self.is_answered = False
        self.dropped = 0


class Connections:
    """All of them; used by one thread, which owns `selector`. `answer` is asked once for each request."""

    def __init__(self, selector: selectors.BaseSelector, clock: Clock, answer: Callable[[Place], Answer]) -> None:
        self._selector = selector
        self._clock = clock
        self._answer = answer
        self._open: dict[Connection, None] = {}  # in the order of their ends

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_end(self) -> float | None:
        """When the oldest one must go."""
        return next((connection.end_at for connection in self._open), None)

    def add(self, stream: socket.socket, place: Place) -> None:
        """Take over an accepted socket."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._close(next(iter(self._open)))
        stream.settimeout(0)
        connection = Connection(stream, place, self._clock.monotonic() + LIFE_S)
        self._open[connection] = None
        self._selector.register(stream, selectors.EVENT_READ, connection)

    def read(self, connection: Connection) -> None:
        """Something has come, or the client has closed."""
        if connection not in self._open:  # closed since the selector saw it
            return
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

    def end_overdue(self) -> None:
        """Close those whose time is up."""
        now = self._clock.monotonic()
        for connection in [*self._open]:
            if connection.end_at > now:
                return
            self._close(connection)

    def close_of(self, places: set[Place]) -> None:
        """These places are no more: who has asked there hears nothing, instead of an answer without a meaning."""
        for connection in [connection for connection in self._open if connection.place in places]:
            self._close(connection)

    def close(self) -> None:
        """Close all."""
        for connection in [*self._open]:
            self._close(connection)

    def _take(self, connection: Connection, piece: bytes) -> None:
        connection.received += piece
        request = read_request(connection.received)
        if isinstance(request, Request):
            self._send(connection, self._answer(connection.place), request)
        elif isinstance(request, HTTPStatus):
            self._send(connection, refusal(request), Request("GET"))

    def _send(self, connection: Connection, answer: Answer, request: Request) -> None:
        message = render(answer, request, time.time())
        connection.received = b""
        connection.is_answered = True
        try:
            sent = connection.stream.send(message)  # into an empty buffer: all of it or, without memory, nothing
            connection.stream.shutdown(socket.SHUT_WR)
        except OSError:
            sent = 0
        if sent < len(message):
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        del self._open[connection]
        self._selector.unregister(connection.stream)
        with contextlib.suppress(OSError):
            connection.stream.close()
