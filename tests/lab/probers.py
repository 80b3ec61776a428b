"""Clients that never stop asking, each in a process of its own, while something else happens to the node.

`Asker` waits for each answer and keeps account of what failed: nobody who may come should notice anything. `Knocker`
waits for nothing and keeps account of what was let through: nobody else should ever be.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Self

from tests.lab.hosts import Namespace
from tests.lab.traffic import Transport, ask, family_of

_FORK = multiprocessing.get_context("fork")
_PAUSE_S = 0.02
_LAST_LOOK_S = 1.0
_HELD = 64
"""Connections that may still be answered; older ones are given up."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Account:
    """Questions asked, those of them that came to something, and the first few errors of the rest."""

    asked: int
    succeeded: int
    errors: tuple[str, ...] = ()


class _Prober:
    """Sends to these addresses between the ends of a `with` block; `account` is there afterwards."""

    account: Account

    def __init__(self, host: Namespace, addresses: Sequence[str], port: int) -> None:
        self._host, self._addresses, self._port = host, addresses, port
        self._asked = _FORK.Value("Q", 0)
        self._ours, self._theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=self._run, name=type(self).__name__, daemon=True)

    @property
    def asked(self) -> int:
        """Rounds of questions so far."""
        return int(self._asked.value)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.send(None)
        self.account = self._ours.recv()
        self._process.join()
        self._ours.close()
        self._theirs.close()

    def _run(self) -> None:
        self._theirs.send(self._probe(lambda: self._theirs.poll(_PAUSE_S)))

    def _probe(self, has_ended: Callable[[], bool]) -> Account:
        raise NotImplementedError


class Asker(_Prober):
    """Asks over TCP and UDP in turn, each time from a new port."""

    def _probe(self, has_ended: Callable[[], bool]) -> Account:
        asked, errors = 0, list[str]()
        while not has_ended():
            for address, transport in product(self._addresses, (Transport.TCP, Transport.UDP)):
                asked += 1
                sent = datetime.now(UTC)
                try:
                    ask(self._host, address, self._port, transport)
                except OSError as error:
                    errors.append(f"{sent:%H:%M:%S.%f} {transport.name} to {address}: {error!r}")
            self._asked.value += 1
        return Account(asked, asked - len(errors), tuple(errors[:_SHOWN]))


class Knocker(_Prober):
    """Sends datagrams from one port, which would be answered however late, and begins TCP connections."""

    def _probe(self, has_ended: Callable[[], bool]) -> Account:
        asked = succeeded = 0
        datagrams = [self._begin(address, Transport.UDP) for address in self._addresses]
        streams: deque[socket.socket] = deque()
        while not has_ended():
            for opened in datagrams:
                with contextlib.suppress(OSError):
                    opened.send(b"who is there?\n")
            streams.extend(self._begin(address, Transport.TCP) for address in self._addresses)
            asked += 2 * len(self._addresses)
            succeeded += _let_through(datagrams, streams, wait_s=0)
            while len(streams) > _HELD:
                streams.popleft().close()
            self._asked.value += 1
        succeeded += _let_through(datagrams, streams, wait_s=_LAST_LOOK_S)
        for opened in (*datagrams, *streams):
            opened.close()
        return Account(asked, succeeded)

    def _begin(self, address: str, transport: Transport) -> socket.socket:
        opened = self._host.socket(family_of(address), *transport.value)
        opened.settimeout(0)
        with contextlib.suppress(OSError):  # in progress; or there is no way at this moment
            opened.connect((address, self._port))
        return opened


def _let_through(datagrams: Sequence[socket.socket], streams: deque[socket.socket], *, wait_s: float) -> int:
    """Datagrams that came back and connections that stand; what has been refused is given up."""
    poller = select.poll()
    for opened in datagrams:
        poller.register(opened, select.POLLIN)
    for opened in streams:
        poller.register(opened, select.POLLOUT)
    ready = {number for number, _ in poller.poll(wait_s * 1000)}
    count = 0
    for opened in datagrams:
        with contextlib.suppress(OSError):  # nothing there; or an ICMP error, which is no answer
            count += bool(opened.recv(64))
    for opened in [stream for stream in streams if stream.fileno() in ready]:
        with contextlib.suppress(OSError):  # refused, or there was no way
            count += bool(opened.getpeername())
        streams.remove(opened)
        opened.close()
    return count
