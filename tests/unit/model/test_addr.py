"""Addresses: what text means, and what leaves as text."""

from __future__ import annotations

import socket

import pytest

from ipvsproxy.model.addr import (
    Cidr,
    PackedAddr,
    family_of,
    format_addr,
    format_endpoint,
    format_host_prefix,
    is_bindable,
    is_loopback,
    parse_addr,
    parse_cidr,
)
from ipvsproxy.model.enums import Family


@pytest.mark.parametrize(
    "text, canonical",
    [
        pytest.param("10.96.0.1", "10.96.0.1", id="plain IPv4"),
        pytest.param("172.30.0.041", "172.30.0.41", id="leading zeros are decimal, not octal"),
        pytest.param("000000001.2.3.4", "1.2.3.4", id="any number of leading zeros"),
        pytest.param("::ffff:10.0.0.1", "10.0.0.1", id="IPv4-mapped counts as IPv4"),
        pytest.param("::ffff:a00:1", "10.0.0.1", id="IPv4-mapped in hexadecimal"),
        pytest.param("FD00:10:0:0::001", "fd00:10::1", id="IPv6 is compressed and lower case"),
        pytest.param("::", "::", id="unspecified IPv6"),
    ],
)
def test_an_address_is_read_leniently_and_written_canonically(text, canonical):
    addr = parse_addr(text)
    assert addr is not None
    assert format_addr(addr) == canonical


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("10.1", id="two parts"),
        pytest.param("10.0.0.256", id="octet too large"),
        pytest.param("10.0.0.0256", id="octet too large behind zeros"),
        pytest.param("10.0.0.1 ", id="trailing blank"),
        pytest.param("10.0.0.1\n", id="trailing newline"),
        pytest.param("10.0.0.1/32", id="a prefix"),
        pytest.param("[fd00::1]", id="brackets"),
        pytest.param("fe80::1%eth0", id="a zone"),
        pytest.param("10.0.0.1\0", id="a NUL byte"),
        pytest.param("١٠.٠.٠.١", id="digits of another script"),  # noqa: RUF001
        pytest.param("10.0.0.\udcff", id="a lone surrogate"),
        pytest.param("1:2:3:4:5:6:7:8:9", id="nine groups"),
        pytest.param("nginx", id="a name"),
    ],
)
def test_what_is_no_address_is_none(text):
    assert parse_addr(text) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param("10.244.0.0/16", "10.244.0.0/16", id="plain"),
        pytest.param("10.244.3.9/16", "10.244.0.0/16", id="host bits are cleared"),
        pytest.param("203.0.113.000/025", "203.0.113.0/25", id="leading zeros on both sides"),
        pytest.param("::ffff:10.0.0.0/104", "10.0.0.0/8", id="mapped length counts 96 more"),
        pytest.param("0.0.0.0/0", "0.0.0.0/0", id="everything"),
        pytest.param("fd00:10::1/64", "fd00:10::/64", id="IPv6"),
    ],
)
def test_a_cidr_is_read_leniently_and_written_canonically(text, expected):
    assert str(parse_cidr(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "fd00::/129", "::ffff:10.0.0.0/95", "x/8", "10.0.0.0/1_0"],
)
def test_what_is_no_cidr_is_none(text):
    assert parse_cidr(text) is None


def test_a_cidr_holds_only_addresses_of_its_family_and_range():
    cidr = parse_cidr("10.0.0.0/8")
    assert cidr is not None
    inside, outside, other = (
        socket.inet_pton(*pair)
        for pair in ((socket.AF_INET, "10.255.0.1"), (socket.AF_INET, "11.0.0.0"), (socket.AF_INET6, "::a00:1"))
    )
    assert [addr in cidr for addr in (inside, outside, other)] == [True, False, False]


def test_cidrs_sort_by_network_then_length():
    small, large = (Cidr(PackedAddr(b"\x0a\0\0\0"), length) for length in (8, 16))
    assert sorted([large, small]) == [small, large]


@pytest.mark.parametrize(
    "text, bindable, loopback",
    [
        pytest.param("10.0.0.1", True, False, id="private"),
        pytest.param("0.0.0.0", False, False, id="unspecified"),
        pytest.param("127.1.2.3", False, True, id="loopback"),
        pytest.param("169.254.169.254", False, False, id="link-local"),
        pytest.param("224.0.0.1", False, False, id="multicast"),
        pytest.param("255.255.255.255", False, False, id="broadcast"),
        pytest.param("fd00::1", True, False, id="unique local IPv6"),
        pytest.param("::", False, False, id="unspecified IPv6"),
        pytest.param("::1", False, True, id="loopback IPv6"),
        pytest.param("fe80::1", False, False, id="link-local IPv6"),
        pytest.param("febf::1", False, False, id="end of link-local IPv6"),
        pytest.param("fec0::1", True, False, id="just behind link-local IPv6"),
        pytest.param("ff02::1", False, False, id="multicast IPv6"),
    ],
)
def test_special_addresses_are_known(text, bindable, loopback):
    addr = parse_addr(text)
    assert addr is not None
    assert (is_bindable(addr), is_loopback(addr)) == (bindable, loopback)


def test_endpoints_and_prefixes_are_written_as_the_tools_do():
    four, six = parse_addr("10.0.0.1"), parse_addr("fd00::1")
    assert four is not None
    assert six is not None
    assert [format_endpoint(four, 80), format_endpoint(six, 80)] == ["10.0.0.1:80", "[fd00::1]:80"]
    assert [format_host_prefix(four), format_host_prefix(six)] == ["10.0.0.1/32", "fd00::1/128"]
    assert [family_of(four), family_of(six)] == [Family.IPV4, Family.IPV6]
