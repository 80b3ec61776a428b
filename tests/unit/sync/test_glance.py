"""A glance at our rules every second: what somebody takes out of them is back before the next audit."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import pytest
from structlog.testing import capture_logs

from ipvsproxy.errors import KernelError
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleLayer, RuleTable, State, Verb
from ipvsproxy.sync.runner import GLANCE_S, Message, Periods, Runner, Signal
from tests.clusters import Node, Svc, cluster

NAT = RuleTable("nat", Family.IPV4)
Step: TypeAlias = tuple[float, Callable[[], object]]
WINDOW_S = 2.0  # docs/cases.md, K36


@pytest.fixture
def node() -> Node:
    """A node that serves one Service and has glanced at its rules once."""
    made = Node()
    made.sync(cluster(Svc("a")))
    assert made.reconciler.glance() is None
    return made


def count_reads(node: Node) -> list[float]:
    """When rules are read in full from now on."""
    rules, reads = node.fake.kernel.rules, []
    read = rules.read

    def counted() -> State:
        reads.append(node.clock.now)
        return read()

    rules.read = counted  # type: ignore[method-assign]
    return reads


def flush(state: State) -> None:
    """As `iptables -F; iptables -X` in every table."""
    state[Kind.RULES].clear()


def flush_one_table(state: State) -> None:
    del state[Kind.RULES][NAT]


def remove_a_jump(state: State) -> None:
    layer = state[Kind.RULES][NAT]
    assert isinstance(layer, RuleLayer)
    state[Kind.RULES][NAT] = msgspec.structs.replace(layer, jumps=layer.jumps[1:])


every_loss = pytest.mark.parametrize("loss", [flush, flush_one_table, remove_a_jump], ids=lambda loss: loss.__name__)


class Inbox:
    """No message until the end; something happens at times. Whoever waits moves the clock."""

    def __init__(self, node: Node, script: Sequence[Step], end: float) -> None:
        self._clock = node.clock
        self._script = script
        self._end = end
        self.arrived_at = 0.0

    def get(self, timeout_s: float) -> Message | None:
        until = self._clock.now + timeout_s
        for at, happens in self._script:
            if self._clock.now < at <= until:
                happens()
        self._clock.now = min(until, self._end)
        return Signal.STOP if until > self._end else None


def run(node: Node, *script: Step, until: float) -> Runner:
    periods = Periods(audit_s=1000, glance_s=GLANCE_S)
    runner = Runner(Inbox(node, script, until), node.tracker, node.reconciler, node.clock, periods)
    runner.run()
    return runner


@every_loss
@pytest.mark.parametrize("at", [10.0, 10.3, 10.999])
def test_k36_rules_that_somebody_flushes_are_back_within_the_documented_window(node, loss, at):
    right = copy.deepcopy(node.fake.state)
    run(node, (at, lambda: loss(node.fake.state)), until=at + WINDOW_S - 0.001)
    assert node.fake.state == right


def test_k52_rules_that_cannot_be_put_right_at_a_glance_count_as_failing_before_anything_else_is_tried(node):
    def lose() -> None:
        node.fake.faults[Verb.ADD, Kind.RULES, NAT] = errno.EINVAL
        flush_one_table(node.fake.state)

    vitals = run(node, (10.5, lose), until=11.1).vitals  # it is tried again half a second later
    assert {family: each.is_failing for family, each in vitals.families.items()} == {
        Family.IPV4: True,
        Family.IPV6: False,
    }


@every_loss
def test_k43_each_loss_of_a_hundred_in_a_row_is_put_right_told_and_counted(node, loss):
    right = copy.deepcopy(node.fake.state)
    tables = len(right[Kind.RULES]) if loss is flush else 1
    with capture_logs() as logs:
        for _ in range(100):
            loss(node.fake.state)
            assert node.reconciler.glance() is not None
            assert node.fake.state == right
    assert [log["count"] for log in logs if log["event"] == "drift_found"] == [tables] * 100
    assert sum(node.reconciler.tally.drift.values()) == 100 * tables


def test_a_glance_at_what_nobody_has_touched_reads_and_sends_nothing(node):
    reads, messages = count_reads(node), node.fake.messages
    run(node, until=60)
    assert (reads, node.fake.messages) == ([], messages)


def test_services_that_come_and_go_make_no_glance_read(node):
    reads = count_reads(node)
    node.sync(cluster(Svc("a"), Svc("b", ips=("10.96.0.21",))))
    assert node.reconciler.glance() is None
    assert reads == []


def test_what_is_lost_between_our_own_writing_and_the_next_glance_is_found_by_it():
    node = Node()
    node.sync(cluster(Svc("a")))
    right = copy.deepcopy(node.fake.state)
    flush(node.fake.state)
    node.reconciler.glance()
    assert node.fake.state == right


def test_a_change_of_foreign_rules_is_read_once_and_is_no_drift(node):
    reads, glance = count_reads(node), node.fake.kernel.rules.glance
    node.fake.kernel.rules.glance = lambda: glance() + b", and somebody else's"
    run(node, until=10)
    assert len(reads) == 1
    assert not node.reconciler.tally.drift


def test_a_kernel_that_cannot_be_glanced_at_is_left_to_the_audits(node):
    reads = count_reads(node)

    def refuse() -> bytes:
        raise KernelError("cannot look at the rules", errno.EPERM)

    node.fake.kernel.rules.glance = refuse
    flush(node.fake.state)
    assert node.reconciler.glance() is None
    assert reads == []
    node.reconciler.audit(in_full=False)
    assert node.fake.state[Kind.RULES]


def test_rules_that_cannot_be_read_are_read_by_the_next_glance(node):
    rules, right = node.fake.kernel.rules, copy.deepcopy(node.fake.state)
    read = rules.read

    def refuse() -> State:
        raise KernelError("cannot read the rules", errno.EAGAIN)

    rules.read = refuse
    flush(node.fake.state)
    assert node.reconciler.glance() is None
    rules.read = read
    node.reconciler.glance()
    assert node.fake.state == right


def test_rules_that_cannot_be_written_at_once_are_tried_again_soon(node):
    right = copy.deepcopy(node.fake.state)

    def lose() -> None:
        flush_one_table(node.fake.state)
        node.fake.faults[Verb.ADD, Kind.RULES, NAT] = errno.EAGAIN

    run(node, (10.5, lose), (11.2, node.fake.faults.clear), until=11.6)
    assert node.fake.state == right


def test_a_glance_that_takes_long_comes_less_often(node):
    """Where other rules change all the time and are many, reading them must not keep a processor busy."""
    glances: list[float] = []

    def slow() -> None:
        glances.append(node.clock.now)
        node.clock.now += 0.5

    node.reconciler.glance = slow
    run(node, until=10)
    assert glances == [1.0, 3.5, 6.0, 8.5]
