"""Which route messages name a default gateway, and what happens when the kernel does not answer as it should."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.gateways import (
    NEXT_HOP,
    ROUTE_HEADER,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_VIA,
    RTM_NEWROUTE,
    RTN_UNICAST,
    DefaultGateways,
    GatewayMonitor,
    decode_gateways,
)
from ipvsproxy.kernel.netlink import NETLINK_ROUTE, NetlinkSocket
from tests.builders import addr
from tests.unit.kernel.scripted_socket import ScriptedSocket, Sent, broken, done, error, message
from tests.unit.kernel.test_addresses import attribute

RTN_LOCAL = 2
G4, H4, G6 = addr("192.0.2.254"), addr("192.0.2.253"), addr("2001:db8::ff")


def route(*attributes: bytes, family: int = socket.AF_INET, length: int = 0, kind: int = RTN_UNICAST) -> bytes:
    return ROUTE_HEADER.pack(family, length, 0, 0, 254, 3, 0, kind, 0) + b"".join(attributes)


def via(gateway: bytes) -> bytes:
    return attribute(RTA_GATEWAY, gateway)


def hop(*attributes: bytes) -> bytes:
    rest = b"".join(attributes)
    return NEXT_HOP.pack(NEXT_HOP.size + len(rest), 0, 0, 2) + rest


def of_other_family(gateway: bytes) -> bytes:
    return attribute(RTA_VIA, struct.pack("=H", socket.AF_INET6) + gateway)


@pytest.mark.parametrize(
    "body, gateways",
    [
        pytest.param(route(via(G4)), [G4], id="one gateway"),
        pytest.param(route(via(G6), family=socket.AF_INET6), [G6], id="IPv6"),
        pytest.param(route(of_other_family(G6)), [G6], id="an IPv4 route by an IPv6 gateway"),
        pytest.param(route(attribute(RTA_MULTIPATH, hop(via(G4)) + hop(via(H4)))), [G4, H4], id="several next hops"),
        pytest.param(route(attribute(RTA_MULTIPATH, hop() + hop(via(H4)))), [H4], id="a next hop without gateway"),
        pytest.param(route(), [], id="no gateway: a link to one peer"),
        pytest.param(route(via(G4), length=24), [], id="the route of a network"),
        pytest.param(route(via(G4), kind=RTN_LOCAL), [], id="no way out"),
        pytest.param(route(via(G4), family=28), [], id="MPLS"),
        pytest.param(route(via(G4[:3])), [], id="no address"),
        pytest.param(route(attribute(RTA_MULTIPATH, hop(via(G4))[:-2])), [], id="a next hop that is cut off"),
        pytest.param(route(attribute(RTA_MULTIPATH, bytes(8))), [], id="a next hop without length"),
        pytest.param(route()[:-1], [], id="cut off in the header"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_gateways_of_a_route_message(body, gateways):
    assert list(decode_gateways(body)) == gateways


class Routes:
    """The kernel's routes, the socket that wakes the monitor, and what the monitor told."""

    def __init__(self, *bodies: bytes, refuse: Sequence[int] = ()) -> None:
        self.bodies: Sequence[bytes] = bodies
        self.refuse = list(refuse)
        self.events: list[DefaultGateways] = []
        self.is_running = False
        self.put, self.taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.monitor = GatewayMonitor(
            self._hear,
            lambda: self.taken,
            NetlinkSocket(NETLINK_ROUTE, "the routes", lambda _: ScriptedSocket(self.answer)),
        )

    def _hear(self, event: DefaultGateways) -> None:
        self.events.append(event)
        if self.is_running:
            self.monitor.stop()

    def answer(self, batch: list[Sent]) -> list[bytes]:
        (sent,) = batch
        if self.refuse:
            return [error(sent, self.refuse.pop())]
        return [*(message(RTM_NEWROUTE, sent.sequence, body) for body in self.bodies), done(sent)]

    def become(self, *bodies: bytes) -> list[set[bytes]]:
        """What is told when the routes become this; the monitor is stopped behind its first event."""
        self.bodies, self.is_running = bodies, True
        self.put.send(b"one")
        self.put.send(b"more")
        self.monitor.run()
        return [set(event.addresses) for event in self.events]


@pytest.fixture
def routes() -> Iterator[Routes]:
    """By G4 at first, which is told at once."""
    made = Routes(route(via(G4)))
    assert made.events.pop() == DefaultGateways(frozenset({G4}))
    yield made
    made.monitor.close()
    made.put.close()
    made.taken.close()


def test_news_are_told_once_however_many_notifications_there_were(routes):
    assert routes.become(route(via(H4)), route(via(G6), family=socket.AF_INET6)) == [{H4, G6}]


def test_routes_that_cannot_be_read_are_read_again(routes):
    routes.refuse = [errno.ENOBUFS, errno.ENOMEM]
    assert routes.become(route(via(H4))) == [{H4}]


def test_other_routes_that_change_are_no_news(routes):
    routes.bodies = (*routes.bodies, route(via(H4), length=24))
    assert routes.monitor._looks_again()
    assert routes.events == []


class Refusing:
    """A socket whose kernel has these errors for whoever reads."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def recv(self, *_arguments: int) -> bytes:
        raise broken(self.numbers.pop(0))

    def close(self) -> None:
        """There is nothing to close."""


def test_lost_notifications_are_no_loss(routes):
    routes.monitor._socket = Refusing(errno.ENOBUFS, errno.EAGAIN)  # type: ignore[assignment]
    routes.monitor._empty_queue()
    assert routes.monitor._socket.numbers == []  # type: ignore[attr-defined]


def test_a_socket_that_fails_ends_it(routes):
    routes.monitor._socket = Refusing(errno.EBADF)  # type: ignore[assignment]
    with pytest.raises(KernelError, match="cannot watch routes"):
        routes.monitor._empty_queue()


def test_it_stops_while_routes_cannot_be_read(routes):
    routes.refuse = [errno.ENOMEM] * 1000
    routes.monitor.stop()
    assert not routes.monitor._looks_again()
    assert routes.become(route(via(H4))) == []


def test_a_start_does_not_fail_for_routes_that_cannot_be_read_and_they_are_read_later():
    made = Routes(route(via(G4)), refuse=[errno.ENOMEM])
    assert made.events == []
    made.is_running = True
    made.monitor.run()
    made.monitor.close()
    made.put.close()
    assert made.events == [DefaultGateways(frozenset({G4}))]
