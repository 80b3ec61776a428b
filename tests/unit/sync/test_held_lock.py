"""Another program holds the xtables lock, for a while or for ever: what needs no rule goes on (K44)."""

from __future__ import annotations

import errno

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, Verb
from ipvsproxy.sync.retries import LONGEST_S
from tests.builders import vs_key
from tests.clusters import Node, Svc, cluster

TABLES = [RuleTable(name, family) for name in ("filter", "mangle", "nat") for family in Family]


def hold(fake: FakeKernel) -> None:
    fake.faults |= {(verb, Kind.RULES, table): errno.EAGAIN for verb in (Verb.ADD, Verb.EDIT) for table in TABLES}


def lines(events: list, name: str) -> list:
    return [event for event in events if event["event"] == name]


def test_k44_services_change_while_the_lock_is_held_for_ever():
    node = Node()
    node.sync(cluster(Svc("a")))
    hold(node.fake)
    node.fake.state[Kind.RULES].clear()
    node.reconciler.distrust((Kind.RULES,))
    for number in range(1, 4):
        node.sync(cluster(Svc("a"), Svc("b", (f"10.96.1.{number}",))))
        assert vs_key(f"10.96.1.{number}", 80) in node.fake.state[Kind.VIRTUAL_SERVER]


def test_k44_a_held_lock_is_tried_at_most_once_a_minute_and_said_once_a_table(events):
    node = Node(FakeKernel())
    hold(node.fake)
    node.fake.state[Kind.RULES].clear()
    node.reconciler.distrust((Kind.RULES,))
    node.sync(cluster(Svc("a")))
    node.pass_time(3600)
    refused = lines(events, "operation_refused")
    told = [line for line in refused if line["log_level"] != "debug"]
    assert sorted(line["operation"] for line in told) == sorted(f"add rules {table}" for table in TABLES)
    assert {line["log_level"] for line in told} == {"warning"}
    assert len(refused) <= len(TABLES) * (3600 / LONGEST_S + 8)


def test_k44_when_the_lock_is_free_the_rules_stand_and_it_is_said_how_often_they_were_tried(events):
    node = Node()
    hold(node.fake)
    node.fake.state[Kind.RULES].clear()
    node.reconciler.distrust((Kind.RULES,))
    node.sync(cluster(Svc("a")))
    node.pass_time(20)
    node.fake.faults.clear()
    result = node.pass_time(LONGEST_S)
    assert (result.refused, result.waiting) == (0, 0)
    assert set(node.fake.state[Kind.RULES]) == set(TABLES)
    assert all(line["tries"] > 1 for line in lines(events, "operation_recovered"))
