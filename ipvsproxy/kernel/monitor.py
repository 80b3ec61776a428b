"""What others do to kube-ipvs0, and the node's other addresses as they come and go: events from a thread of its own.

A raw socket subscribed to link and address notifications. Nearly all of them tell of additions to kube-ipvs0, our own
thousands at start; they are dropped by message type and by the index in the fixed header.

Whether an address went by our own hand cannot be told from its notification: IPv4's carries the port id of the socket
that asked, IPv6's carries 0 (net/ipv6/addrconf.c, inet6_ifa_notify). So every loss is reported by value, and whoever
holds the mirror of what should be there compares: an address that it has just deleted is not in it any more.

When the kernel drops notifications (ENOBUFS), it goes on dropping until the queue is empty (net/netlink/af_netlink.c,
NETLINK_S_CONGESTED), and what is queued is older than what is lost. So the queue is emptied first; then an event says
that the addresses must be read again; then the monitor looks for itself, as often as it takes. A notification that was
cut short counts as lost.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec
import structlog

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.addresses import (
    ADDRESS_HEADER,
    IFLA_IFNAME,
    LINK_HEADER,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_NEWADDR,
    RTM_NEWLINK,
    HeldAddress,
    decode_address,
    decode_held,
    find_link,
)
from ipvsproxy.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, open_netlink, read_attributes, split_messages
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.names import DUMMY_DEVICE

log = structlog.get_logger()

# include/uapi/linux/rtnetlink.h, if.h
RTMGRP_LINK: Final = 0x001
RTMGRP_IPV4_IFADDR: Final = 0x010
RTMGRP_IPV6_IFADDR: Final = 0x100
IFF_UP: Final = 1

_NAME = DUMMY_DEVICE.encode() + b"\0"
_RECEIVE_BYTES = 64 << 10
_PAUSE_MS = 100
_LOST = frozenset({errno.ENOBUFS, errno.EBADMSG})  # some were dropped; one did not fit


class DeviceChange(StrEnum):
    """What happened to kube-ipvs0."""

    ADDRESS_LOST = "address lost"
    LINK_APPEARED = "link appeared"
    LINK_GONE = "link gone"
    LINK_UP = "link up"
    LINK_DOWN = "link down"  # the kernel removes all IPv6 addresses then, with an event for each
    EVENTS_LOST = "events lost"


class DeviceChanged(msgspec.Struct, frozen=True):
    """One change of kube-ipvs0, made by anybody; `address` for ADDRESS_LOST only."""

    change: DeviceChange
    address: PackedAddr | None = None


class HostAddresses(msgspec.Struct, frozen=True):
    """All addresses of all links but kube-ipvs0, after one of them came or went."""

    addresses: frozenset[PackedAddr]


class _Device(msgspec.Struct, frozen=True):
    index: int
    up: bool


class AddressMonitor:
    """Tells `on_event` what happens to addresses, in the network namespace in which it is made and from then on."""

    def __init__(
        self,
        on_event: Callable[[DeviceChanged | HostAddresses], None],
        open_socket: Callable[[int, int], socket.socket] = open_netlink,
        query: NetlinkSocket | None = None,
    ) -> None:
        self._on_event = on_event
        self._socket = open_socket(NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._query = query or NetlinkSocket(NETLINK_ROUTE, f"the link {DUMMY_DEVICE}")
        self._device: _Device | None = None
        self._host: set[HeldAddress] = set()
        self._look()

    @property
    def host_addresses(self) -> frozenset[PackedAddr]:
        """The addresses of all links but kube-ipvs0, as last told."""
        return frozenset(held.address for held in self._host)

    def run(self) -> None:
        """Report until `stop` is called. Raises KernelError where the socket fails."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while all(fd != self._wake for fd, _ in poll.poll()):
            self._receive()

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the descriptors back, once `run` has returned."""
        self._socket.close()
        os.close(self._wake)

    def _receive(self) -> None:
        try:
            messages = list(split_messages(self._socket.recv(_RECEIVE_BYTES)))
        except OSError as error:
            if error.errno not in _LOST:
                raise _cannot_watch(error) from error
            self._catch_up()
            return
        before = self.host_addresses
        for message_type, _, _, body in messages:
            self._handle(message_type, body)
        if before != self.host_addresses:
            self._on_event(HostAddresses(self.host_addresses))

    def _catch_up(self) -> None:
        """Notifications were lost: tell so, and look for ourselves until the kernel has given a whole answer."""
        self._empty_queue()
        self._on_event(DeviceChanged(DeviceChange.EVENTS_LOST))
        while not self._looks_again():
            if self._is_stopped(_PAUSE_MS):
                return
        self._on_event(HostAddresses(self.host_addresses))

    def _empty_queue(self) -> None:
        while True:
            try:
                self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _LOST:
                    raise _cannot_watch(error) from error

    def _looks_again(self) -> bool:
        """Whether that worked; what was seen before stays otherwise. Links that keep changing break up a dump."""
        try:
            self._look()
        except KernelError as error:
            log.debug("links_not_read", reason=str(error), errno=error.number)
            return False
        return True

    def _is_stopped(self, pause_ms: int) -> bool:
        """Whether `stop` was called, or is within the pause."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        return bool(poll.poll(pause_ms))

    def _handle(self, message_type: int, body: bytes) -> None:
        if message_type in {RTM_NEWADDR, RTM_DELADDR}:
            self._handle_address(message_type, body)
        elif message_type in {RTM_NEWLINK, RTM_DELLINK}:
            self._handle_link(message_type, body)

    def _handle_address(self, message_type: int, body: bytes) -> None:
        held = decode_held(body)
        if held is None:
            return
        if self._device is None or held.link != self._device.index:
            (self._host.add if message_type == RTM_NEWADDR else self._host.discard)(held)
        elif message_type == RTM_DELADDR:
            address = decode_address(body, held.link)
            if address is not None:
                self._on_event(DeviceChanged(DeviceChange.ADDRESS_LOST, address))

    def _handle_link(self, message_type: int, body: bytes) -> None:
        if len(body) < LINK_HEADER.size:
            return
        family, _, index, flags, _ = LINK_HEADER.unpack_from(body)
        known = self._device is not None and self._device.index == index
        if family != socket.AF_UNSPEC or not (known or _NAME in body):  # bridges tell of their ports by AF_BRIDGE
            return
        named = read_attributes(body, LINK_HEADER.size).get(IFLA_IFNAME) == _NAME
        if message_type == RTM_NEWLINK and named:
            self._become(_Device(index, bool(flags & IFF_UP)))
        elif known:
            self._become(None)

    def _become(self, device: _Device | None) -> None:
        """Remember what the link is now, and tell what that changes."""
        before, self._device = self._device, device
        if device == before:
            return
        # A link that gets our name may have had addresses before.
        self._host = {held for held in self._host if held.link != _index(device)}
        if device is None:
            change = DeviceChange.LINK_GONE
        elif before is None or before.index != device.index:
            change = DeviceChange.LINK_APPEARED
        else:
            change = DeviceChange.LINK_UP if device.up else DeviceChange.LINK_DOWN
        self._on_event(DeviceChanged(change))

    def _look(self) -> None:
        """See what is there now, both or neither. Raises KernelError.

        Link and addresses are two questions. Where our link was made in between, its VIPs would pass for the node's
        own addresses, so the link is asked for on both sides of the list.
        """
        before, device = -1, self._find()
        bodies: list[bytes] = []
        while before != _index(device):
            before = _index(device)
            bodies = self._query.dump(RTM_GETADDR, ADDRESS_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
            device = self._find()
        self._query.close()
        found = (decode_held(body) for body in bodies)
        self._device, self._host = device, {held for held in found if held is not None and held.link != before}

    def _find(self) -> _Device | None:
        link = find_link(self._query, DUMMY_DEVICE)
        return None if link is None else _Device(link.index, bool(link.flags & IFF_UP))


def _index(device: _Device | None) -> int:
    """The link's index; 0, which no link has, where there is none."""
    return device.index if device else 0


def _cannot_watch(error: OSError) -> KernelError:
    return KernelError("cannot watch network links", error.errno or errno.EIO)
