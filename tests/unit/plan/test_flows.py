"""Which UDP flows are stale, and after which operations some may be."""

from __future__ import annotations

import pytest

from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, Operation, SetEntry, Verb, VirtualServer
from ipvsproxy.plan.flows import answerers, frontend, is_stale, redirected
from tests.builders import addr, blob, packed, vs_key

KEY, KEY6 = vs_key("10.96.0.10", 53, Protocol.UDP), vs_key("fd00::10", 53, Protocol.UDP)
DNS = packed("10.96.0.10", 53)
A, B = packed("10.244.1.5", 8053), packed("10.244.1.6", 8053)
A6 = packed("fd00:1::5", 8053)


@pytest.mark.parametrize(
    "kind,verb,counts",
    [
        pytest.param(Kind.VIRTUAL_SERVER, Verb.ADD, True, id="a virtual server comes"),
        pytest.param(Kind.VIRTUAL_SERVER, Verb.DELETE, True, id="a virtual server goes"),
        pytest.param(Kind.VIRTUAL_SERVER, Verb.EDIT, False, id="a virtual server gets another scheduler"),
        pytest.param(Kind.REAL_SERVER, Verb.ADD, False, id="a real server comes"),
        pytest.param(Kind.REAL_SERVER, Verb.EDIT, False, id="a real server gets another weight"),
        pytest.param(Kind.REAL_SERVER, Verb.DELETE, True, id="a real server goes"),
    ],
)
def test_flows_may_be_stale_after(kind, verb, counts):
    settings = VirtualServer("rr") if kind is Kind.VIRTUAL_SERVER else blob(("10.244.1.5", 8053))
    assert list(redirected([Operation(verb, kind, KEY, settings)])) == [KEY] * counts


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key("10.96.0.10", 53)), id="a TCP virtual server"),
        pytest.param(
            Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key("10.96.0.10", 53, Protocol.SCTP)), id="an SCTP one"
        ),
        pytest.param(Operation(Verb.DELETE, Kind.ADDRESS, addr("10.96.0.10")), id="an address"),
        pytest.param(
            Operation(Verb.DELETE, Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.10"), 17, 53)),
            id="a set entry",
        ),
    ],
)
def test_no_flow_is_stale_after_what_is_no_udp_virtual_server(operation):
    assert list(redirected([operation])) == []


@pytest.mark.parametrize("stands", [pytest.param(True, id="stands"), pytest.param(False, id="is gone")])
@pytest.mark.parametrize(
    "key,servers,expected",
    [
        pytest.param(KEY, blob(("10.244.1.5", 8053), ("10.244.1.6", 8053, 0)), {A, B}, id="IPv4, one at weight 0"),
        pytest.param(KEY6, blob(("fd00:1::5", 8053)), {A6}, id="IPv6"),
        pytest.param(KEY, b"", set(), id="no real server"),
        pytest.param(KEY, None, set(), id="not wanted"),
    ],
)
def test_real_servers_answer_and_the_host_only_without_a_virtual_server(key, servers, expected, stands):
    assert answerers(key, servers, stands=stands) == (expected if stands else {*expected, frontend(key)})


@pytest.mark.parametrize(
    "destination,server,expected",
    [
        pytest.param(DNS, A, False, id="an endpoint"),
        pytest.param(DNS, B, True, id="an endpoint that has left"),
        pytest.param(DNS, packed("10.244.1.5", 53), True, id="another port of an endpoint"),
        pytest.param(DNS, DNS, True, id="the host itself"),
        pytest.param(packed("10.96.0.11", 53), B, False, id="to another frontend"),
        pytest.param(packed("10.96.0.10", 54), B, False, id="to another port of the address"),
        pytest.param(A, A, False, id="to the endpoint past its Service"),
    ],
)
def test_a_flow_is_stale_if_answered_by(destination, server, expected):
    assert is_stale({DNS: {A}}, destination, server) is expected
