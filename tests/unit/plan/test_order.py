from __future__ import annotations

from itertools import product

import pytest

from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    Operation,
    RuleTable,
    SetEntry,
    Verb,
    VirtualServer,
    VirtualServerKey,
    empty_state,
)
from ipvsproxy.model.names import (
    DUMMY_DEVICE,
    SET_LOAD_BALANCER,
    SET_LOAD_BALANCER_LOCAL,
    SETS_LOAD_BALANCER_SOURCE,
    SETS_NODE_PORT_SCTP,
    SETS_NODE_PORT_TCP,
    SETS_NODE_PORT_UDP,
    set_name,
)
from ipvsproxy.plan.order import PHASE, must_be_gone, must_stand, ordered, still_guards
from tests.builders import addr, blob, vs_key

KEPT = {(Kind.SYSCTL, Verb.DELETE)}  # sysctls are the node's: set, never taken back
HAVE_NO_SETTINGS = {Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY, Kind.ADDRESS}
KEY = vs_key("10.96.0.20", 80)
ENTRY = SetEntry("KUBE-CLUSTER-IP", KEY.address, 6, 80)

GUARD = (Kind.GUARD_ENTRY, SetEntry("KUBE-LOAD-BALANCER-FW", KEY.address, 6, 80))

SUPPORT_GOES = (Kind.SUPPORT_ENTRY, Verb.DELETE)


def bound(_: bytes) -> bool:
    """Every address is on kube-ipvs0, or shall be."""
    return True


def unbound(_: bytes) -> bool:
    """No address is: all are the node's own."""
    return False


def unguarded(_: VirtualServerKey) -> tuple[ObjectId, ...]:
    """No guard entry is wanted."""
    return ()


def test_every_verb_of_every_kind_has_its_place():
    every = {(kind, verb) for kind, verb in product(Kind, Verb) if not (verb is Verb.EDIT and kind in HAVE_NO_SETTINGS)}
    assert set(PHASE) == every - KEPT


def test_an_address_is_bound_after_all_that_it_needs():
    last = PHASE[Kind.ADDRESS, Verb.ADD]
    before = (
        Kind.SET,
        Kind.RULES,
        Kind.LINK,
        Kind.VIRTUAL_SERVER,
        Kind.REAL_SERVER,
        Kind.ACCEPT_ENTRY,
        Kind.BOUND_ENTRY,
    )
    assert all(PHASE[kind, Verb.ADD] < last for kind in before)


def test_a_port_is_accepted_only_while_its_virtual_server_stands():
    assert PHASE[Kind.VIRTUAL_SERVER, Verb.ADD] < PHASE[Kind.ACCEPT_ENTRY, Verb.ADD]
    assert PHASE[Kind.ACCEPT_ENTRY, Verb.DELETE] < PHASE[Kind.VIRTUAL_SERVER, Verb.DELETE]


def test_an_address_leaves_before_the_entry_that_closes_its_other_ports():
    assert PHASE[Kind.ADDRESS, Verb.DELETE] < PHASE[Kind.BOUND_ENTRY, Verb.DELETE]


def test_whatever_is_new_comes_before_whatever_goes():
    assert max(n for (_, verb), n in PHASE.items() if verb is not Verb.DELETE) < min(
        n for (_, verb), n in PHASE.items() if verb is Verb.DELETE
    )


def test_k38_masquerade_and_filter_rules_come_before_the_first_address_and_filter_before_nat():
    operations = [
        Operation(Verb.ADD, Kind.ADDRESS, KEY.address),
        Operation(Verb.ADD, Kind.RULES, RuleTable("nat", Family.IPV4)),
        Operation(Verb.EDIT, Kind.RULES, RuleTable("filter", Family.IPV6)),
        Operation(Verb.ADD, Kind.RULES, RuleTable("filter", Family.IPV4)),
    ]
    keys = [operation.key for phase in ordered(operations, empty_state(), bound) for operation in phase]
    assert keys[-1] == KEY.address
    assert keys.index(RuleTable("filter", Family.IPV4)) < keys.index(RuleTable("nat", Family.IPV4))


def test_k04_what_says_whom_to_masquerade_stands_before_the_rules_that_ask_for_it():
    """A kube-proxy leaves rules that take any local address for a node port's, and no set of those that are."""
    rules = min(PHASE[Kind.RULES, verb] for verb in (Verb.ADD, Verb.EDIT))
    assert PHASE[Kind.SET, Verb.ADD] < PHASE[Kind.SUPPORT_ENTRY, Verb.ADD] < rules


def test_a_phase_holds_one_kind_and_one_verb():
    operations = [Operation(verb, kind, ENTRY) for kind, verb in PHASE]
    for phase in ordered(reversed(operations), empty_state(), bound):
        assert len({(operation.kind, operation.verb) for operation in phase}) == 1


def test_an_accept_entry_needs_its_virtual_server():
    assert must_stand(Operation(Verb.ADD, Kind.ACCEPT_ENTRY, ENTRY), bound, unguarded) == (
        (Kind.SET, ENTRY.set_name),
        (Kind.VIRTUAL_SERVER, KEY),
    )


def test_an_address_needs_link_rules_and_its_closing_entry():
    assert set(must_stand(Operation(Verb.ADD, Kind.ADDRESS, addr("fd00::1")), bound, unguarded)) == {
        (Kind.LINK, DUMMY_DEVICE),
        (Kind.RULES, RuleTable("filter", Family.IPV6)),
        (Kind.RULES, RuleTable("mangle", Family.IPV6)),
        (Kind.RULES, RuleTable("nat", Family.IPV6)),
        (Kind.BOUND_ENTRY, SetEntry("KUBE-6-IPVS-IPS", addr("fd00::1"))),
    }


def test_a_virtual_server_stays_while_any_set_accepts_its_port():
    gone = must_be_gone(Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY), bound)
    assert (Kind.ACCEPT_ENTRY, ENTRY) in gone
    assert [kind for kind, _ in gone] == [Kind.ACCEPT_ENTRY] * 4


def test_a_closing_entry_stays_while_its_address_is_bound():
    operation = Operation(Verb.DELETE, Kind.BOUND_ENTRY, SetEntry("KUBE-IPVS-IPS", KEY.address))
    assert must_be_gone(operation, bound) == ((Kind.ADDRESS, KEY.address),)


ORPHAN_FIRST, ORPHAN_LATER = [Kind.ACCEPT_ENTRY, Kind.ADDRESS], [Kind.ADDRESS, Kind.ACCEPT_ENTRY]
STANDS = {Kind.VIRTUAL_SERVER: {KEY: VirtualServer("rr")}}


@pytest.mark.parametrize(
    "applied, server_goes, expected",
    [
        pytest.param({}, False, ORPHAN_FIRST, id="without its virtual server"),
        pytest.param(
            {Kind.VIRTUAL_SERVER: {KEY: VirtualServer("")}},
            True,
            ORPHAN_FIRST,
            id="whose virtual server is only believed to be there, to be deleted",
        ),
        pytest.param(
            {**STANDS, Kind.ADDRESS: {KEY.address: True}}, True, ORPHAN_LATER, id="but not while clients come in by it"
        ),
        pytest.param(STANDS, False, ORPHAN_LATER, id="nor where they will (K24)"),
    ],
)
def test_k31_an_accept_entry_left_over_goes_before_anything_is_bound(applied, server_goes, expected):
    other = addr("10.96.0.21")
    operations = [Operation(Verb.ADD, Kind.ADDRESS, other), Operation(Verb.DELETE, Kind.ACCEPT_ENTRY, ENTRY)]
    if server_goes:
        operations.append(Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY))
    phases = ordered(operations, {**empty_state(), **applied}, bound)
    assert [phase[0].kind for phase in phases if phase[0].kind is not Kind.VIRTUAL_SERVER] == expected


SERVED = {
    **empty_state(),
    Kind.VIRTUAL_SERVER: {KEY: VirtualServer("rr")},
    Kind.ADDRESS: {KEY.address: True},
    Kind.ACCEPT_ENTRY: {SetEntry("KUBE-EXTERNAL-IP-LOCAL", KEY.address, 6, 80): True},
}


@pytest.mark.parametrize(
    "applied, kinds",
    [
        pytest.param(SERVED, [Kind.ACCEPT_ENTRY, Kind.REAL_SERVER], id="by another set: it may be what masquerades"),
        pytest.param({**SERVED, Kind.ACCEPT_ENTRY: {}}, [Kind.REAL_SERVER, Kind.ACCEPT_ENTRY], id="by none"),
        pytest.param(
            {**SERVED, Kind.VIRTUAL_SERVER: {}},
            [Kind.REAL_SERVER, Kind.ACCEPT_ENTRY],
            id="by another set, but without a virtual server",
        ),
    ],
)
@pytest.mark.parametrize("verb", [pytest.param(Verb.ADD, id="new"), pytest.param(Verb.EDIT, id="with its weight back")])
def test_k24_an_accept_entry_comes_before_a_real_server_where_clients_are_accepted_already(applied, kinds, verb):
    operations = [
        Operation(verb, Kind.REAL_SERVER, KEY, blob(("10.244.2.5", 80))),
        Operation(Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP", KEY.address, 6, 80)),
    ]
    assert [phase[0].kind for phase in ordered(operations, applied, bound)] == kinds


def test_on_an_address_of_the_node_the_entry_that_tells_ours_comes_first_and_goes_last():
    add = [
        Operation(Verb.ADD, Kind.VIRTUAL_SERVER, KEY, VirtualServer("rr")),
        Operation(Verb.ADD, Kind.ACCEPT_ENTRY, ENTRY),
    ]
    assert [phase[0].kind for phase in ordered(add, empty_state(), unbound)] == [Kind.ACCEPT_ENTRY, Kind.VIRTUAL_SERVER]
    delete = [Operation(Verb.DELETE, Kind.ACCEPT_ENTRY, ENTRY), Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY)]
    applied = {**empty_state(), Kind.VIRTUAL_SERVER: {KEY: VirtualServer("rr")}}
    assert [phase[0].kind for phase in ordered(delete, applied, unbound)] == [Kind.VIRTUAL_SERVER, Kind.ACCEPT_ENTRY]


def test_on_an_address_of_the_node_a_virtual_server_waits_for_the_masquerade_rules():
    add = Operation(Verb.ADD, Kind.VIRTUAL_SERVER, KEY, VirtualServer("rr"))
    assert must_stand(add, unbound, unguarded) == ((Kind.RULES, RuleTable("nat", Family.IPV4)),)
    assert must_stand(add, bound, unguarded) == ()
    assert must_be_gone(Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY), unbound) == ()


def test_k36_a_guard_stands_after_what_it_leaves_open_and_before_what_it_guards_and_goes_the_other_way_round():
    kinds = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.VIRTUAL_SERVER, Kind.ACCEPT_ENTRY, Kind.ADDRESS)
    assert sorted(kinds, key=lambda kind: PHASE[kind, Verb.ADD]) == list(kinds)
    assert PHASE[Kind.ADDRESS, Verb.DELETE] < PHASE[Kind.GUARD_ENTRY, Verb.DELETE] < PHASE[SUPPORT_GOES]


def source(network: str, prefix_len: int = 24) -> SetEntry:
    return SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", KEY.address, 6, 80, addr(network), prefix_len)


FORMER, NEW = blob(("10.244.1.5", 80)), blob(("10.244.2.5", 80))


def changed(comes: SetEntry, goes: SetEntry) -> list[Operation]:
    """A frontend gets another Service's allowed source and real server."""
    return [
        Operation(Verb.ADD, Kind.SUPPORT_ENTRY, comes),
        Operation(Verb.DELETE, Kind.SUPPORT_ENTRY, goes),
        Operation(Verb.ADD, Kind.REAL_SERVER, KEY, NEW),
        Operation(Verb.DELETE, Kind.REAL_SERVER, KEY, FORMER),
    ]


GUARDED = {**empty_state(), Kind.GUARD_ENTRY: {GUARD[1]: True}}
COMES, GOES, SERVER_COMES, SERVER_GOES = range(4)


@pytest.mark.parametrize(
    "comes, goes, applied, order",
    [
        pytest.param(
            source("198.51.100.0"),
            source("203.0.113.0"),
            GUARDED,
            [GOES, SERVER_COMES, SERVER_GOES, COMES],
            id="apart: nobody is let in by either",
        ),
        pytest.param(
            source("198.51.100.7", 32),
            source("198.51.100.0"),
            GUARDED,
            [COMES, GOES, SERVER_COMES, SERVER_GOES],
            id="inside the former: those who are in both",
        ),
        pytest.param(
            source("198.51.100.0"),
            source("198.51.100.7", 32),
            GUARDED,
            [SERVER_COMES, SERVER_GOES, COMES, GOES],
            id="around the former: those who are in both",
        ),
        pytest.param(
            source("198.51.100.0"),
            source("203.0.113.0"),
            empty_state(),
            [COMES, GOES, SERVER_COMES, SERVER_GOES],
            id="nothing was closed: they come before what closes",
        ),
        pytest.param(
            SetEntry("KUBE-LOOP-BACK", addr("10.244.2.5"), 6, 80, addr("10.244.2.5")),
            SetEntry("KUBE-LOOP-BACK", addr("10.244.1.5"), 6, 80, addr("10.244.1.5")),
            GUARDED,
            [COMES, SERVER_COMES, SERVER_GOES, GOES],
            id="not what masquerades pods that reach themselves",
        ),
    ],
)
def test_k36_in_between_only_those_sources_are_let_in_that_are_before_and_after(comes, goes, applied, order):
    operations = changed(comes, goes)
    found = [operation for phase in ordered(operations, applied, bound) for operation in phase]
    assert [operations.index(operation) for operation in found] == order


VIPS = {Family.IPV4: addr("203.0.113.20"), Family.IPV6: addr("2001:db8:113::20")}
each_family = pytest.mark.parametrize("family", Family)


def entry_at(family: Family, base: str, *source: object) -> SetEntry:
    return SetEntry(set_name(base, family), VIPS[family], 6, 80, *source)  # type: ignore[arg-type]


@each_family
@pytest.mark.parametrize("base", SETS_LOAD_BALANCER_SOURCE)
def test_k36_in_each_family_sources_of_either_set_narrow_before_and_widen_after(family, base):
    entry = entry_at(family, base, VIPS[family])
    server = Operation(Verb.ADD, Kind.REAL_SERVER, VirtualServerKey(Protocol.TCP, VIPS[family], 80), NEW)
    goes, comes = (Operation(verb, Kind.SUPPORT_ENTRY, entry) for verb in (Verb.DELETE, Verb.ADD))
    guarded = {**empty_state(), Kind.GUARD_ENTRY: {entry_at(family, "KUBE-LOAD-BALANCER-FW"): True}}
    assert list(ordered([server, goes], guarded, bound)) == [[goes], [server]]
    assert list(ordered([comes, server], guarded, bound)) == [[server], [comes]]


@each_family
@pytest.mark.parametrize(
    "every, local",
    [
        (SET_LOAD_BALANCER, SET_LOAD_BALANCER_LOCAL),
        SETS_NODE_PORT_TCP,
        SETS_NODE_PORT_UDP,
        SETS_NODE_PORT_SCTP,
    ],
)
def test_k24_in_each_family_exceptions_from_masquerading_end_before_and_begin_after(family, every, local):
    server = Operation(Verb.ADD, Kind.REAL_SERVER, VirtualServerKey(Protocol.TCP, VIPS[family], 80), NEW)
    goes, comes = (Operation(verb, Kind.SUPPORT_ENTRY, entry_at(family, local)) for verb in (Verb.DELETE, Verb.ADD))
    kind = Kind.ACCEPT_ENTRY if every == SET_LOAD_BALANCER else Kind.SUPPORT_ENTRY
    stands = {**empty_state(), kind: {entry_at(family, every): True}}
    had = {**stands, Kind.SUPPORT_ENTRY: {**stands[Kind.SUPPORT_ENTRY], entry_at(family, local): True}}
    assert list(ordered([server, goes], had, bound)) == [[goes], [server]]
    assert list(ordered([comes, server], stands, bound)) == [[server], [comes]]


def test_k36_sources_go_after_the_guard_that_they_are_exceptions_from():
    operations = [Operation(Verb.DELETE, Kind.SUPPORT_ENTRY, source("198.51.100.0")), Operation(Verb.DELETE, *GUARD)]
    assert list(ordered(operations, GUARDED, bound)) == [[one] for one in reversed(operations)]


@pytest.mark.parametrize(
    "verb, weight, waits",
    [
        pytest.param(Verb.ADD, 1, True, id="a new one"),
        pytest.param(Verb.EDIT, 1, True, id="one that comes back"),
        pytest.param(Verb.EDIT, 0, False, id="not one that leaves"),
        pytest.param(Verb.DELETE, 1, False, id="nor one that goes"),
    ],
)
def test_k36_a_real_server_waits_for_the_guards_of_its_virtual_server(verb, weight, waits):
    operation = Operation(verb, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 80, weight)))
    assert (GUARD in must_stand(operation, bound, lambda key: (GUARD,) if key == KEY else ())) == waits


@pytest.mark.parametrize(
    "wanted, applied, guards",
    [
        pytest.param(blob(("10.244.1.5", 80)), blob(("10.244.1.5", 80)), False, id="what serves is wanted"),
        pytest.param(blob(("10.244.1.5", 80)), blob(("10.244.2.5", 80)), True, id="another one serves still"),
        pytest.param(blob(("10.244.1.5", 80)), blob(("10.244.2.5", 80, 0)), False, id="another one drains"),
        pytest.param(None, blob(("10.244.2.5", 80)), True, id="the virtual server should have gone"),
        pytest.param(None, None, False, id="it has gone"),
    ],
)
def test_k36_a_guard_stays_before_what_serves_and_is_not_wanted_to(wanted, applied, guards):
    state = {**empty_state(), Kind.REAL_SERVER: {} if applied is None else {KEY: applied}}
    assert still_guards(Operation(Verb.DELETE, *GUARD), lambda _: wanted, state) == guards
    assert not still_guards(Operation(Verb.ADD, *GUARD), lambda _: wanted, state)


def test_an_accept_entry_of_any_protocol_number_has_its_place():
    entry = SetEntry("KUBE-CLUSTER-IP", KEY.address, 1, 80)
    assert len(list(ordered([Operation(Verb.DELETE, Kind.ACCEPT_ENTRY, entry)], empty_state(), bound))) == 1


@pytest.mark.parametrize("verb", [Verb.ADD, Verb.EDIT])
def test_a_real_server_loses_its_weight_only_when_those_that_serve_from_now_on_stand(verb):
    operations = [
        Operation(Verb.DELETE, Kind.REAL_SERVER, KEY, blob(("10.244.1.7", 80))),
        Operation(Verb.EDIT, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 80, 0))),
        Operation(verb, Kind.REAL_SERVER, KEY, blob(("10.244.1.6", 80))),
    ]
    assert list(ordered(operations, empty_state(), bound)) == [[one] for one in reversed(operations)]
