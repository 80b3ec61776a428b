"""Names, comments and rules that others have made and that are no text: both flavours, on the real kernel."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

import pytest
import structlog

from ipvsproxy.config.types import IptablesBackend
from ipvsproxy.kernel.api import Rules
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_backend import remove_leftovers, report_leftovers
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Operation, Rule, RuleLayer, RuleTable, Verb

ODD = b"caf\xe9"
PROGRAMS = {Family.IPV4: b"iptables", Family.IPV6: b"ip6tables"}
LAYER = RuleLayer(("KUBE-A",), (Rule("OUTPUT", "KUBE-A"),), (Rule("KUBE-A", "RETURN", protocol="tcp"),))
CHANGES = {
    "a foreign chain": [b"-N %s" % ODD],
    "a chain that ours leads to": [b"-N %s" % ODD, b"-A KUBE-A -j %s" % ODD],
    "a foreign chain that leads to ours": [b"-N %s" % ODD, b"-A %s -p tcp -j KUBE-A" % ODD],
    "an interface in our chain": [b"-A KUBE-A -i %s -j ACCEPT" % ODD],
    "an interface prefix in our chain": [b"-A KUBE-A -i %s+ -j ACCEPT" % ODD],
    "an outgoing interface in a chain that is not ours": [b"-A OUTPUT -o %s -j ACCEPT" % ODD],
    "a comment in our chain": [b"-A KUBE-A -m comment --comment %s -j ACCEPT" % ODD],
    "a comment of quotes and backslashes": [b"-A KUBE-A -m comment --comment '\"\\\\ -j ACCEPT"],
    "a comment that looks like an option": [b"-A KUBE-A -m comment --comment -!--x -j ACCEPT"],
    "a comment at a jump to our chain": [b"-A OUTPUT -m comment --comment %s -j KUBE-A" % ODD],
    "an interface at a jump to our chain": [b"-A OUTPUT -o %s -j KUBE-A" % ODD],
}
IS_DIFFERENT = {name for name in CHANGES if "foreign chain" not in name and "not ours" not in name}

pytestmark = pytest.mark.usefixtures("real_kernel")


@pytest.fixture(params=["legacy", "nft"])
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[RuleTable("filter", Family.IPV4), RuleTable("nat", Family.IPV6)], ids=str)
def key(request: pytest.FixtureRequest) -> RuleTable:
    return request.param


@pytest.fixture
def rules(pick: Callable, flavour: str, key: RuleTable) -> Rules:
    chains = {key: LAYER.chains}
    return pick(None, lambda: NftRules(chains) if flavour == "nft" else LegacyRules(chains))


def run(flavour: str, key: RuleTable, words: bytes) -> None:
    program = b"%s-%s" % (PROGRAMS[key.family], flavour.encode())
    subprocess.run([program, b"-t", key.table.encode(), *words.split(b" ")], check=True, capture_output=True)


def write(key: RuleTable, verb: Verb = Verb.ADD) -> Operation:
    return Operation(verb, Kind.RULES, key, LAYER)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_text_is_read_as_different_where_it_is_ours_and_put_right(rules, flavour, key, name):
    assert rules.apply([write(key)]) == [0]
    before = rules.fingerprint()
    for words in CHANGES[name]:
        run(flavour, key, words)
    assert rules.fingerprint() != before
    assert (rules.read()[Kind.RULES][key] != LAYER) is (name in IS_DIFFERENT)
    assert rules.apply([write(key, Verb.EDIT)]) == [0]
    assert rules.read()[Kind.RULES] == {key: LAYER}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_text_does_not_keep_ours_from_being_removed(rules, flavour, key, name):
    rules.apply([write(key)])
    for words in CHANGES[name]:
        run(flavour, key, words)
    is_led_to = name == "a foreign chain that leads to ours"
    assert rules.apply([write(key, Verb.DELETE)]) == [errno.EMLINK if is_led_to else 0]
    assert rules.read()[Kind.RULES] == ({key: RuleLayer(("KUBE-A",), (), ())} if is_led_to else {})


def test_a_foreign_chain_that_is_no_text_is_there_before_ours(rules, flavour, key):
    run(flavour, key, b"-N %s" % ODD)
    assert rules.families == {key.family}
    assert rules.read() == {Kind.RULES: {}}
    assert rules.apply([write(key)]) == [0]


def test_leftovers_beside_names_that_are_no_text_are_found_and_removed(rules, flavour, key):
    rules.apply([write(key)])
    run(flavour, key, b"-N %s" % ODD)
    run(flavour, key, b"-A KUBE-A -i %s -j ACCEPT" % ODD)
    used = IptablesBackend.LEGACY if flavour == "nft" else IptablesBackend.NFT
    assert report_leftovers(used, {key: LAYER.chains}) == [key]
    assert remove_leftovers(used, {key: LAYER.chains}) == 0
    assert rules.read() == {Kind.RULES: {}}


def test_a_refused_layer_and_a_chain_that_stays_are_warnings_once(rules, flavour, key):
    run(flavour, key, b"-N FOREIGN")
    rules.apply([write(key)])
    run(flavour, key, b"-A FOREIGN -j KUBE-A")
    broken = RuleLayer(LAYER.chains, (), (Rule("KUBE-A", "NOSUCHTARGET"),))
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            (number,) = rules.apply([Operation(Verb.EDIT, Kind.RULES, key, broken)])
            assert number
        for _ in range(3):
            assert rules.apply([write(key, Verb.DELETE)]) == [errno.EMLINK]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        (event, level) for event in ("rules_refused", "chain_not_deleted") for level in ("warning", "debug", "debug")
    ]
    assert {entry["table"] for entry in logs} == {str(key)}
