"""What the sync thread says of itself while it works, waits, is refused or hangs (K52)."""

from __future__ import annotations

import errno

import pytest

from ipvsproxy.cluster.events import Changed, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Figures
from ipvsproxy.model.kernel_objects import Kind, RuleTable, Verb
from ipvsproxy.sync.reconciler import SyncResult
from ipvsproxy.sync.runner import Message, Periods, Runner, Signal
from ipvsproxy.sync.tally import Tally
from tests.builders import FakeClock, ScriptedInbox, vs_key
from tests.clusters import NODE, Node, Svc, cluster

EVENT = (Rejected(()),)
LIMIT_S = 60.0
KEY = vs_key("10.96.0.20", 80)
BOTH = {Family.IPV4: True, Family.IPV6: True}
NEITHER = {Family.IPV4: False, Family.IPV6: False}


def health(runner: Runner, clock: FakeClock) -> dict[Family, bool]:
    return {family: runner.vitals.is_healthy(family, clock.now) for family in Family}


def alive(runner: Runner, clock: FakeClock) -> bool:
    return all(runner.vitals.is_alive(family, clock.now) for family in Family)


class Passes:
    """Takes as long for a pass as the test says, and looks at the runner's vitals when it is nearly over."""

    def __init__(self, clock: FakeClock, *durations_s: float, **result) -> None:
        self.clock = clock
        self.durations_s = list(durations_s)
        self.result = result
        self.runner: Runner
        self.progressed_at = 0.0
        self.progresses = False
        self.seen: list[tuple[dict[Family, bool], bool]] = []
        self.tally = Tally()
        self.figures = Figures()

    def sync(self) -> SyncResult:
        self.clock.now += self.durations_s.pop(0) if self.durations_s else 0
        if self.progresses:
            self.progressed_at = self.clock.now
        self.seen.append((health(self.runner, self.clock), alive(self.runner, self.clock)))
        return SyncResult(services=1, operations=1, refused=0, waiting=0, retry_at=None, **self.result)

    def audit(self, *, in_full: bool) -> SyncResult:  # noqa: ARG002
        return self.sync()


def run(passes: Passes, *script: tuple[float, Message], until: float, min_sync_s: float = 0.0) -> Runner:
    inbox = ScriptedInbox(passes.clock, *script, (until, Signal.STOP))
    tracker = Tracker(NODE, frozenset(Family))
    periods = Periods(min_sync_s, LIMIT_S / 2)
    passes.runner = Runner(inbox, tracker, passes, passes.clock, periods)  # type: ignore[arg-type]
    passes.runner.run()
    return passes.runner


def test_k52_no_family_is_healthy_before_the_first_full_pass_is_through_but_all_are_alive():
    passes = Passes(FakeClock(), 5)
    runner = run(passes, (1, EVENT), until=2)
    assert passes.seen == [(NEITHER, True)]
    assert (health(runner, passes.clock), runner.is_healthy) == (BOTH, True)


def test_k52_passes_before_the_cluster_is_known_do_not_make_a_family_healthy():
    passes = Passes(FakeClock(), is_full=False)
    runner = run(passes, (1, EVENT), until=20)
    assert (health(runner, passes.clock), alive(runner, passes.clock)) == (NEITHER, True)


def test_k52_an_idle_node_stays_healthy():
    passes = Passes(FakeClock())
    runner = run(passes, (1, EVENT), until=7200)
    assert (health(runner, passes.clock), alive(runner, passes.clock)) == (BOTH, True)


@pytest.mark.parametrize(
    "duration_s,healthy",
    [pytest.param(59, BOTH, id="less than two sync periods"), pytest.param(60, NEITHER, id="two sync periods")],
)
def test_health_ends_when_what_was_asked_for_takes(duration_s, healthy):
    passes = Passes(FakeClock(), 0, duration_s)
    runner = run(passes, (1, EVENT), (2, EVENT), until=3)
    assert passes.seen[1] == (healthy, healthy is BOTH)
    assert health(runner, passes.clock) == BOTH  # again, when it is through


def test_k52_a_pass_that_is_slow_and_goes_on_does_not_look_dead():
    passes = Passes(FakeClock(), 0, 300)
    passes.progresses = True
    run(passes, (1, EVENT), (2, EVENT), until=3)
    assert passes.seen[1] == (NEITHER, True)


def test_a_thread_that_hangs_in_an_audit_looks_dead():
    passes = Passes(FakeClock(), 0, LIMIT_S)
    run(passes, (1, EVENT), until=31)
    assert passes.seen[1] == (NEITHER, False)


def test_what_waits_for_the_minimum_period_counts_from_its_arrival_whatever_audits_are_made():
    passes = Passes(FakeClock())
    run(passes, (0, EVENT), (1, EVENT), until=140, min_sync_s=130)
    assert [seen for seen, _ in passes.seen] == [NEITHER, BOTH, BOTH, NEITHER, NEITHER, NEITHER]


class Serving:
    """A node with its runner: `told` brings events, `pass_time` lets retries and audits come."""

    def __init__(self) -> None:
        self.node = Node()
        self.clock = self.node.clock
        self.runner = Runner(
            ScriptedInbox(self.clock), self.node.tracker, self.node.reconciler, self.clock, Periods(0.0, LIMIT_S / 2)
        )

    def goes_on(self, *script: tuple[float, Message], until: float) -> None:
        self.runner._inbox = ScriptedInbox(self.clock, *script, (until, Signal.STOP))
        self.runner.run()

    @property
    def health(self) -> dict[Family, bool]:
        return health(self.runner, self.clock)


def listed(*services: Svc) -> Message:
    changed = (Changed(ref, found) for ref, found in cluster(*services).items())
    return (*changed, Listed("Service"), Listed("EndpointSlice"), Listed("Node"))


DUAL = tuple(
    Svc(f"s{n}", (f"10.96.0.{n}", f"fd00:10:96::{n}"), endpoints=(("10.244.1.5", True), ("fd00::5", True)))
    for n in range(1, 5)
)


def test_k52_a_family_whose_rules_are_refused_turns_unhealthy_alone_and_recovers():
    serving = Serving()
    serving.goes_on((1, listed(*DUAL)), until=2)
    assert serving.health == BOTH
    table = RuleTable("filter", Family.IPV6)
    serving.node.fake.faults[Verb.ADD, Kind.RULES, table] = errno.EINVAL
    serving.node.fake.faults[Verb.EDIT, Kind.RULES, table] = errno.EINVAL
    del serving.node.fake.state[Kind.RULES][table]
    serving.node.reconciler.distrust((Kind.RULES,))
    serving.goes_on((10, EVENT), until=10 + LIMIT_S - 1)
    assert serving.health == BOTH  # not yet
    serving.goes_on(until=310)
    assert serving.health == {Family.IPV4: True, Family.IPV6: False}
    assert not serving.runner.is_healthy
    assert not alive(serving.runner, serving.clock)
    serving.node.fake.faults.clear()
    serving.goes_on(until=400)
    assert (serving.health, serving.runner.is_healthy) == (BOTH, True)


def test_a_family_of_which_most_is_refused_turns_unhealthy():
    serving = Serving()
    for svc in DUAL[:3]:
        serving.node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, vs_key(svc.ips[1], 80)] = errno.EPERM
    serving.goes_on((1, listed(*DUAL)), until=300)
    assert serving.health == {Family.IPV4: True, Family.IPV6: False}


def test_one_refused_object_is_nothing_to_take_a_node_out_for():
    serving = Serving()
    serving.node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, vs_key("10.96.0.1", 80)] = errno.ENOMEM
    serving.goes_on((1, listed(*DUAL)), until=300)
    assert (serving.health, alive(serving.runner, serving.clock)) == (BOTH, True)


def test_a_kernel_that_cannot_be_read_when_it_must_be_makes_both_families_unhealthy():
    serving = Serving()
    serving.goes_on((1, listed(*DUAL)), until=2)

    def read():
        raise KernelError("cannot list addresses", errno.EPERM)

    serving.node.fake.kernel.addresses.read = read  # type: ignore[method-assign]
    serving.goes_on((3, DeviceChanged(DeviceChange.LINK_GONE)), until=300)
    assert serving.health == NEITHER


def test_progress_within_a_pass_is_what_the_kernel_has_answered():
    serving = Serving()
    serving.clock.now = 5
    serving.node.fake.after_message = lambda: setattr(serving.clock, "now", serving.clock.now + 1)
    serving.node.sync(cluster(Svc("a")))
    assert serving.node.reconciler.progressed_at == serving.clock.now > 5


OUR_NODE = ObjectRef("Node", "", NODE)


def our_node(**fields) -> Changed:
    metadata = api.Metadata(name=NODE, deletion_timestamp=fields.get("deleted"))
    taints = tuple(api.Taint(key) for key in fields.get("taints", ()))
    return Changed(OUR_NODE, api.Node(metadata=metadata, spec=api.NodeSpec(taints=taints)))


@pytest.mark.parametrize(
    "events,eligible",
    [
        pytest.param((), False, id="nobody knows our Node"),
        pytest.param((our_node(),), True, id="our Node is there"),
        pytest.param((our_node(taints=["node.kubernetes.io/unschedulable"]),), True, id="another taint"),
        pytest.param((our_node(taints=["ToBeDeletedByClusterAutoscaler"]),), False, id="the autoscaler's taint"),
        pytest.param((our_node(taints=["ToBeDeletedByClusterAutoscaler"]), our_node()), True, id="the taint is gone"),
        pytest.param((our_node(deleted="2026-11-30T12:00:00Z"),), False, id="it is being deleted"),
        pytest.param((our_node(), Removed(OUR_NODE)), False, id="it is deleted"),
    ],
)
def test_load_balancers_may_send_here_when(events, eligible):
    serving = Serving()
    serving.goes_on((1, events), until=2)
    assert serving.runner.vitals.node_is_eligible is eligible


def test_the_nodes_eligibility_is_told_before_the_next_sync():
    serving = Serving()
    serving.runner._not_before = 100
    serving.goes_on((1, (our_node(),)), (2, (our_node(taints=["ToBeDeletedByClusterAutoscaler"]),)), until=3)
    assert serving.runner.vitals.node_is_eligible is False
