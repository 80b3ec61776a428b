"""Which notifications become events, from messages as the kernel multicasts them."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.addresses import (
    IFA_LOCAL,
    IFLA_IFNAME,
    LINK_HEADER,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
)
from ipvsproxy.kernel.monitor import AddressMonitor, DeviceChange, DeviceChanged, HostAddresses
from ipvsproxy.kernel.netlink import NETLINK_ROUTE, NetlinkSocket
from ipvsproxy.model.names import DUMMY_DEVICE
from tests.builders import addr
from tests.unit.kernel.scripted_socket import ScriptedSocket, Sent, broken, done, error, message
from tests.unit.kernel.test_addresses import INDEX, attribute, bound, with_peer

UP, DOWN = 1, 0
OTHER = 2


def link(index: int = INDEX, name: str = DUMMY_DEVICE, flags: int = DOWN, family: int = socket.AF_UNSPEC) -> bytes:
    header = LINK_HEADER.pack(family, 1, index, flags, 0xFFFFFFFF)
    return header + attribute(IFLA_IFNAME, name.encode() + b"\0")


def tell(message_type: int, body: bytes) -> bytes:
    return message(message_type, 0, body)


class Kernel:
    """The link as it is when asked for, and a place to put notifications."""

    def __init__(self) -> None:
        self.there: bytes | None = link()
        self.put, self.taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.events: list[DeviceChanged | HostAddresses] = []
        self.bound: list[bytes] = []
        self.once_listed: bytes | None = None  # the link that comes while the addresses are listed
        self.refuse: list[int] = []  # numbers that the next questions are answered with

    def answer(self, batch: list[Sent]) -> list[bytes]:
        (sent,) = batch
        if self.refuse:
            return [error(sent, self.refuse.pop())]
        if sent.message_type == RTM_GETADDR:
            self.there = self.once_listed or self.there
            return [*(message(RTM_NEWADDR, sent.sequence, body) for body in self.bound), done(sent)]
        assert sent.message_type == RTM_GETLINK
        return [error(sent, errno.ENODEV) if self.there is None else message(RTM_NEWLINK, sent.sequence, self.there)]

    def monitor(self) -> AddressMonitor:
        query = NetlinkSocket(NETLINK_ROUTE, "the link", lambda _: ScriptedSocket(self.answer))
        return AddressMonitor(self.events.append, lambda _protocol, _groups: self.taken, query)

    def play(self, *notifications: bytes) -> list[tuple[DeviceChange, bytes | None]]:
        """The device's changes as told by a monitor that meets these notifications and is stopped behind them."""
        monitor = self.monitor()
        for notification in notifications:
            self.put.send(notification)
            monitor._receive()
        monitor.stop()
        monitor.run()
        monitor.close()
        return [(event.change, event.address) for event in self.events if isinstance(event, DeviceChanged)]

    @property
    def hosts(self) -> list[set[bytes]]:
        """The host's addresses each time that they were told."""
        return [set(event.addresses) for event in self.events if isinstance(event, HostAddresses)]


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.put.close()
    kernel.taken.close()


@pytest.mark.parametrize("text", ["10.96.0.1", "fd00::1"])
def test_a_lost_address_is_told_by_value(kernel, text):
    assert kernel.play(tell(RTM_DELADDR, bound(text))) == [(DeviceChange.ADDRESS_LOST, addr(text))]


@pytest.mark.parametrize(
    "notification",
    [
        pytest.param(tell(RTM_NEWADDR, bound("10.96.0.1")), id="an address was added"),
        pytest.param(tell(RTM_DELADDR, bound("10.96.0.1", index=OTHER)), id="another link has lost an address"),
        pytest.param(tell(RTM_DELADDR, bound("fe80::1", prefix_len=64)), id="a link-local address went"),
        pytest.param(tell(RTM_NEWLINK, link(OTHER, "eth0", UP)), id="another link went up"),
        pytest.param(tell(RTM_DELLINK, link(OTHER, "eth0")), id="another link went"),
        pytest.param(tell(RTM_NEWLINK, link(OTHER, "xkube-ipvs0")), id="another link has a name that ends in ours"),
        pytest.param(tell(RTM_NEWLINK, link()), id="something else about our link changed"),
        pytest.param(tell(RTM_DELLINK, link(family=socket.AF_BRIDGE)), id="our link left a bridge"),
    ],
)
def test_what_does_not_concern_our_link_is_dropped(kernel, notification):
    assert kernel.play(notification) == []


@pytest.mark.parametrize(
    "there, notifications, changes",
    [
        pytest.param(link(), [tell(RTM_NEWLINK, link(flags=UP))], ["LINK_UP"], id="it goes up"),
        pytest.param(link(flags=UP), [tell(RTM_NEWLINK, link())], ["LINK_DOWN"], id="it goes down"),
        pytest.param(link(), [tell(RTM_DELLINK, link())], ["LINK_GONE"], id="it is deleted"),
        pytest.param(link(), [tell(RTM_NEWLINK, link(name="else0"))], ["LINK_GONE"], id="it gets another name"),
        pytest.param(None, [tell(RTM_NEWLINK, link(4))], ["LINK_APPEARED"], id="it is made"),
        pytest.param(
            None, [tell(RTM_NEWLINK, link(4)), tell(RTM_NEWLINK, link(4))], ["LINK_APPEARED"], id="told twice"
        ),
        pytest.param(
            link(),
            [tell(RTM_DELLINK, link()), tell(RTM_NEWLINK, link(4)), tell(RTM_DELADDR, bound("10.96.0.1", 4))],
            ["LINK_GONE", "LINK_APPEARED", "ADDRESS_LOST"],
            id="another one takes its place and is watched in turn",
        ),
    ],
)
def test_changes_of_our_link_are_told(kernel, there, notifications, changes):
    kernel.there = there
    assert [change.name for change, _ in kernel.play(*notifications)] == changes


def test_several_notifications_may_come_in_one_piece(kernel):
    piece = tell(RTM_DELADDR, bound("10.96.0.1")) + tell(RTM_NEWLINK, link(flags=UP))
    assert [change for change, _ in kernel.play(piece)] == [DeviceChange.ADDRESS_LOST, DeviceChange.LINK_UP]


class Scripted:
    """A socket that gives what the test says, piece by piece, and then has nothing more."""

    def __init__(self, *pieces: bytes | int) -> None:
        self._pieces = list(pieces)

    def recv(self, _size: int, _flags: int = 0) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else errno.EAGAIN
        if isinstance(piece, int):
            raise broken(piece)
        return piece


def test_lost_notifications_are_told_and_the_link_is_looked_up_again(kernel):
    kernel.there = None
    monitor = kernel.monitor()
    kernel.there = link()
    monitor._socket = Scripted(errno.ENOBUFS)
    monitor._receive()
    monitor._socket = kernel.taken
    kernel.put.send(tell(RTM_DELADDR, bound("10.96.0.1")))
    monitor._receive()
    monitor.close()
    told = [event.change for event in kernel.events if isinstance(event, DeviceChanged)]
    assert told == [DeviceChange.EVENTS_LOST, DeviceChange.ADDRESS_LOST]


def test_any_other_failure_ends_the_thread_with_its_reason(kernel):
    monitor = kernel.monitor()
    monitor._socket = Scripted(errno.ENOMEM)
    with pytest.raises(KernelError, match="cannot watch network links: ENOMEM"):
        monitor._receive()
    monitor._socket = kernel.taken
    monitor.close()


def test_stop_wakes_a_monitor_that_waits(kernel):
    monitor = kernel.monitor()
    thread = threading.Thread(target=monitor.run)
    thread.start()
    kernel.put.send(tell(RTM_DELADDR, bound("10.96.0.1")))
    monitor.stop()
    thread.join(30)
    assert not thread.is_alive()
    monitor.close()


def test_the_nodes_addresses_are_known_from_the_start_without_those_of_our_link(kernel):
    kernel.bound = [bound("192.0.2.11", OTHER, 24), bound("10.96.0.1"), bound("2001:db8:1::11", OTHER, 64)]
    monitor = kernel.monitor()
    assert monitor.host_addresses == {addr("192.0.2.11"), addr("2001:db8:1::11")}
    monitor.close()


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param(None, link(), id="our link is made"),
        pytest.param(link(OTHER + 1), link(), id="our link is made anew"),
    ],
)
def test_a_link_of_ours_that_comes_while_the_addresses_are_listed_brings_the_node_none(kernel, before, after):
    kernel.there = before
    kernel.bound = [bound("192.0.2.11", OTHER, 24), bound("10.96.0.1")]
    kernel.once_listed = after
    monitor = kernel.monitor()
    assert monitor.host_addresses == {addr("192.0.2.11")}
    monitor.close()


@pytest.mark.parametrize(
    "number", [pytest.param(0, id="at a start"), pytest.param(errno.ENOBUFS, id="when news is lost")]
)
def test_addresses_of_a_link_that_turns_out_to_be_ours_are_not_the_nodes(kernel, number):
    """Somebody gives a link of his, with its addresses, our name."""
    kernel.there = None
    kernel.bound = [bound("192.0.2.11", OTHER, 24), bound("10.96.0.1")]
    monitor = kernel.monitor()
    if number:
        monitor._socket = Scripted(number)
        monitor._receive()
        monitor._socket = kernel.taken
    kernel.put.send(tell(RTM_NEWLINK, link()) + tell(RTM_DELADDR, bound("10.96.0.1")))
    monitor._receive()
    assert kernel.hosts[-1] == {addr("192.0.2.11")} == monitor.host_addresses
    monitor.close()


def test_an_address_that_comes_or_goes_on_another_link_is_told_with_all_that_are_there(kernel):
    kernel.bound = [bound("192.0.2.11", OTHER, 24)]
    kernel.play(tell(RTM_NEWADDR, bound("192.0.2.50", OTHER)), tell(RTM_DELADDR, bound("192.0.2.11", OTHER, 24)))
    assert kernel.hosts == [{addr("192.0.2.11"), addr("192.0.2.50")}, {addr("192.0.2.50")}]


def test_an_address_that_two_links_have_stays_until_both_have_lost_it(kernel):
    kernel.bound = [bound("192.0.2.50", OTHER), bound("192.0.2.50", OTHER + 1)]
    kernel.play(tell(RTM_DELADDR, bound("192.0.2.50", OTHER)), tell(RTM_DELADDR, bound("192.0.2.50", OTHER + 1)))
    assert kernel.hosts[-1] == set()


def test_an_address_that_is_told_again_is_no_news(kernel):
    kernel.bound = [bound("192.0.2.11", OTHER, 24)]
    kernel.play(tell(RTM_NEWADDR, bound("192.0.2.11", OTHER, 24)), tell(RTM_NEWADDR, bound("10.96.0.1")))
    assert kernel.hosts == []


def test_after_lost_notifications_the_nodes_addresses_are_listed_again(kernel):
    monitor = kernel.monitor()
    kernel.bound = [bound("192.0.2.50", OTHER)]
    monitor._socket = Scripted(errno.ENOBUFS)
    monitor._receive()
    monitor._socket = kernel.taken
    monitor.close()
    assert kernel.hosts == [{addr("192.0.2.50")}]


@pytest.mark.parametrize(
    "kept, gone",
    [
        pytest.param(bound("10.0.0.5", OTHER, 24), bound("10.0.0.5", OTHER), id="of another prefix length"),
        pytest.param(
            with_peer("10.0.0.5", "10.0.0.6", OTHER), with_peer("10.0.0.5", "10.0.0.7", OTHER), id="to another peer"
        ),
    ],
)
def test_an_address_that_one_link_has_twice_stays_until_both_have_gone(kernel, kept, gone):
    kernel.bound = [kept, gone]
    kernel.play(tell(RTM_DELADDR, gone), tell(RTM_NEWADDR, bound("192.0.2.1", OTHER)), tell(RTM_DELADDR, kept))
    assert kernel.hosts[-2:] == [{addr("10.0.0.5"), addr("192.0.2.1")}, {addr("192.0.2.1")}]


def test_what_was_queued_before_notifications_were_lost_is_not_taken_for_news(kernel):
    """The kernel drops on until the queue is empty, so the look comes after that, and older news must not follow it."""
    monitor = kernel.monitor()
    kernel.bound = [bound("192.0.2.50", OTHER)]
    older = tell(RTM_DELADDR, bound("192.0.2.50", OTHER))
    monitor._socket = Scripted(errno.ENOBUFS, older, errno.ENOBUFS, older)
    monitor._receive()
    assert monitor._socket._pieces == []
    monitor._socket = kernel.taken
    monitor.close()
    assert kernel.hosts == [{addr("192.0.2.50")}]


@pytest.mark.parametrize(
    "number", [pytest.param(errno.EINTR, id="links keep changing"), pytest.param(errno.ENOMEM, id="no memory")]
)
def test_a_look_that_fails_is_repeated_after_a_pause(kernel, number):
    monitor = kernel.monitor()
    kernel.bound = [bound("192.0.2.50", OTHER)]
    kernel.refuse = [number] * 12
    monitor._socket = Scripted(errno.ENOBUFS)
    monitor._receive()
    monitor._socket = kernel.taken
    monitor.close()
    assert [type(event) for event in kernel.events] == [DeviceChanged, HostAddresses]
    assert kernel.refuse == []
    assert kernel.hosts == [{addr("192.0.2.50")}]


def test_a_monitor_that_cannot_look_keeps_its_view_and_can_be_stopped(kernel):
    kernel.bound = [bound("192.0.2.50", OTHER)]
    monitor = kernel.monitor()
    kernel.refuse = [errno.EINTR] * 1000
    monitor._socket = Scripted(errno.ENOBUFS)
    monitor.stop()
    monitor._receive()
    assert monitor.host_addresses == {addr("192.0.2.50")}
    monitor._socket = kernel.taken
    monitor.run()
    monitor.close()


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(tell(RTM_NEWADDR, b"\x02"), id="a header cut off"),
        pytest.param(tell(RTM_NEWLINK, b""), id="a link without a header"),
        pytest.param(tell(RTM_NEWADDR, bound("192.0.2.50", OTHER)[:8]), id="an address message without one"),
        pytest.param(tell(RTM_NEWADDR, b"\x07" + bound("192.0.2.50", OTHER)[1:]), id="an unknown family"),
        pytest.param(
            tell(RTM_NEWADDR, bound("192.0.2.50", OTHER)[:8] + attribute(IFA_LOCAL, b"\1\2")), id="two bytes of address"
        ),
    ],
)
def test_messages_that_make_no_sense_are_passed_over(kernel, odd):
    assert kernel.play(odd) == []
    assert kernel.hosts == []


def test_a_message_that_was_cut_short_counts_as_lost(kernel):
    kernel.bound = [bound("192.0.2.50", OTHER)]
    assert kernel.play(tell(RTM_NEWLINK, link(OTHER))[:20]) == [(DeviceChange.EVENTS_LOST, None)]
