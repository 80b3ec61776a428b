from __future__ import annotations

import pytest

from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer, empty_state
from ipvsproxy.plan.ownership import ours
from tests.builders import addr, blob, vs_key

KEY = vs_key("10.96.0.20", 80)


def state(**also):
    observed = empty_state()
    observed[Kind.VIRTUAL_SERVER] = {KEY: VirtualServer("rr")}
    observed[Kind.REAL_SERVER] = {KEY: blob(("10.244.1.5", 8080))}
    for kind, objects in also.items():
        observed[Kind[kind]] = objects
    return observed


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param({"ADDRESS": {KEY.address: True}}, id="its address is on kube-ipvs0"),
        pytest.param(
            {"BOUND_ENTRY": {SetEntry("KUBE-IPVS-IPS", KEY.address): True}}, id="its address is in KUBE-IPVS-IPS"
        ),
        pytest.param(
            {"ACCEPT_ENTRY": {SetEntry("KUBE-CLUSTER-IP", KEY.address, 6, 80): True}}, id="its port is in a set"
        ),
    ],
)
def test_a_virtual_server_is_ours_when(trace):
    assert ours(state(**trace))[Kind.REAL_SERVER] == {KEY: blob(("10.244.1.5", 8080))}


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param({}, id="nothing of ours names it"),
        pytest.param({"ADDRESS": {addr("10.96.0.21"): True}}, id="another address is bound"),
        pytest.param(
            {"ACCEPT_ENTRY": {SetEntry("KUBE-CLUSTER-IP", KEY.address, 17, 80): True}}, id="set has its udp port"
        ),
    ],
)
def test_a_virtual_server_is_foreign_when(trace):
    observed = state(**trace)
    owned = ours(observed)
    assert owned[Kind.VIRTUAL_SERVER] == owned[Kind.REAL_SERVER] == {}


NODE_IP = addr("192.0.2.11")
TCP_30080 = {"SUPPORT_ENTRY": {SetEntry("KUBE-NODE-PORT-TCP", port=30080): True}}
UDP_30080 = {"SUPPORT_ENTRY": {SetEntry("KUBE-NODE-PORT-UDP", port=30080): True}}


def owned_on_node_ports(keys, entries, host=(NODE_IP,)):
    observed = empty_state()
    for key in keys:
        observed[Kind.VIRTUAL_SERVER][key] = VirtualServer("rr")
        observed[Kind.REAL_SERVER][key] = b""
    for kind, objects in entries.items():
        observed[Kind[kind]] = objects
    return set(ours(observed, host=frozenset(host))[Kind.VIRTUAL_SERVER])


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(TCP_30080, id="its port is in the set of its protocol"),
        pytest.param(
            {"SUPPORT_ENTRY": {SetEntry("KUBE-NODE-PORT-LOCAL-TCP", port=30080): True}}, id="in the set of local ones"
        ),
    ],
)
def test_k48_a_virtual_server_on_a_node_port_is_ours_on_an_address_of_the_node(entries):
    key = vs_key("192.0.2.11", 30080)
    assert owned_on_node_ports([key], entries) == {key}


@pytest.mark.parametrize(
    "key,entries",
    [
        pytest.param(vs_key("192.0.2.99", 30080), TCP_30080, id="on an address that the node does not have"),
        pytest.param(vs_key("192.0.2.11", 30081), TCP_30080, id="on another port of it"),
        pytest.param(vs_key("192.0.2.11", 30080, Protocol.UDP), TCP_30080, id="in another protocol"),
        pytest.param(vs_key("192.0.2.11", 30080), UDP_30080, id="with the port in another protocol's set"),
        pytest.param(vs_key("2001:db8:1::11", 30080), TCP_30080, id="of the other family"),
        pytest.param(
            vs_key("192.0.2.11", 30080),
            {"SUPPORT_ENTRY": {SetEntry("KUBE-HEALTH-CHECK-NODE-PORT", port=30080): True}},
            id="with the port in the set of health checks",
        ),
        pytest.param(vs_key("192.0.2.11", 30080), {}, id="with nothing of ours"),
    ],
)
def test_k48_a_virtual_server_beside_a_node_port_stays_foreign(key, entries):
    assert owned_on_node_ports([key], entries, host=(NODE_IP, addr("2001:db8:1::11"))) == set()


def test_k48_an_ipv6_node_port_is_told_by_the_ipv6_set():
    key = vs_key("2001:db8:1::11", 30080, Protocol.UDP)
    entries = {"SUPPORT_ENTRY": {SetEntry("KUBE-6-NODE-PORT-UDP", port=30080): True}}
    assert owned_on_node_ports([key], entries, host=(addr("2001:db8:1::11"),)) == {key}


@pytest.mark.parametrize(
    "ports,is_ours",
    [
        pytest.param(TCP_30080["SUPPORT_ENTRY"], True, id="at one of our node ports"),
        pytest.param(UDP_30080["SUPPORT_ENTRY"], False, id="at one of another protocol"),
        pytest.param({}, False, id="at none"),
    ],
)
def test_k48_a_virtual_server_on_an_address_that_served_node_ports_once_is_ours(ports, is_ours):
    key = vs_key("192.0.2.50", 30080)
    entries = {"SUPPORT_ENTRY": {SetEntry("KUBE-NODE-PORT-IPS", key.address): True, **ports}}
    assert owned_on_node_ports([key], entries, host=()) == ({key} if is_ours else set())


def test_k48_an_sctp_node_port_is_told_by_its_entry_even_on_an_address_that_is_gone():
    key = vs_key("192.0.2.11", 30132, Protocol.SCTP)
    entries = {"SUPPORT_ENTRY": {SetEntry("KUBE-NODE-PORT-SCTP-HASH", NODE_IP, Protocol.SCTP, 30132): True}}
    assert owned_on_node_ports([key], entries, host=()) == {key}


def test_an_excluded_network_is_never_ours():
    cidr = parse_cidr("10.96.0.0/24")
    assert cidr is not None
    assert ours(state(ADDRESS={KEY.address: True}), [cidr])[Kind.VIRTUAL_SERVER] == {}


def test_what_was_observed_is_not_changed():
    observed = state()
    ours(observed)[Kind.SET]["KUBE-X"] = True
    assert observed[Kind.SET] == {}
