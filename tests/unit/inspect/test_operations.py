"""How an operation reads: what changes, from what to what, for whom."""

from __future__ import annotations

import pytest

from ipvsproxy.inspect.operations import operation_lines
from ipvsproxy.model.enums import Family, VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Kind,
    Match,
    Operation,
    Option,
    Rule,
    RuleLayer,
    RuleTable,
    SetEntry,
    SetSpec,
    Verb,
    VirtualServer,
    empty_state,
)
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import FIXED
from tests.builders import addr, blob, vs_key

KEY = vs_key("10.96.0.20", 80)
SIX = vs_key("fd00:10:96::20", 443)
PERSISTENT = VirtualServer("rr", VirtualServerFlags.PERSISTENT, 10800)
WEB = ServiceName("default", "web")


def lines(*operations, observed=None, holders=()):
    return list(operation_lines(operations, {**empty_state(), **(observed or {})}, lambda _: holders))


@pytest.mark.parametrize(
    "operation,observed,line",
    [
        pytest.param(
            Operation(Verb.ADD, Kind.VIRTUAL_SERVER, KEY, PERSISTENT), {},
            "add virtual server 10.96.0.20:80/TCP: rr persistent 10800", id="a new virtual server",
        ),
        pytest.param(
            Operation(Verb.EDIT, Kind.VIRTUAL_SERVER, KEY, VirtualServer("mh", VirtualServerFlags.SCHEDULER_2)),
            {Kind.VIRTUAL_SERVER: {KEY: PERSISTENT}},
            "edit virtual server 10.96.0.20:80/TCP: rr persistent 10800 → mh flags 0x10", id="other settings",
        ),
        pytest.param(
            Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, SIX), {Kind.VIRTUAL_SERVER: {SIX: PERSISTENT}},
            "delete virtual server [fd00:10:96::20]:443/TCP", id="a virtual server that goes",
        ),
        pytest.param(
            Operation(Verb.ADD, Kind.REAL_SERVER, KEY, blob(("10.244.1.5", 8080))), {},
            "add real server 10.244.1.5:8080 of 10.96.0.20:80/TCP: weight 1", id="a new real server",
        ),
        pytest.param(
            Operation(Verb.EDIT, Kind.REAL_SERVER, KEY, blob(("10.244.1.6", 8080, 0))),
            {Kind.REAL_SERVER: {KEY: blob(("10.244.1.5", 8080, 7), ("10.244.1.6", 8080, 1))}},
            "edit real server 10.244.1.6:8080 of 10.96.0.20:80/TCP: weight 1 → weight 0", id="another weight",
        ),
        pytest.param(
            Operation(Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.20"), 6, 80)), {},
            "add accept entry KUBE-CLUSTER-IP 10.96.0.20,tcp:80", id="a set entry",
        ),
        pytest.param(
            Operation(Verb.DELETE, Kind.ADDRESS, addr("10.96.0.20")), {}, "delete address 10.96.0.20/32",
            id="an address",
        ),
        pytest.param(
            Operation(Verb.EDIT, Kind.SYSCTL, "net.ipv4.ip_forward", "1"),
            {Kind.SYSCTL: {"net.ipv4.ip_forward": "0"}},
            "edit sysctl net.ipv4.ip_forward: 0 → 1", id="a sysctl",
        ),
        pytest.param(
            Operation(Verb.EDIT, Kind.SET, "KUBE-CLUSTER-IP", SetSpec("hash:ip,port", Family.IPV4)),
            {Kind.SET: {"KUBE-CLUSTER-IP": SetSpec("hash:net", Family.IPV4)}},
            "edit set KUBE-CLUSTER-IP: hash:net family inet hashsize 1024 maxelem 65536"
            " → hash:ip,port family inet hashsize 1024 maxelem 65536", id="a set of another type",
        ),
    ],
)  # fmt: skip
def test_an_operation_reads(operation, observed, line):
    assert lines(operation, observed=observed) == [line]


def test_what_an_earlier_operation_has_set_is_what_a_later_one_changes():
    first, second = (Operation(Verb.EDIT, Kind.VIRTUAL_SERVER, KEY, VirtualServer(name)) for name in ("lc", "wlc"))
    observed = {Kind.VIRTUAL_SERVER: {KEY: PERSISTENT}}
    assert [line.rpartition(": ")[2] for line in lines(first, second, observed=observed)] == [
        "rr persistent 10800 → lc",
        "lc → wlc",
    ]


def test_it_names_the_services_that_want_it_and_not_the_fixed_layer():
    operation = Operation(Verb.ADD, Kind.ADDRESS, addr("10.96.0.20"))
    assert lines(operation, holders=(WEB, ServiceName("shop", "cart")))[0].endswith("  # default/web, shop/cart")
    assert "#" not in lines(operation, holders=(FIXED,))[0]


def test_of_a_table_it_shows_the_rules_that_go_and_those_that_come():
    table = RuleTable("nat", Family.IPV4)
    stays = Rule("KUBE-MARK-MASQ", "MARK", target_options=(Option("--set-xmark", "0x4000/0x4000"),))
    goes = Rule("KUBE-SERVICES", "ACCEPT")
    comes = Rule("KUBE-SERVICES", "RETURN", (Match("comment", (Option("--comment", "a b"),)),))
    before, after = (RuleLayer(("KUBE-SERVICES", "KUBE-MARK-MASQ"), (), (stays, rule)) for rule in (goes, comes))
    operation = Operation(Verb.EDIT, Kind.RULES, table, after)
    assert lines(operation, observed={Kind.RULES: {table: before}}) == [
        "edit IPv4 nat rules",
        "  - -A KUBE-SERVICES -j ACCEPT",
        '  + -A KUBE-SERVICES -m comment --comment "a b" -j RETURN',
    ]
