"""The loop of all servers: a listener that cannot accept pauses, whatever the reason, and no other does."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from ipvsproxy.serve.accept_loop import PAUSE_S, AcceptLoop
from ipvsproxy.serve.connections import LIFE_S
from ipvsproxy.serve.http_messages import Answer, Request
from tests.builders import FakeClock

GET = b"GET / HTTP/1.1\r\n\r\n"


class Listener(socket.socket):
    """Listens on loopback; `accept` fails with `number` while that is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.tries = 0
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.settimeout(0)

    def accept(self):
        self.tries += 1
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return super().accept()

    @property
    def client(self) -> socket.socket:
        """Somebody who has connected and asked."""
        client = socket.create_connection(self.getsockname(), 10)
        client.sendall(GET)
        return client


class Turned:
    """A loop that the test turns by hand, with a listener at each of two places."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop: AcceptLoop[str] = AcceptLoop("test", self.clock, self.answer)
        self.a, self.b = Listener(), Listener()
        self.loop.open("a", self.a)
        self.loop.open("b", self.b)
        self.worked = 0

    def answer(self, place: str, _: Request) -> Answer:
        return Answer(HTTPStatus.OK, place.encode())

    def work(self) -> float | None:
        self.worked += 1
        return None

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.wake()  # so that no turn sleeps
            self.loop._turn(self.work, None)


@pytest.fixture
def turned() -> Iterator[Turned]:
    found = Turned()
    yield found
    found.loop.shut({*found.loop.listeners})
    found.loop.connections.close()
    found.loop.close()


def answered(client: socket.socket) -> bytes:
    with client:
        return client.recv(1000).rpartition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPERM, errno.EPROTO, errno.EINVAL])
def test_a_listener_that_cannot_accept_is_not_tried_again_until_its_pause_is_over(turned, number):
    turned.a.number = number
    client = turned.a.client
    turned.turn(20)
    assert turned.a.tries == 1
    turned.clock.now += PAUSE_S - 0.01
    turned.turn(2)
    assert turned.a.tries == 1
    turned.a.number = 0
    turned.clock.now += 0.01
    turned.turn(4)
    assert answered(client) == b"a"


def test_who_asks_at_another_listener_is_answered_meanwhile(turned):
    turned.a.number = errno.EMFILE
    with turned.a.client:
        turned.turn(2)
        other = turned.b.client
        turned.turn(3)
        assert answered(other) == b"b"


def test_a_shortage_is_said_once_for_all_listeners_until_it_is_over(turned):
    turned.a.number = turned.b.number = errno.EMFILE
    with turned.a.client, turned.b.client, capture_logs() as logs:
        turned.turn(2)
        turned.clock.now += PAUSE_S
        turned.turn(2)
        turned.a.number = turned.b.number = 0
        turned.clock.now += PAUSE_S
        turned.turn(3)
        turned.a.number = errno.EMFILE
        with turned.a.client:
            turned.turn(2)
    told = [(log["log_level"], log["address"]) for log in logs if log["event"] == "server_cannot_accept"]
    assert [level for level, _ in told] == ["error", "debug", "debug", "debug", "error"]
    assert told[-1] == ("error", "a")


def test_a_client_that_has_gone_is_no_reason_to_pause(turned):
    turned.a.number = errno.ECONNABORTED
    with turned.a.client, capture_logs() as logs:
        turned.turn()
        turned.a.number = 0
        turned.turn()
        assert len(turned.loop.connections) == 1
    assert logs == []


def test_a_listener_may_be_shut_while_it_pauses(turned):
    turned.a.number = errno.EMFILE
    with turned.a.client, contextlib.suppress(ConnectionError):
        turned.turn()
        turned.loop.shut(["a"])
        turned.clock.now += PAUSE_S
        turned.turn(2)
    assert turned.loop.listeners == {"b": turned.b}


def test_it_sleeps_until_the_first_of_all_that_is_due(turned):
    assert turned.loop.timeout_s() is None
    assert turned.loop.timeout_s(due=7.0) == 7.0
    with turned.b.client:
        turned.turn(2)
        assert turned.loop.timeout_s() == LIFE_S
        turned.a.number = errno.EMFILE
        with turned.a.client:
            turned.turn()
            assert turned.loop.timeout_s(due=7.0) == PAUSE_S


def test_work_is_done_before_anybody_is_answered(turned):
    order: list[str] = []

    def work() -> None:
        order.append("work")

    answer = turned.loop.connections._answer
    turned.loop.connections._answer = lambda place, request: order.append("answer") or answer(place, request)
    with turned.a.client:
        turned.loop._turn(work, None)
        turned.loop._turn(work, None)
    assert order == ["work", "work", "answer"]
