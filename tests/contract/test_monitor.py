"""What the monitor hears from a real kernel; the fake has no notifications."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from ipvsproxy.kernel.addresses import NetlinkAddresses
from ipvsproxy.kernel.monitor import AddressMonitor, DeviceChange, DeviceChanged, HostAddresses
from ipvsproxy.kernel.netlink import open_netlink
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb
from ipvsproxy.model.names import DUMMY_DEVICE
from tests.builders import addr

VIPS = ["10.96.0.20", "fd00::20"]
LINK = Operation(Verb.ADD, Kind.LINK, DUMMY_DEVICE, "dummy")


class Heard:
    """The events of a monitor that runs in a thread, in the network namespace of the test."""

    def __init__(self) -> None:
        self._events: queue.Queue[DeviceChanged] = queue.Queue()
        self._hosts: queue.Queue[HostAddresses] = queue.Queue()
        self._monitor = AddressMonitor(self._hear)
        self._thread = threading.Thread(target=self._monitor.run)
        self._thread.start()

    def _hear(self, event: DeviceChanged | HostAddresses) -> None:
        (self._hosts if isinstance(event, HostAddresses) else self._events).put(event)  # type: ignore[attr-defined]

    def next_host(self) -> frozenset[bytes]:
        return self._hosts.get(timeout=30).addresses

    def next(self) -> tuple[DeviceChange, bytes | None]:
        event = self._events.get(timeout=30)
        return event.change, event.address

    def nothing_more(self, ip: IPRoute) -> bool:
        """Whether the next event is that of something that is done now."""
        ip.link("set", ifname=DUMMY_DEVICE, state="up")
        return self.next() == (DeviceChange.LINK_UP, None)

    def stop(self) -> None:
        self._monitor.stop()
        self._thread.join(30)
        self._monitor.close()


@pytest.fixture
def addresses(pick: Callable, real_kernel: None) -> NetlinkAddresses:  # noqa: ARG001  # the fake tells nothing
    made = pick(None, NetlinkAddresses)
    assert made.apply([LINK, *[Operation(Verb.ADD, Kind.ADDRESS, addr(vip)) for vip in VIPS]]) == [0, 0, 0]
    return made


@pytest.fixture
def heard(addresses: NetlinkAddresses) -> Iterator[Heard]:  # noqa: ARG001  # for its effect
    made = Heard()
    yield made
    made.stop()


@pytest.fixture
def ip(addresses: NetlinkAddresses) -> Iterator[IPRoute]:  # noqa: ARG001  # for its effect
    """Somebody else."""
    with IPRoute() as made:
        yield made


@pytest.mark.parametrize("vip", VIPS)
def test_an_address_that_somebody_deletes_is_told(heard, ip, vip):
    """K42: one VIP deleted from kube-ipvs0."""
    ip.addr("del", index=ip.link_lookup(ifname=DUMMY_DEVICE)[0], address=vip, prefixlen=32 if "." in vip else 128)
    assert heard.next() == (DeviceChange.ADDRESS_LOST, addr(vip))


def test_a_flush_tells_of_every_address(heard, ip):
    """K42: flush all."""
    ip.flush_addr(index=ip.link_lookup(ifname=DUMMY_DEVICE)[0])
    assert {heard.next(), heard.next()} == {(DeviceChange.ADDRESS_LOST, addr(vip)) for vip in VIPS}


def test_our_own_deletions_are_told_like_any_other(heard, addresses):
    assert addresses.apply([Operation(Verb.DELETE, Kind.ADDRESS, addr(vip)) for vip in VIPS]) == [0, 0]
    assert [heard.next(), heard.next()] == [(DeviceChange.ADDRESS_LOST, addr(vip)) for vip in VIPS]


def test_our_own_additions_are_not_told(heard, addresses, ip):
    more = [PackedAddr(b"\x0a\x60\x01" + bytes([n])) for n in range(200)]
    assert addresses.apply([Operation(Verb.ADD, Kind.ADDRESS, vip) for vip in more]) == [0] * 200
    assert heard.nothing_more(ip)


def test_other_links_are_not_told(heard, ip):
    ip.link("add", ifname="other0", kind="dummy")
    other = ip.link_lookup(ifname="other0")[0]
    ip.addr("add", index=other, address="192.0.2.1", prefixlen=32)
    ip.addr("del", index=other, address="192.0.2.1", prefixlen=32)
    ip.link("del", index=other)
    assert heard.nothing_more(ip)


def test_a_link_that_goes_up_and_down_tells_so_and_of_the_ipv6_addresses_that_went(heard, ip):
    """K42: set it UP, and down again."""
    Path(f"/proc/sys/net/ipv6/conf/{DUMMY_DEVICE}/addr_gen_mode").write_text("1")  # no address of its own
    ip.link("set", ifname=DUMMY_DEVICE, state="up")
    assert heard.next() == (DeviceChange.LINK_UP, None)
    ip.link("set", ifname=DUMMY_DEVICE, state="down")
    assert {heard.next(), heard.next()} == {
        (DeviceChange.LINK_DOWN, None),
        (DeviceChange.ADDRESS_LOST, addr("fd00::20")),
    }


def test_a_link_that_is_renamed_deleted_or_made_is_told(heard, ip, addresses):
    """K42: rename it, delete it."""
    ip.link("set", index=ip.link_lookup(ifname=DUMMY_DEVICE)[0], ifname="else0")
    assert heard.next() == (DeviceChange.LINK_GONE, None)
    assert addresses.apply([LINK]) == [0]
    assert heard.next() == (DeviceChange.LINK_APPEARED, None)
    ip.link("del", ifname=DUMMY_DEVICE)
    assert heard.next() == (DeviceChange.LINK_GONE, None)


def test_addresses_of_other_links_are_told_as_they_come_and_go(heard):
    with IPRoute() as ip:
        lo = ip.link_lookup(ifname="lo")[0]
        ip.addr("add", index=lo, address="192.0.2.50", prefixlen=32)
        there = heard.next_host()
        ip.addr("delete", index=lo, address="192.0.2.50", prefixlen=32)
        assert there - heard.next_host() == {addr("192.0.2.50")}


# Without kube-ipvs0, which not every kernel can have


@pytest.fixture
def listening(network_namespace: None, real_kernel: None) -> Iterator[Heard]:  # noqa: ARG001  # for their effect
    made = Heard()
    yield made
    made.stop()


@pytest.mark.parametrize("first,second", [(24, 32), (32, 24)])
def test_an_address_of_two_prefix_lengths_is_there_until_both_are_gone(listening, first, second):
    with IPRoute() as ip:
        lo = ip.link_lookup(ifname="lo")[0]
        for length in (24, 32):
            ip.addr("add", index=lo, address="192.0.2.50", prefixlen=length)
        assert addr("192.0.2.50") in listening.next_host()
        ip.addr("delete", index=lo, address="192.0.2.50", prefixlen=first)
        ip.addr("add", index=lo, address="198.51.100.1", prefixlen=32)
        assert {addr("192.0.2.50"), addr("198.51.100.1")} <= listening.next_host()
        ip.addr("delete", index=lo, address="192.0.2.50", prefixlen=second)
        assert addr("192.0.2.50") not in listening.next_host()


def test_after_lost_notifications_the_view_is_that_of_the_kernel(network_namespace, real_kernel):  # noqa: ARG001
    """The kernel goes on dropping until the queue is empty: here it overflows, and more comes while it is full."""
    told: list[DeviceChanged | HostAddresses] = []
    small: list[socket.socket] = []

    def open_small(protocol: int, groups: int) -> socket.socket:
        small.append(open_netlink(protocol, groups))
        small[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return small[0]

    monitor = AddressMonitor(told.append, open_small)
    with IPRoute() as ip:
        lo = ip.link_lookup(ifname="lo")[0]
        for n in range(50):
            ip.addr("add", index=lo, address=f"192.0.2.{n}", prefixlen=32)
        for n in range(1, 50):
            ip.addr("delete", index=lo, address=f"192.0.2.{n}", prefixlen=32)
        ip.addr("add", index=lo, address="192.0.2.1", prefixlen=32)
        monitor._receive()
        with pytest.raises(BlockingIOError):  # nothing older is left behind the look
            small[0].recv(1, socket.MSG_DONTWAIT)
    monitor.close()
    assert [type(event) for event in told] == [DeviceChanged, HostAddresses]
    there = {addr("192.0.2.0"), addr("192.0.2.1")}
    assert {address for address in monitor.host_addresses if address.startswith(addr("192.0.2.0")[:3])} == there
