"""EndpointSlices in compact form."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, SlicePort, compact_slice, preferred_flags
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.api_objects import EndpointSlice
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.names import LABEL_HEADLESS, LABEL_SERVICE_NAME, ServiceName

USABLE = EndpointFlags.READY | EndpointFlags.SERVING


def endpoint_slice(
    endpoints=(), ports=(), *, family="IPv4", labels=None, name="web-1", namespace="default"
) -> EndpointSlice:
    value = {
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL_SERVICE_NAME: "web", **(labels or {})}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }
    return msgspec.convert(value, EndpointSlice)


def compact(*args, **kwargs) -> tuple[CompactSlice | None, list[str]]:
    result, notes = compact_slice(endpoint_slice(*args, **kwargs), "n1")
    assert len(notes) <= 1
    return result, [note.reason for note in notes]


def clean(*args, **kwargs) -> CompactSlice:
    result, reasons = compact(*args, **kwargs)
    assert result is not None
    assert not reasons
    return result


def records(piece: CompactSlice) -> list[tuple[str, EndpointFlags]]:
    return [(format_addr(addr), flags) for addr, flags in piece.records()]


def one(address, **fields) -> dict:
    return {"addresses": [address], **fields}


def test_a_slice_is_five_bytes_an_ipv4_endpoint_sorted_by_address():
    piece = clean([one("10.0.0.9"), one("10.0.0.1")], [{"name": "http", "port": 8080, "protocol": "TCP"}])
    assert piece == CompactSlice(
        ServiceName("default", "web"),
        Family.IPV4,
        (SlicePort("http", Protocol.TCP, 8080),),
        b"\x0a\0\0\x01\x03\x0a\0\0\x09\x03",
    )


def test_a_slice_is_seventeen_bytes_an_ipv6_endpoint():
    piece = clean([one("fd00::1"), one("fd00::2")], family="IPv6")
    assert len(piece.endpoints) == 34
    assert records(piece) == [("fd00::1", USABLE), ("fd00::2", USABLE)]


@pytest.mark.parametrize(
    "fields, expected",
    [
        pytest.param({}, USABLE, id="no conditions mean ready and serving"),
        pytest.param({"conditions": {}}, USABLE, id="empty conditions mean the same"),
        pytest.param({"conditions": {"ready": False}}, EndpointFlags.SERVING, id="not ready"),
        pytest.param({"conditions": {"serving": False}}, EndpointFlags.READY, id="not serving"),
        pytest.param(
            {"conditions": {"ready": False, "terminating": True}},
            EndpointFlags.SERVING | EndpointFlags.TERMINATING,
            id="serving while terminating",
        ),
        pytest.param(
            {"conditions": {"ready": True, "terminating": True}},
            USABLE | EndpointFlags.TERMINATING,
            id="ready is used as given, terminating or not",
        ),
        pytest.param({"nodeName": "n1"}, USABLE | EndpointFlags.LOCAL, id="on our node"),
        pytest.param({"nodeName": "n2"}, USABLE, id="on another node"),
    ],
)
def test_conditions_and_place_become_flags(fields, expected):
    assert records(clean([one("10.0.0.1", **fields)])) == [("10.0.0.1", expected)]


def test_nothing_is_local_while_our_node_has_no_name():
    piece, _ = compact_slice(endpoint_slice([one("10.0.0.1", nodeName="")]), "")
    assert piece is not None
    assert records(piece) == [("10.0.0.1", USABLE)]


def test_only_the_first_address_of_an_endpoint_counts():
    assert records(clean([{"addresses": ["10.0.0.1", "10.0.0.2"]}])) == [("10.0.0.1", USABLE)]


@pytest.mark.parametrize(
    "first, second, expected",
    [
        pytest.param({"terminating": True}, {"ready": False}, EndpointFlags.SERVING, id="terminating yields"),
        pytest.param({"ready": False}, {"ready": True}, USABLE, id="ready wins"),
        pytest.param(
            {"ready": True, "terminating": True},
            {"ready": True, "terminating": True},
            USABLE | 4,
            id="both terminating",
        ),
    ],
)
def test_an_address_that_stands_twice_is_kept_once_in_any_order(first, second, expected):
    pair = [one("10.0.0.1", conditions=first), one("10.0.0.1", conditions=second)]
    assert records(clean(pair)) == records(clean(pair[::-1])) == [("10.0.0.1", expected)]


def test_of_two_records_the_one_that_is_not_terminating_is_preferred():
    assert preferred_flags(EndpointFlags.TERMINATING | USABLE, EndpointFlags.NONE) == EndpointFlags.NONE


@pytest.mark.parametrize(
    "endpoint, reason",
    [
        pytest.param({"addresses": []}, 'endpoints[1].addresses[0]: "" is not an IPv4 address', id="no address"),
        pytest.param({}, 'endpoints[1].addresses[0]: "" is not an IPv4 address', id="no field"),
        pytest.param(one("web"), 'endpoints[1].addresses[0]: "web" is not an IPv4 address', id="a name"),
        pytest.param(
            one("fd00::1"), 'endpoints[1].addresses[0]: "fd00::1" is not an IPv4 address', id="the other family"
        ),
        pytest.param(
            one("127.0.0.1"),
            "endpoints[1].addresses[0]: 127.0.0.1 is loopback, link-local, multicast or unspecified",
            id="loopback",
        ),
    ],
)
def test_a_bad_endpoint_costs_only_itself(endpoint, reason):
    piece, reasons = compact([one("10.0.0.1"), endpoint, one("10.0.0.3")])
    assert piece is not None
    assert [addr for addr, _ in records(piece)] == ["10.0.0.1", "10.0.0.3"]
    assert reasons == [reason]


@pytest.mark.parametrize(
    "port, reason",
    [
        pytest.param({"name": "x"}, "ports[1].port is missing; a slice for all ports is not supported", id="no number"),
        pytest.param({"name": "x", "port": 0}, "ports[1].port: 0 is not in 1..65535", id="zero"),
        pytest.param({"name": "x", "port": 70000}, "ports[1].port: 70000 is not in 1..65535", id="too large"),
        pytest.param(
            {"name": "x", "port": 1, "protocol": "GRE"}, 'ports[1].protocol: "GRE" is not TCP, UDP or SCTP', id="GRE"
        ),
    ],
)
def test_a_bad_port_costs_only_itself(port, reason):
    piece, reasons = compact([], [{"name": "a", "port": 1}, port, {"name": "b", "port": 2}])
    assert piece is not None
    assert [entry.name for entry in piece.ports] == ["a", "b"]
    assert reasons == [reason]


def test_missing_port_name_and_protocol_have_the_api_server_s_defaults():
    assert clean([], [{"port": 80}]).ports == (SlicePort("", Protocol.TCP, 80),)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": {LABEL_HEADLESS: ""}}, id="of a headless Service"),
        pytest.param({"family": "FQDN"}, id="of names"),
    ],
)
def test_a_slice_of_no_use_is_left_out_without_a_word(changes):
    assert compact([one("10.0.0.1")], **changes) == (None, [])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": {LABEL_SERVICE_NAME: ""}}, id="no Service"),
        pytest.param({"name": ""}, id="no name"),
        pytest.param({"namespace": ""}, id="no namespace"),
        pytest.param({"family": "IPX"}, id="unknown address type"),
        pytest.param({"family": ""}, id="missing address type"),
    ],
)
def test_a_slice_that_cannot_be_placed_is_told(changes):
    piece, reasons = compact([one("10.0.0.1")], **changes)
    assert piece is None
    assert len(reasons) == 1
