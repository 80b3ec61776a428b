"""Audits: what somebody else does to our state is found, told, counted and put right; what is theirs stays."""

from __future__ import annotations

import copy
import errno
import math

import pytest
from structlog.testing import capture_logs

from ipvsproxy.errors import DumpInterrupted
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry, State, VirtualServer
from ipvsproxy.sync.runner import Periods, Runner, Signal
from tests.builders import addr, blob, vs_key
from tests.clusters import Node, Svc, cluster

KEY = vs_key("10.96.0.20", 80)
FOREIGN = vs_key("192.0.2.99", 80)


@pytest.fixture
def node() -> Node:
    """A node that serves one Service and has been audited once."""
    made = Node()
    made.sync(cluster(Svc("a")))
    made.reconciler.audit(in_full=True)
    made.reconciler.audit(in_full=False)
    return made


class Reads:
    """Counts full reads of each subsystem."""

    def __init__(self, fake: FakeKernel) -> None:
        self.kinds: list[frozenset[Kind]] = []
        for subsystem in fake.kernel.subsystems:
            self._count(subsystem)

    def _count(self, subsystem) -> None:
        read = subsystem.read

        def counted() -> State:
            self.kinds.append(subsystem.kinds)
            return read()

        subsystem.read = counted


def damage_real_servers(state):
    state[Kind.REAL_SERVER][KEY] = blob(("10.244.9.9", 80))


def damage_weight(state):
    state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.5", 8080, 0))


def damage_scheduler(state):
    state[Kind.VIRTUAL_SERVER][KEY] = VirtualServer("lc")


def remove_virtual_server(state):
    del state[Kind.VIRTUAL_SERVER][KEY]
    del state[Kind.REAL_SERVER][KEY]


def add_virtual_server_on_our_address(state):
    state[Kind.VIRTUAL_SERVER][vs_key("10.96.0.20", 81)] = VirtualServer("rr")
    state[Kind.REAL_SERVER][vs_key("10.96.0.20", 81)] = b""


def remove_accept_entry(state):
    del state[Kind.ACCEPT_ENTRY][SetEntry("KUBE-CLUSTER-IP", KEY.address, 6, 80)]


def add_accept_entry(state):
    state[Kind.ACCEPT_ENTRY][SetEntry("KUBE-CLUSTER-IP", KEY.address, 6, 22)] = True


def remove_address(state):
    state[Kind.ADDRESS].clear()


def remove_link(state):
    state[Kind.ADDRESS].clear()
    state[Kind.LINK].clear()


def remove_rules(state):
    del state[Kind.RULES][RuleTable("filter", Family.IPV4)]


def change_sysctl(state):
    state[Kind.SYSCTL]["net.ipv4.vs.expire_nodest_conn"] = "0"


every_damage = pytest.mark.parametrize(
    "damage, kinds",
    [
        pytest.param(damage_real_servers, {Kind.REAL_SERVER}, id="other real servers"),
        pytest.param(damage_weight, {Kind.REAL_SERVER}, id="another weight"),
        pytest.param(damage_scheduler, {Kind.VIRTUAL_SERVER}, id="another scheduler"),
        pytest.param(remove_virtual_server, {Kind.VIRTUAL_SERVER, Kind.REAL_SERVER}, id="a virtual server less"),
        pytest.param(
            add_virtual_server_on_our_address, {Kind.VIRTUAL_SERVER, Kind.REAL_SERVER}, id="one more on our address"
        ),
        pytest.param(remove_accept_entry, {Kind.ACCEPT_ENTRY}, id="an entry less"),
        pytest.param(add_accept_entry, {Kind.ACCEPT_ENTRY}, id="an entry more"),
        pytest.param(remove_address, {Kind.ADDRESS}, id="an address less"),
        pytest.param(remove_link, {Kind.ADDRESS, Kind.LINK}, id="no link"),
        pytest.param(remove_rules, {Kind.RULES}, id="no rules"),
        pytest.param(change_sysctl, {Kind.SYSCTL}, id="another sysctl"),
    ],
)


@every_damage
@pytest.mark.parametrize("in_full", [pytest.param(False, id="quick"), pytest.param(True, id="full")])
def test_drift_is_found_told_counted_and_put_right(node, damage, kinds, in_full):
    right = copy.deepcopy(node.fake.state)
    damage(node.fake.state)
    with capture_logs() as logs:
        node.reconciler.audit(in_full=in_full)
    assert node.fake.state == right
    assert {entry["kind"] for entry in logs if entry["event"] == "drift_found"} == kinds
    assert {kind for kind, _ in node.reconciler.tally.drift} == kinds
    assert node.reconciler.audit(in_full=True).operations == 0


@every_damage
def test_the_same_damage_again_at_once_is_found_by_the_next_quick_audit(node, damage, kinds):
    """A program that fights with us must not pass for right since it looks as it did when it was found."""
    right = copy.deepcopy(node.fake.state)
    for _ in range(3):
        damage(node.fake.state)
        with capture_logs() as logs:
            node.reconciler.audit(in_full=False)
        assert node.fake.state == right
        assert {entry["kind"] for entry in logs if entry["event"] == "drift_found"} == kinds


def test_what_we_have_written_and_somebody_undoes_before_the_next_audit_is_found_by_it(node):
    entry = SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.21"), 6, 80)
    before = copy.deepcopy(node.fake.state[Kind.ACCEPT_ENTRY])
    node.sync(cluster(Svc("a"), Svc("b", ips=("10.96.0.21",))))
    for kind in (Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY):
        node.fake.state[kind] = {key: one for key, one in node.fake.state[kind].items() if key.address == KEY.address}
    assert node.fake.state[Kind.ACCEPT_ENTRY] == before
    node.reconciler.audit(in_full=False)
    assert entry in node.fake.state[Kind.ACCEPT_ENTRY]


@pytest.mark.parametrize("in_full", [False, True])
def test_an_audit_of_what_is_right_sends_nothing_and_says_nothing(node, in_full):
    before = node.fake.messages
    with capture_logs() as logs:
        node.reconciler.audit(in_full=in_full)
    assert node.fake.messages == before
    assert logs == []


def test_a_quick_audit_reads_nothing_in_full(node):
    reads = Reads(node.fake)
    node.reconciler.audit(in_full=False)
    assert reads.kinds == []


def test_the_first_quick_audit_has_nothing_to_compare_with_and_reads_in_full():
    node = Node()
    node.sync(cluster(Svc("a")))
    right = copy.deepcopy(node.fake.state)
    remove_accept_entry(node.fake.state)
    node.reconciler.audit(in_full=False)
    assert node.fake.state == right


def test_our_own_changes_are_no_drift(node):
    node.sync(cluster(Svc("a", endpoints=(("10.244.1.6", True),)), Svc("b", ips=("10.96.0.21",))))
    node.reconciler.audit(in_full=False)
    assert not node.reconciler.tally.drift


def test_k48_foreign_virtual_servers_are_told_once_and_stay(node):
    node.fake.state[Kind.VIRTUAL_SERVER][FOREIGN] = VirtualServer("wlc")
    node.fake.state[Kind.REAL_SERVER][FOREIGN] = b""
    with capture_logs() as logs:
        for _ in range(3):
            node.reconciler.audit(in_full=False)
    assert [entry["some"] for entry in logs if entry["event"] == "foreign_virtual_servers"] == [["192.0.2.99:80/TCP"]]
    assert FOREIGN in node.fake.state[Kind.VIRTUAL_SERVER]
    assert not node.reconciler.tally.drift


def test_a_sysctl_that_we_do_not_set_is_the_nodes_own(node):
    node.fake.state[Kind.SYSCTL]["net.ipv4.conf.all.arp_ignore"] = "2"
    assert node.reconciler.audit(in_full=True).operations == 0
    assert node.fake.state[Kind.SYSCTL]["net.ipv4.conf.all.arp_ignore"] == "2"


def test_k15_an_interrupted_dump_deletes_nothing_and_is_read_again(node):
    right = copy.deepcopy(node.fake.state)
    ipsets = node.fake.kernel.ipsets
    read = ipsets.read

    def interrupted() -> State:
        raise DumpInterrupted("cannot read the ipsets", errno.EINTR)

    ipsets.read = interrupted  # type: ignore[method-assign]
    result = node.reconciler.audit(in_full=True)
    assert node.fake.state == right
    assert result.operations == 0
    assert result.retry_at is not None
    ipsets.read = read  # type: ignore[method-assign]
    remove_accept_entry(node.fake.state)
    node.reconciler.audit(in_full=True)
    assert node.fake.state == right


class Audits:
    """A reconciler that only notes audits."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.at: list[tuple[float, bool]] = []
        self.tally = node.reconciler.tally
        self.figures = node.reconciler.figures

    def audit(self, *, in_full: bool):
        self.at.append((self.node.clock.now, in_full))
        return self.node.reconciler.audit(in_full=in_full)


def test_audits_come_every_period_and_one_in_ten_is_full(node):
    audits = Audits(node)
    end = 301

    class Inbox:
        def get(self, timeout_s: float):
            if node.clock.now + timeout_s > end:
                return Signal.STOP
            node.clock.now += timeout_s
            return None

    Runner(Inbox(), node.tracker, audits, node.clock, Periods(audit_s=30)).run()  # type: ignore[arg-type]
    assert [at for at, _ in audits.at] == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300]
    assert [in_full for _, in_full in audits.at] == [False] * 9 + [True]


def test_every_audit_looks_after_what_a_reload_of_the_module_forgets(node):
    looks: list[bool] = []
    node.reconciler.keep_settings = lambda: looks.append(True)
    node.reconciler.audit(in_full=False)
    node.reconciler.audit(in_full=True)
    node.sync()
    assert len(looks) == 2


def test_without_a_period_there_are_no_audits():
    assert Periods().audit_s == math.inf


def test_addresses_are_not_audited_into_being_where_nobody_wants_them(node):
    node.fake.state[Kind.ADDRESS][addr("10.96.0.99")] = True
    node.reconciler.audit(in_full=False)
    assert addr("10.96.0.99") not in node.fake.state[Kind.ADDRESS]
