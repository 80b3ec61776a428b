"""The listeners and their clients, over loopback: real sockets, a server in its thread, a clock that tests move."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from ipvsproxy.cluster.health_check import HealthCheck, HealthSnapshot
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notices import Notice
from ipvsproxy.serve.accept_loop import PAUSE_S
from ipvsproxy.serve.connections import LIFE_S, MAX_CONNECTIONS
from ipvsproxy.serve.http_messages import MAX_HEAD_BYTES
from ipvsproxy.serve.listening import listen
from ipvsproxy.serve.node_port_server import FIRST_RETRY_S, LONGEST_RETRY_S, NodePortServer
from ipvsproxy.serve.places import Place
from tests.builders import FakeClock, addr
from tests.descriptors import no_descriptors_left

PATIENCE_S = 10.0
"""A safety limit: nothing here waits, but for the machine."""
GET = b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n"
V4 = "127.0.0.1"
MANY = 1000


class Running:
    """A server in its thread. Ports are numbered from `base`: free ones, below those that clients get."""

    def __init__(self, base: int, max_listeners: int = 5000) -> None:
        self.base = base
        self.clock = FakeClock()
        self.healthy = True
        self.server = NodePortServer(self.clock, max_listeners)
        self.thread = threading.Thread(target=self.server.run, args=(lambda: self.healthy,), daemon=True)

    def tell(self, checks: Mapping[str, HealthCheck], *addresses: str) -> None:
        """Publish, and come back when the server has taken it."""
        named = {ServiceName("default", name): check for name, check in checks.items()}
        self.server.publish(HealthSnapshot(named, tuple(map(addr, addresses or (V4,)))))
        self.wait(lambda: self.server._taken is self.server._published)
        self.turn()

    def pass_time(self, seconds: float) -> None:
        """Let the clock run, and the server see it."""
        self.clock.now += seconds
        self.turn()

    def turn(self) -> None:
        """Come back when the server has gone through its loop once more."""
        done = threading.Event()
        end_overdue = self.server._loop.connections.end_overdue

        def ended() -> None:
            end_overdue()
            if threading.current_thread() is self.thread:
                done.set()

        self.server._loop.connections.end_overdue = ended  # type: ignore[method-assign]
        for _ in range(2):  # the first may have begun before the clock moved
            done.clear()
            self.server.publish(self.server._published)
            assert done.wait(PATIENCE_S)
        self.server._loop.connections.end_overdue = end_overdue  # type: ignore[method-assign]

    def wait(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            assert self.thread.is_alive()
            time.sleep(0.001)

    def connect(self, offset: int = 0, address: str = V4) -> socket.socket:
        """A connection to the port `base` + `offset`."""
        return socket.create_connection((address, self.base + offset), PATIENCE_S)

    def ask(self, offset: int = 0, request: bytes = GET, address: str = V4) -> bytes:
        """The whole answer to `request`."""
        with self.connect(offset, address) as client:
            client.sendall(request)
            return whole(client)

    def count(self, offset: int = 0, address: str = V4) -> tuple[int, int]:
        """Status and number of endpoints that a client is told."""
        answer = self.ask(offset, address=address)
        return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])["localEndpoints"]

    def refuses(self, offset: int = 0, address: str = V4) -> bool:
        """Whether nobody listens there."""
        try:
            self.connect(offset, address).close()
        except ConnectionRefusedError:
            return True
        return False


def whole(client: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def ended(client: socket.socket) -> bool:
    """Whether the other side closes without a word."""
    try:
        return whole(client) == b""
    except ConnectionResetError:
        return True


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


def check(running: Running, offset: int = 0, four: int = 1, six: int | None = None) -> HealthCheck:
    counts = {Family.IPV4: four} | ({} if six is None else {Family.IPV6: six})
    return HealthCheck(running.base + offset, counts)


def free_base(count: int = 20, address: str = "") -> int:
    """The first of `count` ports that nobody listens at, on any address or on this one."""
    while True:
        base = random.SystemRandom().randrange(20000, 32000 - count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(base, base + count):
                stack.enter_context(socket.socket()).bind((address, number))
            return base


@contextlib.contextmanager
def serving(base: int, **options) -> Iterator[Running]:
    running = Running(base, **options)
    running.thread.start()
    try:
        yield running
    finally:
        running.server.stop()
        running.thread.join(PATIENCE_S)
        assert not running.thread.is_alive()
        running.server.close()


@pytest.fixture
def running() -> Iterator[Running]:
    with serving(free_base()) as found:
        yield found


@pytest.fixture
def events():
    """Every log event, of all threads."""
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found


# Answers


def test_k29_the_answer_tells_the_count_in_json(running):
    running.tell({"web": check(running, four=2)})
    head, _, body = running.ask().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    assert json.loads(body) == {
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": 2,
        "serviceProxyHealthy": True,
    }


@pytest.mark.parametrize(
    "request_sent",
    [
        pytest.param(b"GET /any/path?x=%20 HTTP/1.1\r\nHost: n1\r\n\r\n", id="any path"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", id="POST with a body"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\n\r\n", id="OPTIONS"),
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", id="HTTP/1.0"),
        pytest.param(GET + GET, id="two at once: the first is answered"),
        pytest.param(b"PUT / HTTP/1.1\r\n\r\n" + b"x" * 30000, id="a body longer than we read before the answer"),
    ],
)
def test_any_request_is_answered(running, request_sent):
    running.tell({"web": check(running)})
    assert status_of(running.ask(request=request_sent)) == HTTPStatus.OK


@pytest.mark.parametrize(
    "request_sent,status",
    [
        pytest.param(b"\x16\x03\x01\x02\0\x01\0", 400, id="TLS"),
        pytest.param(bytes(range(255, 9, -1)) * 12, 400, id="noise"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES, 431, id="a huge header"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
    ],
)
def test_what_is_no_request_is_told_so(running, request_sent, status):
    running.tell({"web": check(running)})
    assert status_of(running.ask(request=request_sent)) == status


def test_each_family_is_told_its_own_count_on_one_port_of_all_addresses(running):
    running.tell({"web": check(running, four=2, six=0)}, "0.0.0.0", "::")
    assert (running.count(address="127.0.0.1"), running.count(address="::1")) == ((200, 2), (503, 0))


def test_a_service_of_one_family_is_not_asked_about_in_the_other(running):
    running.tell({"web": check(running)}, "0.0.0.0", "::")
    assert running.refuses(address="::1")


def test_k17_the_first_answer_after_the_last_endpoint_went_says_so(running):
    running.tell({"web": check(running, four=1)})
    with running.connect() as early:  # connected before, asks after
        running.tell({"web": check(running, four=0)})
        early.sendall(GET)
        assert status_of(whole(early)) == HTTPStatus.SERVICE_UNAVAILABLE
    assert running.count() == (503, 0)


def test_a_proxy_that_does_not_do_its_work_is_told(running):
    running.tell({"web": check(running, four=2)})
    running.healthy = False
    answer = running.ask()
    assert (status_of(answer), b'"serviceProxyHealthy": false' in answer) == (503, True)


# Clients that behave badly


def test_a_silent_client_keeps_nobody_waiting_and_is_closed_when_its_time_is_up(running):
    running.tell({"web": check(running)})
    with running.connect() as silent:
        assert running.count() == (200, 1)
        running.pass_time(LIFE_S)
        assert ended(silent)


def test_a_client_that_sends_byte_by_byte_has_no_more_time_than_others(running):
    running.tell({"web": check(running)})
    with running.connect() as slow:
        running.wait(lambda: len(running.server._loop.connections) == 1)
        for byte in GET[:20]:
            slow.sendall(bytes([byte]))
            running.pass_time(LIFE_S / 20)
        assert ended(slow)


def test_a_client_may_take_its_time_within_that(running):
    running.tell({"web": check(running)})
    with running.connect() as slow:
        slow.sendall(GET[:20])
        running.pass_time(LIFE_S - 1)
        slow.sendall(GET[20:])
        assert status_of(whole(slow)) == HTTPStatus.OK


def test_a_client_that_keeps_its_connection_after_the_answer_is_closed_when_its_time_is_up(running):
    running.tell({"web": check(running)})
    with running.connect() as lasting:
        lasting.sendall(GET)
        assert status_of(whole(lasting)) == HTTPStatus.OK
        assert len(running.server._loop.connections) == 1
        running.pass_time(LIFE_S)
        assert len(running.server._loop.connections) == 0


def test_a_client_that_sends_without_an_end_is_cut_off(running):
    running.tell({"web": check(running)})
    with running.connect() as client:
        client.sendall(GET)
        with pytest.raises(ConnectionError):
            flood(client)


def flood(client: socket.socket) -> None:
    while True:
        client.sendall(b"x" * 65536)


def test_a_client_that_resets_its_connection_is_forgotten(running):
    running.tell({"web": check(running)})
    client = running.connect()
    client.sendall(b"GET ")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    running.wait(lambda: not len(running.server._loop.connections))
    assert running.count() == (200, 1)


def test_of_too_many_clients_the_oldest_goes_and_the_newest_is_answered(running):
    running.tell({"web": check(running)})
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(running.connect()) for _ in range(MAX_CONNECTIONS)]
        running.wait(lambda: len(running.server._loop.connections) == MAX_CONNECTIONS)
        assert running.count() == (200, 1)
        assert ended(silent[0])
        silent[-1].sendall(GET)
        assert status_of(whole(silent[-1])) == HTTPStatus.OK


def test_many_clients_at_once_are_all_answered(running):
    running.tell({"web": check(running)})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running.connect()) for _ in range(200)]
        for client in clients:
            client.sendall(GET)
        assert {status_of(whole(client)) for client in clients} == {HTTPStatus.OK}


# Services that come, go and change


def test_k29_the_port_of_a_service_that_is_gone_is_closed(running):
    running.tell({"web": check(running), "other": check(running, 1)})
    running.tell({"other": check(running, 1)})
    assert (running.refuses(), running.count(1)) == (True, (200, 1))


def test_who_has_not_asked_yet_when_the_service_goes_is_closed_without_an_answer(running):
    running.tell({"web": check(running)})
    with running.connect() as late:
        running.wait(lambda: len(running.server._loop.connections) == 1)
        running.tell({})
        with contextlib.suppress(OSError):
            late.sendall(GET)
        assert ended(late)


def test_a_changed_port_is_closed_and_the_new_one_open(running):
    running.tell({"web": check(running, 0)})
    running.tell({"web": check(running, 1)})
    assert (running.refuses(0), running.count(1)) == (True, (200, 1))


def test_two_services_may_swap_their_ports(running, events):
    running.tell({"a": check(running, 0, 1), "b": check(running, 1, 2)})
    running.tell({"a": check(running, 1, 1), "b": check(running, 0, 2)})
    assert (running.count(1), running.count(0)) == ((200, 1), (200, 2))
    assert events == []


def test_the_addresses_of_the_node_are_followed_and_the_others_stay_open(running):
    web = {"web": check(running)}
    running.tell(web, "127.0.0.1", "127.0.0.2")
    kept = running.server._loop.listeners[Place(ServiceName("default", "web"), addr("127.0.0.2"), running.base)]
    running.tell(web, "127.0.0.2", "127.0.0.3")
    assert [running.refuses(address=f"127.0.0.{last}") for last in (1, 2, 3)] == [True, False, False]
    assert kept in running.server._loop.listeners.values()


def test_an_address_that_is_not_usable_yet_is_no_failure(running, events):
    running.tell({"web": check(running, six=0)}, V4, "192.0.2.50", "2001:db8:1::50")
    assert (running.count(), events) == ((200, 1), [])


def test_another_count_leaves_every_listener_and_connection_alone(running):
    running.tell({"web": check(running), "other": check(running, 1)})
    before = dict(running.server._loop.listeners)
    with running.connect() as early:
        running.wait(lambda: len(running.server._loop.connections) == 1)
        running.tell({"web": check(running, four=3), "other": check(running, 1)})
        early.sendall(GET)
        assert b"Endpoint-Weight: 3" in whole(early)
    assert running.server._loop.listeners == before


def test_the_end_closes_every_port(running):
    running.tell({"web": check(running), "other": check(running, 1)})
    running.server.stop()
    running.thread.join(PATIENCE_S)
    assert (running.refuses(0), running.refuses(1)) == (True, True)


# Ports that cannot be had


@pytest.fixture
def squatter(running) -> Iterator[socket.socket]:
    """Somebody else listens at the first port."""
    with listen(Place(ServiceName("", ""), addr(V4), running.base)) as taken:
        yield taken


@pytest.mark.usefixtures("squatter")
def test_a_port_that_is_taken_costs_its_service_alone_and_is_said_once(running, events):
    for count in (1, 2, 3):
        running.tell({"web": check(running, 0, count), "other": check(running, 1, count)})
        running.pass_time(LONGEST_RETRY_S)
    assert running.count(1) == (200, 3)
    assert events == [
        {
            "event": "health_check_ports_refused",
            "log_level": "error",
            "errno": "EADDRINUSE (Address already in use)",
            "count": 1,
            "some": [f"default/web at 127.0.0.1:{running.base}"],
            "effect": "load balancers take this node for dead",
            "hint": "Something else on this node listens there; `ss -ltnp` names it",
        }
    ]


@pytest.mark.usefixtures("squatter")
def test_a_port_that_is_taken_is_told_to_the_owner_of_the_service_once(running):
    notices: list[Notice] = []
    running.server.tell = notices.append
    for count in (1, 2):
        running.tell({"web": msgspec.structs.replace(check(running, four=count), uid="u1"), "other": check(running, 1)})
        running.pass_time(LONGEST_RETRY_S)
    text = (
        f"health check node port {running.base} is not answered: "
        f"default/web at 127.0.0.1:{running.base}: EADDRINUSE (Address already in use)"
    )
    assert notices == [Notice("Service", "default", "web", "u1", "FailedToStartServiceHealthcheck", "Listen", text)]


@pytest.mark.usefixtures("squatter")
def test_a_port_that_is_taken_on_one_address_is_answered_at_on_the_others(running, events):
    running.tell({"web": check(running)}, "127.0.0.1", "127.0.0.2")
    assert running.count(address="127.0.0.2") == (200, 1)
    assert [event["count"] for event in events] == [1]


def test_a_refused_port_is_open_within_the_back_off_after_it_became_free(running, squatter, events):
    running.tell({"web": check(running)})
    squatter.close()
    running.pass_time(FIRST_RETRY_S)
    assert running.count() == (200, 1)
    assert (events[-1]["event"], events[-1]["some"]) == (
        "health_check_ports_open",
        [f"default/web at 127.0.0.1:{running.base}"],
    )


@pytest.mark.usefixtures("squatter")
def test_a_refused_port_is_tried_ever_less_often(running):
    running.tell({"web": check(running)})
    due = []
    for _ in range(8):
        due.append(running.server._retry_at - running.clock.now)
        running.pass_time(due[-1])
    assert due == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.usefixtures("squatter")
def test_a_new_refusal_is_tried_soon_whatever_the_others_back_off(running):
    running.tell({"web": check(running)})
    for _ in range(6):
        running.pass_time(LONGEST_RETRY_S)
    with listen(Place(ServiceName("", ""), addr(V4), running.base + 1)):
        running.tell({"web": check(running), "other": check(running, 1)})
    running.pass_time(FIRST_RETRY_S)
    assert running.count(1) == (200, 1)


@pytest.mark.usefixtures("squatter")
def test_a_refused_service_that_goes_is_not_tried_any_more(running):
    running.tell({"web": check(running)})
    running.tell({})
    assert (running.server._refused, running.server._retry_at) == ({}, None)


def test_two_services_with_one_port_are_one_answer_and_one_refusal_until_the_first_goes(running, events):
    running.tell({"a": check(running, four=1), "b": check(running, four=2)})
    assert (running.count(), [event["some"][0].split()[0] for event in events]) == ((200, 1), ["default/b"])
    running.tell({"b": check(running, four=2)})
    assert running.count() == (200, 2)


def test_beyond_the_limit_of_listeners_the_rest_is_refused_in_one_line_and_follows_as_others_go(events):
    with serving(free_base(), max_listeners=2) as running:
        five = {name: check(running, offset) for offset, name in enumerate("abcde")}
        running.tell(five)
        assert [running.refuses(offset) for offset in range(5)] == [False, False, True, True, True]
        assert [(event["errno"].split()[0], event["count"]) for event in events] == [("EMFILE", 3)]
        running.tell({name: found for name, found in five.items() if name != "a"})
        assert [running.refuses(offset) for offset in range(5)] == [True, False, False, True, True]


def test_without_a_descriptor_clients_wait_and_the_port_stays_ours(running, events):
    running.tell({"web": check(running)})
    with socket.socket() as client:
        client.settimeout(PATIENCE_S)
        with no_descriptors_left():
            client.connect((V4, running.base))
            client.sendall(GET)
            running.wait(lambda: events)
        running.pass_time(PAUSE_S)
        assert status_of(whole(client)) == 200
    assert [(event["event"], event["errno"].split()[0]) for event in events] == [("server_cannot_accept", "EMFILE")]


# Many


def test_a_thousand_services_are_answered_for_and_a_change_of_one_touches_no_other():
    own = f"127.{random.SystemRandom().randrange(1, 255)}.{random.SystemRandom().randrange(1, 255)}.1"
    with serving(free_base(MANY, own)) as running:
        all_of_them = {f"s{number}": check(running, number, number + 1) for number in range(MANY)}
        running.tell(all_of_them, own)
        listeners = dict(running.server._loop.listeners)
        assert len(listeners) == MANY
        asked = [0, 1, 500, 999]
        assert [running.count(number, own) for number in asked] == [(200, number + 1) for number in asked]
        running.tell({**all_of_them, "s500": check(running, 500, 7)}, own)
        assert (running.count(500, own), running.server._loop.listeners == listeners) == ((200, 7), True)
