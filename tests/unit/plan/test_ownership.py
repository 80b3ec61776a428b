from __future__ import annotations

import pytest

from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer, empty_state
from ipvsproxy.plan.ownership import foreign, ours
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
    assert foreign(observed, owned) == [(Kind.VIRTUAL_SERVER, KEY)]


def test_an_excluded_network_is_never_ours():
    cidr = parse_cidr("10.96.0.0/24")
    assert cidr is not None
    assert ours(state(ADDRESS={KEY.address: True}), [cidr])[Kind.VIRTUAL_SERVER] == {}


def test_what_was_observed_is_not_changed():
    observed = state()
    ours(observed)[Kind.SET]["KUBE-X"] = True
    assert observed[Kind.SET] == {}
