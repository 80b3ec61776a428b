"""Entries of connection tracking as messages: what is asked, what is understood, what is passed over."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.conntrack import (
    DELETE,
    FILTER,
    GET,
    ID,
    NEW,
    TUPLE_ORIG,
    TUPLE_REPLY,
    ZONE,
    NetlinkConntrack,
    decode,
    encode_deletion,
    encode_dump,
    encode_tuple,
    header,
)
from ipvsproxy.kernel.netlink import (
    NETLINK_NETFILTER,
    NLA_F_NESTED,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NetlinkSocket,
    attribute,
    attributes,
    read_attributes,
)
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.flows import PackedEndpoint, TableUsage, UdpFlow
from ipvsproxy.plan.flows import is_stale
from tests.builders import flow, packed
from tests.lab.flows import entry
from tests.unit.kernel.scripted_socket import Respond, ScriptedSocket, Sent, done, error, message

DNS, NODE_PORT, DNS6 = packed("10.96.0.10", 53), packed("192.0.2.11", 30053), packed("fd00::10", 53)
BY_ADDRESS, BY_PROTOCOL, BY_PORT = 2, 8, 32
NUMBER = 0x01020304
TIMESTAMP = 20  # CTA_TIMESTAMP
TUPLE_ZONE = attribute(3, b"\0\7")
# Of Linux 6.18. What stands behind an entry's tuples differs with the host's settings.
RECORDED = bytes.fromhex(
    "020000003400018014000180080001000af40100080002000a60000a1c00028005000100110000000600020003e80000060003000035000034"
    "00028014000180080001000af40109080002000af401001c0002800500010011000000060002001f7500000600030003e800000800030000"
    "00000e080008000000000008000c00441d6f3008000b00000000010800070000000e101c0018800800010000000000080002000000000008"
    "00030000000000"
)


def numbered(found: UdpFlow, protocol: Protocol = Protocol.UDP, more: bytes = b"") -> bytes:
    """An entry as the kernel tells it."""
    return entry(found, protocol, attribute(ID, struct.pack(">I", found.number)) + more)


class Opened:
    """The edge, and the scripted socket that it opens."""

    def __init__(self, respond: Respond) -> None:
        self.socket = ScriptedSocket(respond)
        self.conntrack = NetlinkConntrack(NetlinkSocket(NETLINK_NETFILTER, "the table", lambda _: self.socket))


def telling(*entries: bytes) -> Respond:
    """A kernel whose table has these entries, and which filters nothing."""
    return lambda batch: [b"".join(message(NEW, batch[0].sequence, body) for body in entries), done(batch[0])]


def asked(body: bytes) -> tuple[int, bytes]:
    """The filter's flags, and the tuple that it compares with."""
    found = read_attributes(body, 4)
    (flags,) = struct.unpack("=I", read_attributes(found[FILTER], 0)[1])
    return flags, found[TUPLE_ORIG]


# Asking


@pytest.mark.parametrize(
    "family,destinations,flags",
    [
        pytest.param(Family.IPV4, [DNS], BY_PROTOCOL | BY_ADDRESS | BY_PORT, id="one"),
        pytest.param(Family.IPV4, [DNS, NODE_PORT], BY_PROTOCOL, id="two that have nothing in common"),
        pytest.param(Family.IPV4, [DNS, packed("10.96.0.11", 53)], BY_PROTOCOL | BY_PORT, id="two with one port"),
        pytest.param(Family.IPV4, [DNS, packed("10.96.0.10", 54)], BY_PROTOCOL | BY_ADDRESS, id="two of one address"),
        pytest.param(Family.IPV6, [DNS6], BY_PROTOCOL | BY_PORT, id="one of IPv6, whose address kernels misjudge"),
    ],
)
def test_the_kernel_is_asked_for_what_all_destinations_have_in_common(family, destinations, flags):
    assert asked(encode_dump(family, destinations))[0] == flags


@pytest.mark.parametrize("destination", [pytest.param(DNS, id="IPv4"), pytest.param(DNS6, id="IPv6")])
def test_the_filter_compares_with_the_destination_and_with_the_protocol_udp(destination):
    family = Family.IPV4 if destination is DNS else Family.IPV6
    anybody = PackedEndpoint(bytes(len(destination)))
    assert attribute(TUPLE_ORIG | NLA_F_NESTED, asked(encode_dump(family, [destination]))[1]) == encode_tuple(
        TUPLE_ORIG, anybody, destination
    )


def test_without_frontends_nothing_is_sent():
    opened = Opened(telling())
    assert opened.conntrack.stale({}) == []
    assert opened.socket.sends == []


def test_looking_for_stale_flows_is_one_dump():
    opened = Opened(telling())
    opened.conntrack.stale({DNS: ()})
    (((kind, flags, _, body),),) = opened.socket.sends
    assert (kind, flags & NLM_F_DUMP, body) == (GET, NLM_F_DUMP, encode_dump(Family.IPV4, [DNS]))


# Understanding


def test_an_entry_as_the_kernel_sends_it_is_understood():
    assert decode(RECORDED) == flow("10.244.1.0:1000", "10.96.0.10:53", "10.244.1.9:8053", 0x441D6F30)


def test_our_own_tuples_are_the_kernels_to_the_byte():
    found = decode(RECORDED)
    assert found is not None
    assert RECORDED.startswith(
        header(Family.IPV4)
        + encode_tuple(TUPLE_ORIG, found.client, found.destination)
        + encode_tuple(TUPLE_REPLY, found.server, found.client)
    )


@pytest.mark.parametrize(
    "allowed,expected", [pytest.param("10.244.1.9", 0, id="fresh"), pytest.param("10.244.1.8", 1, id="stale")]
)
def test_a_recorded_entry_is_judged_by_who_answers_it(allowed, expected):
    found = Opened(telling(RECORDED)).conntrack.stale({DNS: (packed(allowed, 8053),)})
    assert len(found) == expected


LOST = flow("10.244.1.9:999", "10.96.0.10:53", "10.244.1.6:8053", NUMBER)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(numbered(LOST, Protocol.TCP), id="TCP"),
        pytest.param(numbered(LOST, Protocol.SCTP), id="SCTP"),
        pytest.param(numbered(LOST, more=attribute(ZONE, b"\0\7")), id="another zone"),
        pytest.param(
            header(Family.IPV4)
            + encode_tuple(TUPLE_ORIG, LOST.client, LOST.destination)[4:]
            + encode_tuple(TUPLE_REPLY, LOST.server, LOST.client),
            id="a tuple without its header",
        ),
        pytest.param(entry(LOST), id="no number"),
        pytest.param(
            header(Family.IPV4)
            + attribute(TUPLE_ORIG | NLA_F_NESTED, encode_tuple(0, LOST.client, LOST.destination)[4:] + TUPLE_ZONE)
            + encode_tuple(TUPLE_REPLY, LOST.server, LOST.client)
            + attribute(ID, b"abcd"),
            id="another zone in one direction",
        ),
    ],
)
def test_an_entry_is_passed_over_if_it_is_or_has(body):
    assert Opened(telling(body)).conntrack.stale({DNS: ()}) == []


def test_the_zone_0_may_be_told():
    assert Opened(telling(numbered(LOST, more=attribute(ZONE, b"\0\0")))).conntrack.stale({DNS: ()}) == [LOST]


ADDRESSES = ("10.96.0.10", "10.96.0.11", "10.244.1.5", "fd00::10", "fd00::11", "fd00:1::5")


@st.composite
def entries(draw):
    """A flow of any protocol in any zone as the kernel would tell it, with whatever else stands behind the tuples."""
    is_ipv6 = draw(st.booleans())
    address = st.sampled_from([text for text in ADDRESSES if (":" in text) is is_ipv6])
    ends = [packed(draw(address), draw(st.sampled_from((53, 54, 8053)))) for _ in range(3)]
    zone = draw(st.sampled_from((b"", b"", attribute(ZONE, b"\0\0"), attribute(ZONE, b"\0\7"))))
    more = attribute(TIMESTAMP, draw(st.binary(max_size=9))) + zone
    return numbered(UdpFlow(*ends, draw(st.integers(0, 0xFFFFFFFF))), draw(st.sampled_from(Protocol)), more)


@given(
    found=st.lists(entries(), max_size=6),
    frontends=st.lists(st.sampled_from(ADDRESSES[:2]), unique=True, min_size=1),
    allowed=st.lists(st.sampled_from(ADDRESSES[:3]), unique=True),
)
def test_the_quick_look_finds_just_what_decoding_every_entry_would(found, frontends, allowed):
    answerers = {packed(frontend, 53): [packed(server, 8053) for server in allowed] for frontend in frontends}
    every = [each for each in map(decode, found) if each and is_stale(answerers, each.destination, each.server)]
    assert Opened(telling(*found)).conntrack.stale(answerers) == every


def rearranged(body: bytes) -> bytes:
    """The same entry, its attributes the other way round, as no kernel sends it yet."""
    parts = [
        attribute(number | (NLA_F_NESTED if number in {1, 2} else 0), body[start:end])
        for number, start, end in attributes(body, 4, len(body))
    ]
    return body[:4] + b"".join(reversed(parts))


def test_an_entry_that_is_laid_out_otherwise_is_understood_all_the_same():
    assert Opened(telling(rearranged(numbered(LOST)))).conntrack.stale({DNS: ()}) == [LOST]


@given(st.integers(0, len(RECORDED)), st.binary(max_size=40))
def test_entries_that_are_cut_off_or_garbled_stop_nothing(length, garbage):
    found = Opened(telling(RECORDED[:length] + garbage, numbered(LOST))).conntrack.stale({DNS: ()})
    assert found[-1] == LOST


# Deleting


def test_a_deletion_names_the_direction_of_the_replies_and_the_kernels_number():
    assert encode_deletion(LOST) == (
        header(Family.IPV4)
        + encode_tuple(TUPLE_REPLY, LOST.server, LOST.client)
        + attribute(ID, struct.pack(">I", NUMBER))
    )


@given(entries())
def test_every_flow_that_is_found_can_be_named(body):
    found = decode(body)
    if found is not None:
        named = read_attributes(encode_deletion(found), 4)
        assert named[ID] == read_attributes(body, 4)[ID]
        assert named[TUPLE_REPLY] == read_attributes(body, 4)[TUPLE_REPLY]


def test_deletions_travel_in_one_batch_and_are_answered_one_by_one():
    def respond(batch: list[Sent]) -> list[bytes]:
        return [error(batch[1], errno.ENOENT), error(batch[2], 0)]

    opened = Opened(respond)
    flows = [flow("10.244.1.9:999", "10.96.0.10:53", "10.244.1.6:8053", number) for number in range(3)]
    assert opened.conntrack.delete(flows) == [0, errno.ENOENT, 0]
    (batch,) = opened.socket.sends
    assert [(sent.message_type, sent.flags & NLM_F_ACK, sent.body) for sent in batch] == [
        (DELETE, NLM_F_ACK if each is flows[-1] else 0, encode_deletion(each)) for each in flows
    ]


# Failing


def test_an_interrupted_dump_is_made_again():
    flags = iter((NLM_F_DUMP_INTR, 0))

    def respond(batch: list[Sent]) -> list[bytes]:
        return [message(NEW, batch[0].sequence, numbered(LOST), next(flags)), done(batch[0])]

    opened = Opened(respond)
    assert opened.conntrack.stale({DNS: ()}) == [LOST]
    assert len(opened.socket.sends) == 2


def test_a_refused_dump_says_which_table_could_not_be_read():
    with pytest.raises(KernelError, match="cannot read the table: EINVAL"):
        Opened(lambda batch: [error(batch[0], errno.EINVAL)]).conntrack.stale({DNS: ()})


@pytest.mark.parametrize(
    "files,usage",
    [
        pytest.param({"count": "12\n", "max": "65536\n"}, TableUsage(12, 65536), id="both numbers"),
        pytest.param({}, None, id="no module"),
        pytest.param({"count": "12\n", "max": "many\n"}, None, id="no number"),
    ],
)
def test_how_full_the_table_is_stands_in_two_files(tmp_path, files, usage):
    folder = tmp_path / "net" / "netfilter"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"nf_conntrack_{name}").write_text(text)
    assert NetlinkConntrack(root=tmp_path).usage() == usage
