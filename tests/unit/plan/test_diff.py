from __future__ import annotations

import pytest

from ipvsproxy.model.kernel_objects import Kind, Operation, Verb, VirtualServer, empty_state
from ipvsproxy.plan.diff import acknowledge, diff
from tests.builders import addr, blob, vs_key

KEY = vs_key("10.96.0.20", 80)
SERVER = (Kind.VIRTUAL_SERVER, KEY)
REAL = (Kind.REAL_SERVER, KEY)


def operations(wanted, applied_real=None, applied_server=None):
    applied = empty_state()
    if applied_server is not None:
        applied[Kind.VIRTUAL_SERVER][KEY] = applied_server
    if applied_real is not None:
        applied[Kind.REAL_SERVER][KEY] = applied_real
    return diff([SERVER, REAL], wanted.get, applied)


def test_what_stands_as_wanted_costs_nothing():
    wanted = {SERVER: VirtualServer("rr"), REAL: blob(("10.244.1.5", 8080))}
    assert operations(wanted, blob(("10.244.1.5", 8080)), VirtualServer("rr")) == []


def test_one_endpoint_more_is_one_operation():
    wanted = {SERVER: VirtualServer("rr"), REAL: blob(("10.244.1.5", 8080), ("10.244.2.5", 8080))}
    assert operations(wanted, blob(("10.244.1.5", 8080)), VirtualServer("rr")) == [
        Operation(Verb.ADD, Kind.REAL_SERVER, KEY, blob(("10.244.2.5", 8080)))
    ]


def test_another_weight_is_an_edit():
    wanted = {SERVER: VirtualServer("rr"), REAL: blob(("10.244.1.5", 8080, 1))}
    assert operations(wanted, blob(("10.244.1.5", 8080, 0)), VirtualServer("rr")) == [
        Operation(Verb.EDIT, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 8080, 1)))
    ]


def test_another_port_is_an_addition_and_a_deletion():
    wanted = {SERVER: VirtualServer("rr"), REAL: blob(("10.244.1.5", 8081))}
    assert operations(wanted, blob(("10.244.1.5", 8080)), VirtualServer("rr")) == [
        Operation(Verb.ADD, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 8081))),
        Operation(Verb.DELETE, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 8080))),
    ]


def test_settings_are_edited_in_place():
    wanted = {SERVER: VirtualServer("rr", persistence_s=60), REAL: b""}
    assert operations(wanted, b"", VirtualServer("rr")) == [
        Operation(Verb.EDIT, Kind.VIRTUAL_SERVER, KEY, VirtualServer("rr", persistence_s=60))
    ]


def test_a_virtual_server_that_goes_takes_its_real_servers_along():
    assert operations({}, blob(("10.244.1.5", 8080)), VirtualServer("rr")) == [
        Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY)
    ]


def test_an_object_named_twice_is_changed_once():
    applied = empty_state()
    address = (Kind.ADDRESS, addr("10.96.0.20"))
    assert len(diff([address, address], {address: True}.get, applied)) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param({SERVER: VirtualServer("rr"), REAL: blob(("10.244.1.5", 8080), ("10.244.2.5", 80))}, id="new"),
        pytest.param({SERVER: VirtualServer("lc"), REAL: blob(("10.244.2.5", 80, 5))}, id="changed"),
        pytest.param({}, id="gone"),
    ],
)
def test_acknowledging_every_operation_leaves_no_difference(wanted):
    applied = empty_state()
    for state in ({SERVER: VirtualServer("rr"), REAL: blob(("10.244.2.5", 80), ("10.244.3.5", 80))}, wanted):
        acknowledge(applied, diff([SERVER, REAL], state.get, applied))
    assert diff([SERVER, REAL], wanted.get, applied) == []
    assert applied[Kind.REAL_SERVER].get(KEY) == wanted.get(REAL)
