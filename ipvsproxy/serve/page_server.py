"""Pages at one address: the health server's, those of the metrics server, and what only root may ask.

A thread for each server, which sleeps while nobody asks. Pages are made there, from what the sync thread has published;
they never call into it. Where an address cannot be listened at, that is tried again every five seconds for ever, or
ends the daemon where `bindAddressHardFail` asks for it.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/server.go (serveHealthz, serveMetrics).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar, TypeAlias

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import IpvsproxyError, describe_errno
from ipvsproxy.model.addr import PackedAddr, format_endpoint
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.accept_loop import AcceptLoop
from ipvsproxy.serve.http_messages import Answer, Request, refusal
from ipvsproxy.serve.listening import listen_on, listening_hint
from ipvsproxy.serve.local_socket import listen_at, local_hint

log = structlog.get_logger()

RETRY_S = 5.0

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

    is_vital: ClassVar[bool] = True

    def __str__(self) -> str:
        return format_endpoint(self.address, self.port)

    def listen(self) -> socket.socket:
        """A non-blocking socket that listens there. Raises OSError."""
        return listen_on(self.address, self.port)

    def hint(self, number: int) -> str:
        """What the operator can do about an errno of `listen`."""
        return listening_hint(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite:
    """A server for this node's root alone, at a Unix socket. The daemon can do without."""

    name: str
    path: str
    pages: Mapping[str, Page]
    event: ClassVar[str] = ""
    failure: ClassVar[str] = "cannot listen"
    is_vital: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.path

    def listen(self) -> socket.socket:
        """A non-blocking socket that listens there. Raises OSError."""
        return listen_at(self.path)

    def hint(self, number: int) -> str:
        """What the operator can do about an errno of `listen`."""
        return local_hint(number, self.path)


class PageServer:
    """Serves `site`. `must_listen`: an address that cannot be had ends `run` with IpvsproxyError.

    `tell` is called with the Event about that; it must not wait. `node_name`: the Node that it is about.
    """

    def __init__(self, site: Site | LocalSite, clock: Clock, node_name: str, *, must_listen: bool = False) -> None:
        self.tell: Callable[[Notice], None] = lambda _: None
        self._site = site
        self._clock = clock
        self._node_name = node_name
        self._must_listen = must_listen
        self._retry_at: float | None = clock.monotonic()  # when to listen; None: it does
        self._tries = 0
        self._failed: set[str] = set()  # paths of pages
        self._loop: AcceptLoop[str] = AcceptLoop(site.name, clock, self._answer)

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._loop.stop()

    def run(self) -> None:
        """Answer until `stop` is called. Raises IpvsproxyError where it must listen and cannot."""
        self._loop.run(self._work)

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._loop.close()

    def _work(self) -> float | None:
        """Listen where that is due; when to try again."""
        if self._retry_at is not None and self._clock.monotonic() >= self._retry_at:
            self._listen()
        return self._retry_at

    def _answer(self, _: str, request: Request) -> Answer:
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

    def _listen(self) -> None:
        try:
            listener = self._site.listen()
        except OSError as error:
            self._refuse(error)
            return
        self._loop.open(str(self._site), listener)
        self._retry_at = None
        log.info("server_listens", server=self._site.name, address=str(self._site), tries=self._tries + 1)
        self._tries = 0

    def _refuse(self, error: OSError) -> None:
        """Say it once, and try again later; or give up."""
        reason, hint = describe_errno(error.errno or 0), self._site.hint(error.errno or 0)
        text = f"{self._site.failure} on {self._site}: {reason}"
        self._tries += 1
        if self._tries == 1 and self._site.event:
            self.tell(Notice("Node", "", self._node_name, "", self._site.event, "StartKubeProxy", text))
        if self._must_listen:
            raise IpvsproxyError(
                f"cannot serve {self._site.name} at {self._site}", reason, f"{hint}, or unset bindAddressHardFail"
            ) from error
        loudly = log.error if self._site.is_vital else log.warning
        (loudly if self._tries == 1 else log.debug)(
            "server_cannot_listen",
            server=self._site.name,
            address=str(self._site),
            errno=reason,
            hint=hint,
            tries=self._tries,
            retry_in_s=RETRY_S,
        )
        self._retry_at = self._clock.monotonic() + RETRY_S
