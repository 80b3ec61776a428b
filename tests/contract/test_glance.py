"""A glance at real rules of both flavours sees what other programs do to them, and they are put right at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ipvsproxy.kernel.api import Rules
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import RuleTable
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from ipvsproxy.modes.ipvs.sets import ENTRY_KIND_BY_NAME
from tests.clusters import Node, Svc, cluster
from tests.contract.test_rules import Tools

pytestmark = pytest.mark.usefixtures("real_kernel")

NAT = RuleTable("nat", Family.IPV4)


@pytest.fixture(params=["legacy", "nft"])
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tools(flavour: str) -> Tools:
    return Tools(flavour)


@pytest.fixture
def rules(pick: Callable, flavour: str) -> Rules:
    return pick(None, lambda: NftRules(OWN_CHAINS) if flavour == "nft" else LegacyRules(OWN_CHAINS))


@pytest.fixture
def node(pick: Callable, rules: Rules) -> Node:
    """A node with real sets and rules, the rest in memory, that has glanced at its rules."""
    fake = FakeKernel()
    ipsets = pick(None, lambda: NetlinkIPSets(ENTRY_KIND_BY_NAME))
    fake.kernel = replace(fake.kernel, rules=rules, ipsets=ipsets)
    made = Node(fake)
    made.sync(cluster(Svc("a", source_ranges=("198.51.100.0/24",), ingress=(("203.0.113.10", "VIP"),))))
    assert made.reconciler.glance() is None
    return made


def flush(tools: Tools) -> None:
    """As a firewall service does when it is stopped or reloaded."""
    for key in OWN_CHAINS:
        tools.run(key, "-F")
        tools.run(key, "-X")


FOREIGN = ("PREROUTING", "-p", "udp", "-j", "ACCEPT")


def move_up(tools: Tools) -> None:
    """As a network plug-in does that wants to come first: the number of rules and their size are as they were."""
    tools.run(NAT, "-D", *FOREIGN)
    tools.run(NAT, "-I", *FOREIGN)


LOSSES = {
    "everything is flushed": flush,
    "the nat table is flushed": lambda tools: tools.run(NAT, "-F"),
    "one chain is flushed": lambda tools: tools.run(RuleTable("filter", Family.IPV6), "-F", "KUBE-IPVS-FILTER"),
    "a jump goes": lambda tools: tools.run(NAT, "-D", "PREROUTING", "1"),
    "a foreign rule comes before a jump": lambda tools: tools.run(NAT, "-I", *FOREIGN),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_k36_k43_what_another_program_does_to_our_rules_is_seen_by_one_glance_and_put_right(node, tools, loss):
    right = {key: tools.saved_layer(key) for key in OWN_CHAINS}
    LOSSES[loss](tools)
    node.reconciler.glance()
    foreign = "-A PREROUTING -p udp -j ACCEPT\n"  # stays, below ours
    assert {key: tools.saved_layer(key).replace(foreign, "") for key in OWN_CHAINS} == right
    assert sum(node.reconciler.tally.drift.values()) >= 1


def test_k06_a_foreign_rule_that_is_moved_before_a_jump_is_seen_by_one_glance(node, tools):
    tools.run(NAT, "-A", *FOREIGN)
    node.reconciler.glance()
    right = tools.saved(NAT)
    move_up(tools)
    assert tools.saved(NAT) != right
    node.reconciler.glance()
    assert tools.saved(NAT) == right


def test_k43_after_ten_flushes_no_rule_stands_twice(node, tools):
    right = tools.saved_layer(NAT)
    for _ in range(10):
        tools.run(NAT, "-F")
        node.reconciler.glance()
    assert tools.saved_layer(NAT) == right


def test_packets_that_are_counted_change_no_glance(rules, node, tools):
    before = rules.glance()
    words = tools.saved(NAT, "-c")
    tools.call(Family.IPV4, "-restore", "--counters", given="\n".join(words).replace("[0:0]", "[7:700]") + "\n")
    if tools.flavour == "legacy":  # nf_tables numbers the transaction that sets them
        assert rules.glance() == before
    assert node.reconciler.glance() is None
    assert not node.reconciler.tally.drift
