"""When a sync runs: shown by cause, on a clock that moves only when somebody waits."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ipvsproxy.cluster.events import Changed, Listed, ObjectRef, Rejected
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.gateways import DefaultGateways
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged, HostAddresses
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Figures
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.sync.lingering import CHECK_S
from ipvsproxy.sync.reconciler import SyncResult
from ipvsproxy.sync.runner import TAKE_S, Message, Periods, Runner, Signal
from ipvsproxy.sync.tally import Tally
from tests.builders import FakeClock, ScriptedInbox, addr, blob, vs_key
from tests.clusters import NODE, Node, Svc, cluster
from tests.witness import served

KEY = vs_key("10.96.0.20", 80)
EVENT = (Rejected(()),)


class RecordedReconciler:
    """Notes when it is called; answers what the test says."""

    def __init__(
        self,
        clock: FakeClock,
        retries: tuple[float | None, ...] = (),
        duration_s: float = 0,
        *,
        matters: bool = True,
    ) -> None:
        self.clock = clock
        self.matters = matters
        self.told: list[frozenset[PackedAddr]] = []
        self.retries = list(retries)
        self.duration_s = duration_s
        self.synced_at: list[float] = []
        self.device_changes: list[DeviceChanged] = []
        self.tally = Tally()
        self.figures = Figures()

    def sync(self) -> SyncResult:
        self.synced_at.append(self.clock.now)
        self.clock.now += self.duration_s
        retry_at = self.retries.pop(0) if self.retries else None
        return SyncResult(services=1, operations=2, refused=3, waiting=4, retry_at=retry_at, draining=5)

    def device_changed(self, event: DeviceChanged) -> bool:
        self.device_changes.append(event)
        return self.matters

    def host_changed(self, addresses: frozenset[PackedAddr]) -> bool:
        self.told.append(addresses)
        return self.matters

    gateways_changed = host_changed


def run(*script, min_sync_period_s=0.0, **reconciler_options):
    clock = FakeClock()
    inbox = ScriptedInbox(clock, *script, (10_000, Signal.STOP))
    reconciler = RecordedReconciler(clock, **reconciler_options)
    tracker = Tracker(NODE, frozenset(Family))
    Runner(inbox, tracker, reconciler, clock, Periods(min_sync_period_s)).run()  # type: ignore[arg-type]
    return reconciler, inbox


def synced_at(*script, **options):
    return run(*script, **options)[0].synced_at


def test_an_event_triggers_the_sync_at_once():
    assert synced_at((5, EVENT), (9, EVENT)) == [5, 9]


def test_nobody_wakes_without_news():
    reconciler, inbox = run((5, EVENT))
    assert reconciler.synced_at == [5]
    assert [wait for wait in inbox.waits if wait != 0] == [math.inf, math.inf]  # there is no timer


def test_events_that_lie_in_the_queue_together_are_one_sync():
    assert synced_at((5, EVENT), (5, EVENT), (5, EVENT)) == [5]


class BusyInbox:
    """A queue in which something lies whenever it is asked, for a minute; taking it costs a tenth of a second."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.arrived_at = 0.0

    def get(self, timeout_s: float | None) -> Message:  # noqa: ARG002 - nobody ever waits
        self.clock.now += 0.1
        return EVENT if self.clock.now < 60 else Signal.STOP


def test_who_sends_without_a_pause_does_not_keep_a_sync_waiting():
    clock = FakeClock()
    reconciler = RecordedReconciler(clock)
    Runner(BusyInbox(clock), Tracker(NODE, frozenset(Family)), reconciler, clock, Periods()).run()  # type: ignore[arg-type]
    gaps = [later - earlier for earlier, later in pairwise((0.0, *reconciler.synced_at, 60.0))]
    assert max(gaps) < 2 * TAKE_S


def test_k38_the_first_sync_does_not_wait_for_the_minimum_period():
    assert synced_at((0, EVENT), min_sync_period_s=60) == [0]


def test_events_within_the_minimum_period_wait_for_its_end_and_are_one_sync():
    assert synced_at((1, EVENT), (2, EVENT), (3, EVENT), min_sync_period_s=10) == [1, 11]


def test_the_minimum_period_counts_from_the_end_of_a_sync():
    assert synced_at((0, EVENT), (4, EVENT), min_sync_period_s=10, duration_s=3) == [0, 13]


def test_an_event_after_the_minimum_period_does_not_wait():
    assert synced_at((1, EVENT), (20, EVENT), min_sync_period_s=10) == [1, 20]


def test_a_retry_wakes_when_it_is_due():
    assert synced_at((1, EVENT), retries=(1.5, 2.5, None)) == [1, 1.5, 2.5]


def test_an_event_before_a_retry_is_due_is_synced_at_once():
    assert synced_at((1, EVENT), (2, EVENT), retries=(5, None)) == [1, 2]


def test_a_retry_that_is_overdue_is_made_at_once():
    assert synced_at((1, EVENT), retries=(0.5, None)) == [1, 1]


def test_stop_ends_the_loop_and_what_lies_before_it_is_left():
    reconciler, inbox = run((1, EVENT), (5, EVENT), (5, Signal.STOP))
    assert reconciler.synced_at == [1]
    assert inbox.clock.now == 5


def test_a_change_of_the_device_goes_to_the_reconciler_and_triggers_a_sync():
    change = DeviceChanged(DeviceChange.LINK_GONE)
    reconciler, _ = run((3, change))
    assert (reconciler.device_changes, reconciler.synced_at) == ([change], [3])


def test_a_change_of_the_device_that_takes_nothing_away_triggers_nothing():
    reconciler, _ = run((3, DeviceChanged(DeviceChange.LINK_UP)), matters=False)
    assert (len(reconciler.device_changes), reconciler.synced_at) == (1, [])


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(HostAddresses(frozenset({addr("192.0.2.50")})), id="addresses of the host"),
        pytest.param(DefaultGateways(frozenset({addr("192.0.2.50")})), id="default gateways"),
    ],
)
def test_addresses_that_change_go_to_the_reconciler_and_trigger_a_sync_if_they_matter(message):
    for matters, synced in ((True, [3]), (False, [])):
        reconciler, _ = run((3, message), matters=matters)
        assert (reconciler.told, reconciler.synced_at) == ([message.addresses], synced)


def test_what_matters_is_not_forgotten_for_what_does_not_and_comes_behind_it():
    class Picky(RecordedReconciler):
        def host_changed(self, addresses: frozenset[PackedAddr]) -> bool:
            return bool(addresses)

        gateways_changed = host_changed

        def device_changed(self, event: DeviceChanged) -> bool:
            return event.change is DeviceChange.LINK_GONE

    some, none = frozenset({addr("192.0.2.50")}), frozenset[PackedAddr]()
    nothing = (HostAddresses(none), DefaultGateways(none), DeviceChanged(DeviceChange.LINK_UP))
    for first in (HostAddresses(some), DefaultGateways(some), DeviceChanged(DeviceChange.LINK_GONE), EVENT):
        clock = FakeClock()
        inbox = ScriptedInbox(clock, *((3, message) for message in (first, *nothing)), (10_000, Signal.STOP))
        reconciler = Picky(clock)
        Runner(inbox, Tracker(NODE, frozenset(Family)), reconciler, clock, Periods()).run()  # type: ignore[arg-type]
        assert reconciler.synced_at == [3]


def test_each_sync_is_one_line(events):
    run((1, EVENT), duration_s=0.0031)
    assert events == [
        {
            "event": "sync_finished",
            "log_level": "info",
            "mode": "ipvs",
            "services": 1,
            "operations": 2,
            "refused": 3,
            "waiting": 4,
            "draining": 5,
            "duration_ms": 3.1,
        }
    ]


def test_a_look_at_what_drains_is_a_line_only_if_it_found_something_to_do(events):
    node = Node()
    node.sync(cluster(Svc("a", endpoints=(("10.244.1.5", True), ("10.244.2.5", True)))))
    node.fake.connections[KEY, real_servers.identity(blob(("10.244.1.5", 8080)))] = 1
    node.tell(cluster(Svc("a", endpoints=(("10.244.2.5", True),))))

    class Inbox(ScriptedInbox):
        def get(self, timeout_s):
            message = super().get(timeout_s)
            if self.clock.now > 2 * CHECK_S:
                node.fake.connections.clear()
            return message

    inbox = Inbox(node.clock, (1.0, EVENT), (3 * CHECK_S, Signal.STOP))
    Runner(inbox, node.tracker, node.reconciler, node.clock, Periods()).run()
    told = [(event["log_level"], event["draining"]) for event in events if event["event"] == "sync_finished"]
    assert told == [("info", 1), ("debug", 1), ("info", 0)]


class Failing(RecordedReconciler):
    """Does what it can at first, and is refused some objects by the kernel again and again."""

    def __init__(self, clock: FakeClock, refused: tuple[int, ...]) -> None:
        super().__init__(clock)
        self.refused = list(refused)
        self.audits = 0

    def sync(self) -> SyncResult:
        self.synced_at.append(self.clock.now)
        refused = self.refused.pop(0)
        is_first = len(self.synced_at) == 1
        retry_at = self.clock.now + 1 if self.refused else None
        return SyncResult(int(is_first), int(is_first), refused, 0, retry_at)

    def audit(self, *, in_full: bool) -> SyncResult:
        self.audits += in_full
        return SyncResult(0, 0, self.refused[0] if self.refused else 1, 0, None)


def levels(events, name: str) -> list[tuple[str, int]]:
    return [(event["log_level"], event["refused"]) for event in events if event["event"] == name]


def failing(*refused: int, audit_s: float = math.inf, until: float = 100.0) -> Failing:
    clock = FakeClock()
    reconciler = Failing(clock, refused)
    inbox = ScriptedInbox(clock, (1, EVENT), (until, Signal.STOP))
    Runner(inbox, Tracker(NODE, frozenset(Family)), reconciler, clock, Periods(0.0, audit_s)).run()  # type: ignore[arg-type]
    return reconciler


def test_an_object_that_fails_again_and_again_is_told_once_and_again_when_the_number_changes(events):
    failing(1, 1, 1, 2, 1, 0)
    assert levels(events, "sync_finished") == [
        ("info", 1), ("debug", 1), ("debug", 1), ("info", 2), ("info", 1), ("info", 0),
    ]  # fmt: skip


def test_what_goes_on_failing_is_counted_at_each_full_audit_and_no_other(events):
    reconciler = failing(1, audit_s=10, until=205)
    assert reconciler.audits == 2
    assert levels(events, "audit_finished") == [("info", 1)] * 2


def test_a_sync_that_had_nothing_to_do_is_no_line_for_the_operator_but_the_first(events):
    clock = FakeClock()

    class Idle(RecordedReconciler):
        def sync(self) -> SyncResult:
            return SyncResult(0, 0, 0, 0, None)

    inbox = ScriptedInbox(clock, (1, EVENT), (2, EVENT), (5, Signal.STOP))
    Runner(inbox, Tracker(NODE, frozenset(Family)), Idle(clock), clock, Periods()).run()  # type: ignore[arg-type]
    assert levels(events, "sync_finished") == [("info", 0), ("debug", 0)]


def test_what_a_sync_raises_ends_the_loop():
    clock = FakeClock()

    class Broken(RecordedReconciler):
        def sync(self) -> SyncResult:
            raise AssertionError("ours")

    inbox = ScriptedInbox(clock, (1, EVENT), (10_000, Signal.STOP))
    runner = Runner(inbox, Tracker(NODE, frozenset(Family)), Broken(clock), clock, Periods())  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="ours"):
        runner.run()


def test_an_event_of_the_cluster_is_in_the_kernel_when_the_loop_waits_again():
    node = Node()
    first = [Changed(ref, found) for ref, found in cluster(Svc("a")).items()]
    ref = ObjectRef("EndpointSlice", "default", "a-ipv4")
    second = Changed(ref, cluster(Svc("a", endpoints=(("10.244.2.5", True),)))[ref])
    script = (
        (1.0, (*first, Listed("Service"), Listed("EndpointSlice"), Listed("Node"))),
        (7.0, (second,)),
        (8.0, Signal.STOP),
    )
    seen = []

    class Inbox(ScriptedInbox):
        def get(self, timeout_s):
            if timeout_s != 0:
                seen.append((self.clock.now, bytes(node.fake.state[Kind.REAL_SERVER].get(KEY, b""))[:4]))  # type: ignore[arg-type]
            return super().get(timeout_s)

    inbox = Inbox(node.clock, *script)
    Runner(inbox, node.tracker, node.reconciler, node.clock, Periods()).run()
    assert seen == [(0, b""), (1, bytes((10, 244, 1, 5))), (7, bytes((10, 244, 2, 5)))]
    assert KEY in served(node.fake.state)
