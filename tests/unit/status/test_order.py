"""ipvsadm's order, where it is one and where it is none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.model.addr import PackedAddr, format_endpoint, parse_addr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer, full_netmask
from ipvsproxy.status import order
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers


def _virtual_server(address: str = "10.0.0.1", port: int = 80, protocol: int = Protocol.TCP, fwmark: int = 0):
    packed = parse_addr(address)
    family = Family.IPV4 if len(packed) == 4 else Family.IPV6
    return ObservedVirtualServer(family, protocol, packed, port, fwmark, "rr", 2, 0, full_netmask(family))


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param(
            [
                _virtual_server("fd00::1", protocol=Protocol.UDP),
                _virtual_server("10.0.0.1", 1, protocol=Protocol.TCP, fwmark=1),
            ],
            id="firewall marks after ordinary ones, whatever family",
        ),
        pytest.param([_virtual_server("10.0.0.1", protocol=132), _virtual_server("::1", protocol=6)], id="IPv4 first"),
        pytest.param(
            [_virtual_server(protocol=6), _virtual_server(protocol=17), _virtual_server(protocol=132)],
            id="TCP, UDP, SCTP",
        ),
        pytest.param([_virtual_server("10.0.0.1", 443), _virtual_server("10.0.0.2", 80)], id="address before port"),
        pytest.param([_virtual_server(port=80), _virtual_server(port=40000)], id="ports as numbers"),
        pytest.param(
            [_virtual_server("192.168.0.1"), _virtual_server("10.0.0.1")],
            id="10/8 after 192.168/16: their difference wraps",
        ),
        pytest.param([_virtual_server("172.16.0.1"), _virtual_server("192.168.0.1")], id="172.16/12 before 192.168/16"),
        pytest.param([_virtual_server("10.0.0.1"), _virtual_server("137.255.255.255")], id="just under 2^31 apart"),
        pytest.param(
            [_virtual_server(fwmark=0xFFFF_FFFF), _virtual_server(fwmark=0), _virtual_server(fwmark=5)],
            id="the highest mark before none",
        ),
        pytest.param([_virtual_server("fd00::1"), _virtual_server("2001:db8::1")], id="IPv6 wraps in its first word"),
        pytest.param([_virtual_server("fd00::f000:0"), _virtual_server("fd00::1")], id="IPv6 wraps in its last word"),
    ],
)
def test_virtual_servers_come_in_order(servers):
    for kernel_order in itertools.permutations(servers):
        assert sort_virtual_servers(kernel_order) == servers


def test_a_difference_of_exactly_2_to_the_31_keeps_the_kernels_order():
    low, high = _virtual_server("10.0.0.1"), _virtual_server("138.0.0.1")
    assert sort_virtual_servers([low, high]) == [low, high]
    assert sort_virtual_servers([high, low]) == [high, low]


def test_where_the_relation_is_a_circle_the_result_follows_glibcs_merge_of_the_kernels_order():
    one, two, three = (_virtual_server(address) for address in ("10.0.0.1", "100.0.0.1", "190.0.0.1"))
    assert sort_virtual_servers([one, two, three]) == [one, two, three]
    assert sort_virtual_servers([two, three, one]) == [two, three, one]
    assert sort_virtual_servers([three, two, one]) == [three, one, two]


def _real_server(text: str) -> ObservedRealServer:
    address, port = text.rsplit("]:" if text.startswith("[") else ":", 1)
    return ObservedRealServer(parse_addr(address.removeprefix("[")), int(port))


@pytest.mark.parametrize(
    "kernel_order,expected",
    [
        pytest.param(["10.0.0.2:1", "10.0.0.1:2"], ["10.0.0.1:2", "10.0.0.2:1"], id="by address"),
        pytest.param(["10.0.0.1:443", "10.0.0.1:80"], ["10.0.0.1:80", "10.0.0.1:443"], id="by port then"),
        pytest.param(["[fd00::2]:1", "[fd00::1]:2"], ["[fd00::1]:2", "[fd00::2]:1"], id="IPv6 by its last word"),
        pytest.param(["[fd00::8]:80", "127.0.0.1:80"], ["127.0.0.1:80", "[fd00::8]:80"], id="families by first word"),
        pytest.param(
            ["253.0.0.0:80", "[fd00::8]:70"],
            ["[fd00::8]:70", "253.0.0.0:80"],
            id="an IPv4 one on the left compares by port when the first words are equal",
        ),
        pytest.param(
            ["253.0.0.0:70", "[fd00::8]:80"],
            ["253.0.0.0:70", "[fd00::8]:80"],
            id="and stays there when its port is lower",
        ),
        pytest.param(
            ["[fd00::8]:70", "253.0.0.0:80"],
            ["253.0.0.0:80", "[fd00::8]:70"],
            id="an IPv6 one on the left compares by all four words",
        ),
    ],
)
def test_real_servers_come_in_order(kernel_order, expected):
    ordered = sort_real_servers([_real_server(text) for text in kernel_order])
    assert [format_endpoint(server.address, server.port) for server in ordered] == expected


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 3)), max_size=40), st.integers(0, 2**31))
def test_over_close_addresses_pythons_sort_gives_what_the_merge_sort_gives(pairs, lowest):
    items = [((lowest + ahead, port), at) for at, (ahead, port) in enumerate(pairs)]
    merged = order._merge_sort(items, order._real_server_stays_before)
    assert order._sort(items, order._real_server_stays_before) == [item for _, item in merged]
    assert merged == sorted(items)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_no_real_server_is_lost_or_doubled_however_far_apart(addresses):
    servers = [ObservedRealServer(PackedAddr(number.to_bytes(4)), at) for at, number in enumerate(addresses)]
    assert sorted(server.port for server in sort_real_servers(servers)) == list(range(len(addresses)))
