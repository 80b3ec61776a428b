"""The packed form of real servers, and its public twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.model.addr import PackedAddr, parse_addr
from ipvsproxy.model.enums import ForwardingMethod
from ipvsproxy.model.kernel_objects import RealServer
from ipvsproxy.model.real_servers import drained, identity, is_drained, join, pack, split, unpack


def _servers(address_len: int) -> st.SearchStrategy[RealServer]:
    return st.builds(
        RealServer,
        address=st.binary(min_size=address_len, max_size=address_len).map(PackedAddr),
        port=st.integers(0, 0xFFFF),
        weight=st.integers(0, 0xFFFF),
        method=st.sampled_from(ForwardingMethod),
    )


@pytest.mark.parametrize(
    "server,record",
    [
        pytest.param(
            RealServer(parse_addr("10.44.0.1"), 8080), "0a2c0001 1f90 0001 00", id="an IPv4 one takes nine bytes"
        ),
        pytest.param(
            RealServer(parse_addr("fd00::1"), 53, weight=0),
            "fd00000000000000 0000000000000001 0035 0000 00",
            id="an IPv6 one takes twenty-one",
        ),
        pytest.param(
            RealServer(parse_addr("10.44.0.1"), 0, weight=0xFFFF, method=ForwardingMethod.ROUTE),
            "0a2c0001 0000 ffff 03",
            id="the highest weight and another method fit",
        ),
    ],
)
def test_a_record_holds_address_port_weight_and_method_in_network_order(server, record):
    assert pack(server) == bytes.fromhex(record)
    assert unpack(bytes.fromhex(record)) == server


def test_a_weight_that_does_not_fit_is_stored_as_the_highest_that_does():
    assert unpack(pack(RealServer(parse_addr("10.44.0.1"), 80, weight=70000))).weight == 0xFFFF


@given(_servers(4) | _servers(16))
def test_any_real_server_survives_packing(server):
    assert unpack(pack(server)) == server


@pytest.mark.parametrize("address_len", [pytest.param(4, id="IPv4"), pytest.param(16, id="IPv6")])
@given(data=st.data())
def test_a_blob_is_sorted_by_address_then_port_and_splits_into_its_records(address_len, data):
    servers = data.draw(st.lists(_servers(address_len), max_size=20, unique_by=lambda one: (one.address, one.port)))
    blob = join(pack(server) for server in servers)
    expected = sorted(servers, key=lambda one: (one.address, one.port))
    assert [unpack(record) for record in split(blob, address_len)] == expected


@given(st.permutations([pack(RealServer(parse_addr(f"10.44.0.{host}"), 80)) for host in range(1, 6)]))
def test_the_same_servers_in_any_order_make_the_same_blob(records):
    assert join(records) == join(sorted(records))


def test_no_servers_are_an_empty_blob():
    assert join([]) == b""
    assert split(b"", 4) == []


@given(_servers(4) | _servers(16), st.integers(0, 0xFFFF), st.sampled_from(ForwardingMethod))
def test_weight_and_method_do_not_change_which_server_it_is(server, weight, method):
    other = RealServer(server.address, server.port, weight, method)
    assert identity(pack(other)) == identity(pack(server))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(RealServer(parse_addr("10.44.0.1"), 81), id="another port"),
        pytest.param(RealServer(parse_addr("10.44.0.2"), 80), id="another address"),
    ],
)
def test_another_server_is_one_with(other):
    assert identity(pack(other)) != identity(pack(RealServer(parse_addr("10.44.0.1"), 80)))


@given(_servers(4) | _servers(16))
def test_draining_takes_the_weight_away_and_nothing_else(server):
    record = drained(pack(server))
    assert unpack(record) == RealServer(server.address, server.port, 0, server.method)
    assert is_drained(record)
    assert is_drained(pack(server)) == (server.weight == 0)
