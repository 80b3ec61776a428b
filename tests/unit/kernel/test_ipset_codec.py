"""A set's listing read back: what others have put into a set of our name never stops us."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.kernel.ipset_codec import (
    FAMILY,
    HEADER,
    TYPE_NAME,
    decode_max_elements,
    decode_set,
    encode_entry,
)
from ipvsproxy.kernel.netlink import ATTRIBUTE, attribute
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import SetEntry, SetSpec
from tests.builders import addr

DATA, ENTRIES, MAX_ELEMENTS = 7, 8, 19
NAME = "KUBE-CLUSTER-IP"
ICMP, UDPLITE = 1, 136
HTTPS = SetEntry(NAME, addr("10.96.0.1"), Protocol.TCP, 443)


def listing(type_name: bytes, family: int, *entries: bytes, data: bytes = b"") -> bytes:
    """One message of a dump."""
    head = HEADER + attribute(TYPE_NAME, type_name + b"\0") + attribute(FAMILY, bytes([family]))
    return head + attribute(DATA, data) + attribute(ENTRIES, b"".join(entries))


@pytest.mark.parametrize(
    "entry,member",
    [
        pytest.param(SetEntry(NAME, addr("10.96.0.20"), ICMP, 0x0800), "10.96.0.20,1:2048", id="icmp:8/0"),
        pytest.param(SetEntry(NAME, addr("10.96.0.20"), UDPLITE, 53), "10.96.0.20,136:53", id="udplite:53"),
        pytest.param(SetEntry(NAME, addr("10.96.0.20"), Protocol.UDP, 53), "10.96.0.20,udp:53", id="one of ours"),
    ],
)
def test_an_entry_of_any_protocol_is_read_and_has_a_text(entry, member):
    """`ipset add KUBE-CLUSTER-IP 10.96.0.20,icmp:8/0`: it is deleted as any other, so it must be told."""
    assert decode_set(NAME, [listing(b"hash:ip,port", Family.IPV4, encode_entry(entry))])[1] == (entry,)
    assert entry.member == member


@pytest.mark.parametrize(
    "type_name,family,spec",
    [
        pytest.param(b"hash:mac", 0, SetSpec("hash:mac", None), id="a type without a family"),
        pytest.param(b"hash:new", 7, SetSpec("hash:new", None), id="a family that we do not know"),
        pytest.param(b"hash:\xe9", 2, SetSpec("hash:\N{REPLACEMENT CHARACTER}", Family.IPV4), id="no text"),
    ],
)
def test_a_set_of_any_type_is_read_without_entries(type_name, family, spec):
    assert decode_set(NAME, [listing(type_name, family, encode_entry(HTTPS))]) == (spec, ())


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(attribute(DATA, b""), id="no fields"),
        pytest.param(attribute(DATA, attribute(1, attribute(1, b"\x0a\x60\0\1\1"))), id="an address of five bytes"),
        pytest.param(attribute(DATA, attribute(4, b"\x01")), id="a port of one byte"),
        pytest.param(attribute(DATA, attribute(4, b"\x01\xbb") + attribute(7, b"")), id="no protocol in its attribute"),
        pytest.param(attribute(DATA, attribute(4, b"\x01\xbb") + attribute(6, bytes(4))), id="a time-out"),
    ],
)
def test_entries_that_are_none_of_ours_are_passed_over_and_the_others_read(odd):
    listed = [listing(b"hash:ip,port", Family.IPV4, odd, encode_entry(HTTPS))]
    assert decode_set(NAME, listed) == (SetSpec("hash:ip,port", Family.IPV4), (HTTPS,))


def test_a_size_is_read_and_an_odd_one_counts_as_none():
    sized = listing(b"hash:ip", 2, data=attribute(MAX_ELEMENTS, struct.pack(">I", 7)))
    assert decode_max_elements([sized]) == 7
    assert decode_max_elements([listing(b"hash:ip", 2, data=attribute(MAX_ELEMENTS, b"\7"))]) == 0


fields = st.builds(attribute, st.sampled_from([1, 4, 6, 7, 20, 21, 26]), st.binary(max_size=20))
entries = st.one_of(
    st.lists(fields, max_size=4).map(lambda parts: attribute(DATA, b"".join(parts))), st.binary(max_size=24)
)


@given(
    st.sampled_from([b"hash:ip", b"hash:ip,port", b"hash:ip,port,net", b"bitmap:port", b"list:set", b"\xff"]),
    st.integers(0, 255),
    st.lists(entries, max_size=5),
    st.data(),
)
def test_no_bytes_of_a_listing_raise_and_each_entry_read_can_be_told_and_sent(type_name, family, entries, data):
    message = listing(type_name, family, *entries, data=data.draw(fields))
    cut = message[: data.draw(st.integers(0, len(message)))]
    for messages in ([message], [cut], [message, cut]):
        spec, found = decode_set(NAME, messages)
        assert spec.create_options
        assert decode_max_elements(messages) >= 0
        for entry in found:
            assert entry.member
            assert encode_entry(entry)[ATTRIBUTE.size :]
