"""Link and address messages against pyroute2's bytes, and what is read from a scripted kernel."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroute2 import IPBatch

from ipvsproxy.errors import DumpInterrupted, KernelError
from ipvsproxy.kernel.addresses import (
    ADDRESS_HEADER,
    IFA_ADDRESS,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    IFA_LOCAL,
    IFLA_IFNAME,
    IFLA_INFO_KIND,
    IFLA_LINKINFO,
    LINK_HEADER,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    NetlinkAddresses,
)
from ipvsproxy.kernel.netlink import (
    HEADER,
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP_INTR,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    NetlinkSocket,
    attributes,
)
from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb
from ipvsproxy.model.names import DUMMY_DEVICE
from tests.builders import addr
from tests.unit.kernel.scripted_socket import ScriptedSocket, Sent, done, error, message, obey

INDEX = 9
LINK = Operation(Verb.ADD, Kind.LINK, DUMMY_DEVICE, "dummy")
NEW = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL


def attribute(number: int, value: bytes) -> bytes:
    return (4 + len(value)).to_bytes(2, "little") + number.to_bytes(2, "little") + value + bytes(-len(value) % 4)


def link(name: str = DUMMY_DEVICE, kind: str = "dummy", index: int = INDEX) -> bytes:
    info = attribute(IFLA_INFO_KIND, kind.encode() + b"\0") if kind else b""
    name_and_kind = attribute(IFLA_IFNAME, name.encode() + b"\0") + attribute(IFLA_LINKINFO, info)
    return LINK_HEADER.pack(socket.AF_UNSPEC, 1, index, 0, 0) + name_and_kind


def bound(text: str, index: int = INDEX, prefix_len: int | None = None) -> bytes:
    """An address as the kernel tells of it."""
    packed = addr(text)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    header = ADDRESS_HEADER.pack(family, prefix_len or len(packed) * 8, 0x80, 0, index)
    return header + attribute(IFA_ADDRESS, packed) + (attribute(IFA_LOCAL, packed) if len(packed) == 4 else b"")


def with_peer(local: str, peer: str, index: int = INDEX) -> bytes:
    """A point-to-point address as the kernel tells of it."""
    header = ADDRESS_HEADER.pack(socket.AF_INET, 32, 0x80, 0, index)
    return header + attribute(IFA_ADDRESS, addr(peer)) + attribute(IFA_LOCAL, addr(local))


class LinkKernel:
    """A kernel with one link, or none; what it holds beside that is the test's."""

    def __init__(self, answer: bytes | None, *dumps: tuple[int, list[bytes]]) -> None:
        self._answer = answer
        self._dumps = iter(dumps)

    def __call__(self, batch: list[Sent]) -> Iterable[bytes]:
        sent = batch[0]
        if sent.message_type == RTM_GETLINK:
            no_link = self._answer is None
            return [error(sent, errno.ENODEV) if no_link else message(RTM_NEWLINK, sent.sequence, self._answer)]
        if sent.message_type == RTM_GETADDR:
            flags, bodies = next(self._dumps)
            parts = [message(RTM_NEWADDR, sent.sequence, body, flags) for body in bodies]
            return [b"".join(parts) + done(sent)]
        return obey(batch)


class Opened:
    """The addresses of a scripted kernel, and what they have sent."""

    def __init__(self, kernel: Callable[[list[Sent]], Iterable[bytes]]) -> None:
        self.socket = ScriptedSocket(kernel)
        self.addresses = NetlinkAddresses(NetlinkSocket(NETLINK_ROUTE, "addresses", lambda _: self.socket))

    def sent(self, operation: Operation) -> Sent:
        """The last message that carrying it out takes."""
        assert self.addresses.apply([operation]) == [0]
        return self.socket.sends[-1][0]


@pytest.fixture
def pyroute2() -> Iterator[Callable[..., bytes]]:
    """What pyroute2's own calls send, without the netlink header."""
    with IPBatch() as batch:

        def encoded(call: str, *arguments: str, **keywords: object) -> bytes:
            batch.reset()
            getattr(batch, call)(*arguments, **keywords)
            return bytes(batch.asyncore.batch)[HEADER.size :]

        yield encoded


# What is sent

packed_addresses = st.sampled_from([4, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
indexes = st.integers(1, 2**31 - 1)
one_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@one_fixture
@given(packed=packed_addresses, index=indexes)
def test_adding_an_address_sends_pyroute2s_bytes(pyroute2, packed, index):
    sent = Opened(LinkKernel(link(index=index))).sent(Operation(Verb.ADD, Kind.ADDRESS, PackedAddr(packed)))
    flags = {} if len(packed) == 4 else {"flags": IFA_F_NODAD | IFA_F_NOPREFIXROUTE}
    text = format_addr(packed)
    assert sent.body == pyroute2("addr", "add", index=index, address=text, prefixlen=len(packed) * 8, **flags)
    assert (sent.message_type, sent.flags) == (RTM_NEWADDR, NEW)


@one_fixture
@given(packed=packed_addresses, index=indexes)
def test_deleting_an_address_sends_pyroute2s_bytes(pyroute2, packed, index):
    sent = Opened(LinkKernel(link(index=index))).sent(Operation(Verb.DELETE, Kind.ADDRESS, PackedAddr(packed)))
    text = format_addr(packed)
    assert sent.body == pyroute2("addr", "del", index=index, address=text, prefixlen=len(packed) * 8)
    assert (sent.message_type, sent.flags) == (RTM_DELADDR, NLM_F_REQUEST | NLM_F_ACK)


def test_making_the_link_sends_pyroute2s_bytes(pyroute2):
    sent = Opened(LinkKernel(None)).sent(LINK)
    assert sent.body == pyroute2("link", "add", ifname=DUMMY_DEVICE, kind="dummy", txqlen=0)
    assert (sent.message_type, sent.flags) == (RTM_NEWLINK, NEW)


def test_deleting_the_link_names_it_by_index():
    sent = Opened(LinkKernel(link())).sent(Operation(Verb.DELETE, Kind.LINK, DUMMY_DEVICE, "dummy"))
    assert (sent.message_type, LINK_HEADER.unpack(sent.body)) == (RTM_DELLINK, (0, 0, INDEX, 0, 0))


def test_two_hundred_addresses_are_one_send_and_one_question_for_the_link():
    opened = Opened(LinkKernel(link()))
    vips = [PackedAddr(b"\x0a\x60\x00" + bytes([n])) for n in range(200)]
    assert opened.addresses.apply([Operation(Verb.ADD, Kind.ADDRESS, vip) for vip in vips]) == [0] * 200
    assert [len(send) for send in opened.socket.sends] == [1, 200]


# What is refused before it is sent


@pytest.mark.parametrize(
    "there", [pytest.param(None, id="no link"), pytest.param(link(kind="veth"), id="a link of another kind")]
)
def test_without_our_link_nothing_is_sent_to_it(there):
    opened = Opened(LinkKernel(there))
    delete = Operation(Verb.DELETE, Kind.LINK, DUMMY_DEVICE, "dummy")
    assert opened.addresses.apply([Operation(Verb.ADD, Kind.ADDRESS, addr("10.96.0.1")), delete]) == [errno.ENODEV] * 2
    assert {sent.message_type for send in opened.socket.sends for sent in send} == {RTM_GETLINK}


def test_a_lost_answer_about_the_link_is_the_answer_of_every_operation():
    opened = Opened(lambda _: [])
    vips = [Operation(Verb.ADD, Kind.ADDRESS, addr("10.96.0.1"))] * 2
    assert opened.addresses.apply(vips) == [errno.ETIMEDOUT] * 2


# What is read


def read(kernel: LinkKernel) -> tuple[dict, set]:
    state = Opened(kernel).addresses.read()
    return state[Kind.LINK], set(state[Kind.ADDRESS])


def test_without_the_link_nothing_is_there():
    assert read(LinkKernel(None)) == ({}, set())


def test_only_single_addresses_on_our_link_are_read():
    found = [bound("10.96.0.1"), bound("fd00::1"), bound("10.0.0.7", index=2), bound("192.0.2.1", prefix_len=24)]
    link_local = bound("fe80::1", prefix_len=64)
    there = {addr("10.96.0.1"), addr("fd00::1")}
    assert read(LinkKernel(link(), (0, [*found, link_local]))) == ({DUMMY_DEVICE: "dummy"}, there)


def test_an_address_with_a_peer_is_none_that_our_messages_name():
    """It stays where ours of the same text is deleted, and ours can be added beside it."""
    assert read(LinkKernel(link(), (0, [with_peer("10.96.0.1", "10.96.0.2")])))[1] == set()


@given(st.data())
def test_no_bytes_of_an_address_or_a_link_raise_anything_but_a_kernel_error(data):
    bodies = []
    for body in (link(), bound("10.96.0.1"), bound("fd00::1"), with_peer("10.96.0.1", "10.96.0.2")):
        odd = bytearray(body)
        for at, value in data.draw(
            st.dictionaries(st.integers(0, len(odd) - 1), st.integers(0, 255), max_size=4)
        ).items():
            odd[at] = value
        bodies.append(bytes(odd)[: data.draw(st.integers(0, len(odd)))])
    for kernel in (LinkKernel(bodies[0], (0, []), (0, [])), LinkKernel(link(), (0, bodies[1:]), (0, bodies[1:]))):
        addresses = Opened(kernel).addresses
        for ask in (addresses.read, addresses.fingerprint):
            with suppress(KernelError):
                ask()
        assert len(addresses.apply([Operation(Verb.DELETE, Kind.ADDRESS, addr("10.96.0.1"))])) == 1


def test_the_kernel_is_asked_for_our_links_addresses_only():
    opened = Opened(LinkKernel(link(), (0, [])))
    opened.addresses.read()
    assert ADDRESS_HEADER.unpack(opened.socket.sends[-1][0].body) == (socket.AF_UNSPEC, 0, 0, 0, INDEX)


def test_k15_addresses_that_changed_while_they_were_read_are_read_again():
    kernel = LinkKernel(link(), (NLM_F_DUMP_INTR, [bound("10.96.0.1")]), (0, [bound("10.96.0.2")]))
    assert read(kernel)[1] == {addr("10.96.0.2")}


def test_addresses_that_always_change_are_not_half_read():
    with pytest.raises(DumpInterrupted):
        read(LinkKernel(link(), *[(NLM_F_DUMP_INTR, [bound("10.96.0.1")])] * 5))


@pytest.mark.parametrize(
    "kind, reason",
    [pytest.param("veth", "no dummy link but veth", id="veth"), pytest.param("", "but hardware", id="no kind at all")],
)
def test_a_foreign_link_of_our_name_is_an_error_that_says_what_to_do(kind, reason):
    with pytest.raises(KernelError, match=rf"cannot use the link kube-ipvs0: .*{reason}\. Rename or remove that link"):
        read(LinkKernel(link(kind=kind)))


def test_the_test_data_has_the_attributes_that_it_means():
    body = bound("10.96.0.1")
    assert [number for number, *_ in attributes(body, ADDRESS_HEADER.size, len(body))] == [IFA_ADDRESS, IFA_LOCAL]
