"""Pages over loopback: real sockets and clients, a server in its thread, a clock that tests move."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest
import structlog
from structlog.testing import capture_logs

from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.accept_loop import PAUSE_S
from ipvsproxy.serve.connections import LIFE_S
from ipvsproxy.serve.http_messages import Answer, Request
from ipvsproxy.serve.listening import listen_on
from ipvsproxy.serve.page_server import RETRY_S, PageServer, Site
from tests.builders import FakeClock, addr
from tests.descriptors import no_descriptors_left

PATIENCE_S = 10.0
"""A safety limit: nothing here waits, but for the machine."""
HUGE = b"0123456789abcdef" * (1 << 20)


def greeting(request: Request) -> Answer:
    return Answer(HTTPStatus.OK, f"{request.method} {request.path}".encode())


def huge(_: Request) -> Answer:
    return Answer(HTTPStatus.OK, HUGE)


def broken(_: Request) -> Answer:
    raise UnicodeError("no such letter")


def site(port: int, address: str = "127.0.0.1") -> Site:
    return Site(
        name="healthz",
        address=addr(address),
        port=port,
        pages={"/hello": greeting, "/huge": huge, "/broken": broken},
        event="FailedToStartProxierHealthcheck",
        failure="failed to start proxy healthz",
    )


class Running:
    """A server in its thread."""

    def __init__(self, port: int, address: str = "127.0.0.1", *, must_listen: bool = False) -> None:
        self.port = port
        self.clock = FakeClock()
        self.notices: list[Notice] = []
        self.server = PageServer(site(port, address), self.clock, "n1", must_listen=must_listen)
        self.server.tell = self.notices.append
        self.failure: IpvsproxyError | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        try:
            self.server.run()
        except IpvsproxyError as error:
            self.failure = error

    def get(self, target: str, address: str = "127.0.0.1", method: str = "GET") -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(address, self.port, PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, target)
            response = connection.getresponse()
            response.body = response.read()  # type: ignore[attr-defined]
            return response

    def wait(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@contextlib.contextmanager
def serving(port: int, *addresses: str, **options: bool) -> Iterator[Running]:
    running = Running(port, *addresses, **options)
    running.thread.start()
    try:
        yield running
    finally:
        running.server.stop()
        running.thread.join(PATIENCE_S)
        assert not running.thread.is_alive()
        running.server.close()


@pytest.fixture
def port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def running(port) -> Iterator[Running]:
    with serving(port) as found:
        found.wait(lambda: found.server._loop.listeners)
        yield found


@pytest.fixture
def events():
    """Every log event, of all threads."""
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found


def test_a_page_is_answered_at_its_path_whatever_its_query_and_method(running):
    answer = running.get("/hello?x=1", method="POST")
    assert (answer.status, answer.body) == (200, b"POST /hello")


@pytest.mark.parametrize("target", ["/", "/hello/", "/other", "/hell", "*"])
def test_any_other_path_is_not_found_in_gos_words(running, target):
    answer = running.get(target)
    assert (answer.status, answer.body) == (404, b"404 page not found\n")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_page_that_raises_is_a_500_told_once_and_the_others_go_on(running, events):
    answers = [running.get(target) for target in ("/broken", "/broken?x", "/hello")]
    assert [answer.status for answer in answers] == [500, 500, 200]
    told = [event for event in events if event["event"] == "page_failed"]
    assert [(event["log_level"], event["server"], event["page"]) for event in told] == [
        ("error", "healthz", "/broken"),
        ("debug", "healthz", "/broken"),
    ]


def test_a_page_larger_than_what_a_socket_takes_at_once_comes_whole(running):
    assert running.get("/huge").body == HUGE


def test_who_does_not_read_a_large_page_keeps_nobody_waiting_and_is_closed_when_its_time_is_up(running):
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE_S) as slow:
        slow.sendall(b"GET /huge HTTP/1.1\r\n\r\n")
        running.wait(lambda: any(connection.unsent for connection in running.server._loop.connections._open))
        assert running.get("/hello").status == HTTPStatus.OK
        running.clock.now += LIFE_S
        running.get("/hello")
        running.wait(lambda: not running.server._loop.connections)


def test_nobody_wakes_a_server_that_nobody_asks(running):
    running.get("/hello")
    running.wait(lambda: not running.server._loop.connections)
    assert running.server._loop.timeout_s() is None


@pytest.mark.parametrize("asked", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_all_zeros_mean_all_addresses_of_both_families(port, address, asked):
    with serving(port, address) as running:
        running.wait(lambda: running.server._loop.listeners)
        assert running.get("/hello", asked).status == HTTPStatus.OK


def test_loopback_is_loopback_alone(running):
    with pytest.raises(ConnectionRefusedError):
        running.get("/hello", "127.0.0.2")


def test_an_address_that_is_taken_is_said_once_and_had_as_soon_as_it_is_free(port, events):
    with listen_on(addr("127.0.0.1"), port) as squatter, serving(port) as running:
        for tries in (1, 2, 3):
            running.wait(lambda tries=tries: running.server._tries == tries)
            running.clock.now += RETRY_S
            wake(running)
        squatter.close()
        running.clock.now += RETRY_S
        wake(running)
        running.wait(lambda: running.server._loop.listeners)
        assert running.get("/hello").status == HTTPStatus.OK
    assert [event["log_level"] for event in events if event["event"] == "server_cannot_listen"].count("error") == 1
    assert [(n.kind, n.name, n.reason, n.action) for n in running.notices] == [
        ("Node", "n1", "FailedToStartProxierHealthcheck", "StartKubeProxy")
    ]
    assert running.notices[0].text == (
        f"failed to start proxy healthz on 127.0.0.1:{port}: EADDRINUSE (Address already in use)"
    )


def wake(running: Running) -> None:
    """Let the server look at the clock."""
    running.server._loop.wake()


def test_an_address_that_must_be_had_and_is_taken_ends_the_server_with_the_reason(port):
    with listen_on(addr("127.0.0.1"), port), serving(port, must_listen=True) as running:
        running.thread.join(PATIENCE_S)
    assert str(running.failure) == (
        f"cannot serve healthz at 127.0.0.1:{port}: EADDRINUSE (Address already in use). "
        "Something else on this node listens there; `ss -ltnp` names it, or unset bindAddressHardFail"
    )
    assert len(running.notices) == 1


def test_an_address_that_the_node_does_not_have_is_refused(port):
    with serving(port, "192.0.2.50", must_listen=True) as running:
        running.thread.join(PATIENCE_S)
    assert running.failure is not None
    assert running.failure.why.startswith("EADDRNOTAVAIL")


@pytest.mark.parametrize("must_listen", [False, True])
def test_without_a_descriptor_clients_wait_and_the_address_stays_ours_even_where_it_must_be_had(
    port, events, must_listen
):
    with serving(port, must_listen=must_listen) as running:
        running.wait(lambda: running.server._loop.listeners)
        with socket.socket() as client:
            with no_descriptors_left():
                client.settimeout(PATIENCE_S)
                client.connect(("127.0.0.1", port))
                running.wait(lambda: len(refusals(events)) == 1)
                running.clock.now += PAUSE_S
                wake(running)
                running.wait(lambda: len(refusals(events)) == 2)
            running.clock.now += PAUSE_S
            wake(running)
            client.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert [event["log_level"] for event in refusals(events)] == ["error", "debug"]
    assert (running.failure, running.notices) == (None, [])


def refusals(events):
    return [event for event in events if event["event"] == "server_cannot_accept"]
