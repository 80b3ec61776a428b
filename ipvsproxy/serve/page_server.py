"""Pages at one address: the health server's, and those of the metrics server.

A thread for each server, which sleeps while nobody asks. Pages are made there, from what the sync thread has published;
they never call into it. Where an address cannot be listened at, that is tried again every five seconds for ever, or
ends the daemon where `bindAddressHardFail` asks for it.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go (serveHealthz, serveMetrics).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import IpvsproxyError, describe_errno
from ipvsproxy.model.addr import PackedAddr, format_endpoint
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.connections import Connection, Connections
from ipvsproxy.serve.http_messages import Answer, Request, refusal
from ipvsproxy.serve.listening import listen_on, listening_hint

log = structlog.get_logger()

RETRY_S = 5.0
PAUSE_S = 1.0  # Go's net/http waits as long for want of files
_ACCEPTED_AT_ONCE = 16

Page: TypeAlias = Callable[[Request], Answer]

# To the byte what Go's http.NotFound answers.
NOT_FOUND = Answer(
    HTTPStatus.NOT_FOUND,
    b"404 page not found\n",
    {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A server in words: `name` for the log, `event` and `failure` for the Event on our Node when it cannot listen."""

    name: str
    address: PackedAddr
    port: int
    pages: Mapping[str, Page]
    event: str
    failure: str

    def __str__(self) -> str:
        return format_endpoint(self.address, self.port)


class PageServer:
    """Serves `site`. `must_listen`: an address that cannot be had ends `run` with IpvsproxyError.

    `tell` is called with the Event about that; it must not wait. `node_name`: the Node that it is about.
    """

    def __init__(self, site: Site, clock: Clock, node_name: str, *, must_listen: bool = False) -> None:
        self.tell: Callable[[Notice], None] = lambda _: None
        self._site = site
        self._clock = clock
        self._node_name = node_name
        self._must_listen = must_listen
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._is_stopped = False
        self._listener: socket.socket | None = None
        self._retry_at: float | None = None
        self._tries = 0
        self._is_short = False
        self._failed: set[str] = set()  # paths of pages
        self._connections: Connections[None] = Connections(self._selector, clock, self._answer)

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._is_stopped = True
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Answer until `stop` is called. Raises IpvsproxyError where it must listen and cannot."""
        try:
            self._listen()
            while not self._is_stopped:
                self._turn()
        finally:
            self._stop_listening()
            self._connections.close()

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._selector.close()
        os.close(self._wake)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            if isinstance(key.data, Connection):
                self._connections.move_on(key.data)
            elif key.fileobj == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif self._listener is not None:
                self._accept(self._listener)
        self._connections.end_overdue()
        if self._retry_at is not None and self._clock.monotonic() >= self._retry_at:
            self._try_again()

    def _timeout_s(self) -> float | None:
        """Until something is due; None without anything that is."""
        due = [at for at in (self._connections.next_end, self._retry_at) if at is not None]
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    def _answer(self, _: None, request: Request) -> Answer:
        page = self._site.pages.get(request.path)
        if page is None:
            return NOT_FOUND
        try:
            return page(request)
        except Exception:  # noqa: BLE001  # a stranger's request must not end the daemon, whatever page is wrong
            self._tell_failure(request.path)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _tell_failure(self, path: str) -> None:
        """Log the exception in flight; once for each page, for scrapes come for ever."""
        (log.debug if path in self._failed else log.error)(
            "page_failed", server=self._site.name, page=path, exc_info=True
        )
        self._failed.add(path)

    def _try_again(self) -> None:
        self._retry_at = None
        if self._listener is None:
            self._listen()
        else:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _listen(self) -> None:
        try:
            self._listener = listen_on(self._site.address, self._site.port)
        except OSError as error:
            self._refuse(error)
            return
        self._selector.register(self._listener, selectors.EVENT_READ)
        log.info("server_listens", server=self._site.name, address=str(self._site), tries=self._tries + 1)
        self._tries = 0

    def _refuse(self, error: OSError) -> None:
        """Say it once, and try again later; or give up."""
        reason, hint = describe_errno(error.errno or 0), listening_hint(error.errno or 0)
        text = f"{self._site.failure} on {self._site}: {reason}"
        self._tries += 1
        if self._tries == 1:
            self.tell(Notice("Node", "", self._node_name, "", self._site.event, "StartKubeProxy", text))
        if self._must_listen:
            raise IpvsproxyError(
                f"cannot serve {self._site.name} at {self._site}", reason, f"{hint}, or unset bindAddressHardFail"
            ) from error
        (log.error if self._tries == 1 else log.debug)(
            "server_cannot_listen",
            server=self._site.name,
            address=str(self._site),
            errno=reason,
            hint=hint,
            tries=self._tries,
            retry_in_s=RETRY_S,
        )
        self._retry_at = self._clock.monotonic() + RETRY_S

    def _stop_listening(self) -> None:
        if self._listener is not None:
            if self._retry_at is None:  # else it pauses
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        """Take in who waits there, some at a time so that the others have their turn."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                stream, _ = listener.accept()
            except BlockingIOError:
                self._is_short = False
                return
            except ConnectionError:  # what has happened to the client meanwhile: accept(2)
                continue
            except OSError as error:
                self._pause(listener, error)
                return
            self._connections.add(stream, None)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Out of files or the like: let clients wait. The selector would report them all the time.

        The address is kept, so this is never a failure to listen, which may end the daemon.
        """
        self._selector.unregister(listener)
        self._retry_at = self._clock.monotonic() + PAUSE_S
        (log.debug if self._is_short else log.error)(
            "server_cannot_accept",
            server=self._site.name,
            address=str(self._site),
            errno=describe_errno(error.errno or 0),
            hint=listening_hint(error.errno or 0),
            retry_in_s=PAUSE_S,
        )
        self._is_short = True
