"""The gateways of the node's default routes, as they come and go: events from a thread of its own.

A Service that names one of them as its external IP would, once it is bound here, make this node answer for the gateway:
to itself, and by ARP to its neighbours (K33). Default routes are rare among notifications, most of which tell of the
local routes of our own VIPs; so a filter in the kernel lets only those of length 0 through to this socket. Whatever
comes is a reason to look at all routes once, and nothing more is read out of it.

Not every loss is told: where a link takes its IPv4 routes along when it goes down, the kernel says nothing
(net/ipv4/fib_semantics.c, fib_sync_down_dev). A gateway is then protected for longer than it is one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import structlog

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, attributes, open_netlink
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family

log = structlog.get_logger()

# include/uapi/linux/rtnetlink.h
RTM_NEWROUTE: Final = 24
RTM_GETROUTE: Final = 26
RTMGRP_IPV4_ROUTE: Final = 0x040
RTMGRP_IPV6_ROUTE: Final = 0x400
RTN_UNICAST: Final = 1
RTA_GATEWAY: Final = 5
RTA_MULTIPATH: Final = 9
RTA_VIA: Final = 18
ROUTE_HEADER: Final = struct.Struct("=BBBBBBBBI")  # family, destination and source length, tos, table, …, type, flags
NEXT_HOP: Final = struct.Struct("=HBBi")  # length with its attributes, flags, hops, link

_DESTINATION_LENGTH_AT = 17  # behind the netlink header's 16 bytes and the family
# linux/filter.h: load that byte; 0 passes whole, all else is dropped.
_DEFAULT_ROUTES_ONLY = (
    (0x30, 0, 0, _DESTINATION_LENGTH_AT),
    (0x15, 0, 1, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_RECEIVE_BYTES = 64 << 10
_PAUSE_MS = 100
_FAMILIES = frozenset(Family)
_ADDRESS_BITS = {family.host_prefix_len for family in Family}
_BEFORE_ADDRESS = {RTA_GATEWAY: 0, RTA_VIA: 2}  # struct rtvia: the family, which is the other one than the route's


class DefaultGateways(msgspec.Struct, frozen=True):
    """All gateways of all default routes, whatever table they are in, after one of them changed."""

    addresses: frozenset[PackedAddr]


class GatewayMonitor:
    """Tells `on_event` of default gateways, in the network namespace in which it is made: at once, and from then on."""

    def __init__(
        self,
        on_event: Callable[[DefaultGateways], None],
        open_socket: Callable[[], socket.socket] | None = None,
        query: NetlinkSocket | None = None,
    ) -> None:
        """Routes that cannot be read now are no hindrance: `run` goes on trying. Raises OSError without any netlink."""
        self._on_event = on_event
        self._socket = (open_socket or _open_filtered)()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._query = query or NetlinkSocket(NETLINK_ROUTE, "the routes")
        self._gateways: frozenset[PackedAddr] = frozenset()
        self._is_known = self._looks_again()

    def run(self) -> None:
        """Report until `stop` is called. Raises KernelError where the socket fails."""
        while not self._is_stopped(None if self._is_known else _PAUSE_MS):
            self._empty_queue()
            self._is_known = self._looks_again()

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._socket.close()
        os.close(self._wake)

    def _is_stopped(self, pause_ms: int | None) -> bool:
        """Whether `stop` was called: without a pause after waiting for news, else at the latest when that is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if pause_ms is None:
            poll.register(self._socket, select.POLLIN)
        return any(descriptor == self._wake for descriptor, _ in poll.poll(pause_ms))

    def _empty_queue(self) -> None:
        """What is lost here (ENOBUFS) is of no matter: the routes are looked at afterwards."""
        while True:
            try:
                self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelError("cannot watch routes", error.errno or errno.EIO) from error

    def _looks_again(self) -> bool:
        """Whether that worked. Routes that keep changing break up a dump."""
        try:
            found = self._read()
        except KernelError as error:
            log.debug("routes_not_read", reason=str(error), errno=error.number)
            return False
        if found != self._gateways:
            self._gateways = found
            self._on_event(DefaultGateways(found))
        return True

    def _read(self) -> frozenset[PackedAddr]:
        """The gateways of now. Kernels before 4.20 tell of local routes too, whatever is asked. Raises KernelError."""
        asked = ROUTE_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0)
        bodies = self._query.dump(RTM_GETROUTE, asked)
        self._query.close()
        return frozenset(gateway for body in bodies for gateway in decode_gateways(body))


def decode_gateways(body: bytes) -> Iterator[PackedAddr]:
    """The gateways in a route message: none unless it is a default route."""
    if len(body) < ROUTE_HEADER.size:
        return
    family, destination_len, *_, route_type, _ = ROUTE_HEADER.unpack_from(body)
    if family in _FAMILIES and destination_len == 0 and route_type == RTN_UNICAST:
        yield from _gateways(body, ROUTE_HEADER.size, len(body))


def _gateways(body: bytes, start: int, end: int) -> Iterator[PackedAddr]:
    """Those among the attributes between two offsets, and in its next hops."""
    for number, begin, stop in attributes(body, start, end):
        if number == RTA_MULTIPATH:
            yield from _of_next_hops(body, begin, stop)
        elif number in {RTA_GATEWAY, RTA_VIA}:
            address = body[begin + _BEFORE_ADDRESS[number] : stop]
            if len(address) * 8 in _ADDRESS_BITS:
                yield PackedAddr(address)


def _of_next_hops(body: bytes, start: int, end: int) -> Iterator[PackedAddr]:
    while end - start >= NEXT_HOP.size:
        length, *_ = NEXT_HOP.unpack_from(body, start)
        if not NEXT_HOP.size <= length <= end - start:
            return
        yield from _gateways(body, start + NEXT_HOP.size, start + length)
        start += (length + 3) & ~3


def _open_filtered() -> socket.socket:
    opened = open_netlink(NETLINK_ROUTE, RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE)
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in _DEFAULT_ROUTES_ONLY)
    kept = ctypes.create_string_buffer(program, len(program))
    opened.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_DEFAULT_ROUTES_ONLY), ctypes.addressof(kept))
    )
    return opened
