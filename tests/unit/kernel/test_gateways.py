"""Which route messages name a default gateway, and what happens when the kernel does not answer as it should."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence

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
from tests.unit.kernel.scripted_socket import ScriptedSocket, Sent, done, error, message
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

    def __init__(self, *bodies: bytes) -> None:
        self.bodies: Sequence[bytes] = bodies
        self.refuse: list[int] = []
        self.events: list[DefaultGateways] = []
        self.put, self.taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.monitor = GatewayMonitor(
            self._hear,
            lambda: self.taken,
            NetlinkSocket(NETLINK_ROUTE, "the routes", lambda _: ScriptedSocket(self.answer)),
        )

    def _hear(self, event: DefaultGateways) -> None:
        self.events.append(event)
        self.monitor.stop()

    def answer(self, batch: list[Sent]) -> list[bytes]:
        (sent,) = batch
        if self.refuse:
            return [error(sent, self.refuse.pop())]
        return [*(message(RTM_NEWROUTE, sent.sequence, body) for body in self.bodies), done(sent)]

    def become(self, *bodies: bytes) -> list[set[bytes]]:
        """What is told when the routes become this; the monitor is stopped behind its first event."""
        self.bodies = bodies
        self.put.send(b"one")
        self.put.send(b"more")
        self.monitor.run()
        self.monitor.close()
        self.put.close()
        return [set(event.addresses) for event in self.events]


def test_news_are_told_once_however_many_notifications_there_were():
    routes = Routes(route(via(G4)))
    assert routes.monitor.gateways == {G4}
    assert routes.become(route(via(H4)), route(via(G6), family=socket.AF_INET6)) == [{H4, G6}]


def test_routes_that_cannot_be_read_are_read_again():
    routes = Routes()
    routes.refuse = [errno.ENOBUFS, errno.ENOMEM]
    assert routes.become(route(via(G4))) == [{G4}]


def test_it_stops_while_routes_cannot_be_read():
    routes = Routes()
    routes.refuse = [errno.ENOMEM] * 1000
    routes.monitor.stop()
    assert not routes.monitor._looks_again()
    assert routes.become(route(via(G4))) == []


def test_a_start_without_routes_to_read_is_refused():
    query = NetlinkSocket(
        NETLINK_ROUTE, "the routes", lambda _: ScriptedSocket(lambda batch: [error(batch[0], errno.EPERM)])
    )
    with socket.socket() as taken, pytest.raises(KernelError):
        GatewayMonitor(lambda _: None, lambda: taken, query)
