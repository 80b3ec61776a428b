"""The rules that hold over any sequence of changes and any kernel state at start (house style §1)."""

from __future__ import annotations

import copy
import errno

from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import Kind, State, Verb, VirtualServer
from tests.builders import blob, vs_key
from tests.clusters import Cluster, Node, Svc, cluster
from tests.witness import Witness, open_without_server

IPS = ("10.96.0.20", "10.96.0.21", "fd00:10:96::20")
ENDPOINTS = ("10.244.1.5", "10.244.1.6", "10.244.2.5", "fd00:10:244::5", "fd00:10:244::6")
FOREIGN = vs_key("192.0.2.99", 80)
ENTRIES = (Kind.SUPPORT_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)


def some_of(values, max_size=3):
    return st.lists(st.sampled_from(values), unique=True, max_size=max_size).map(tuple)


def one_of_each_family(ips):
    return tuple({":" in ip: ip for ip in ips}.values())


@st.composite
def services(draw, name):
    return Svc(
        name,
        ips=one_of_each_family(draw(some_of(IPS).filter(bool))),
        ports=draw(some_of(((80, "TCP"), (53, "TCP"), (53, "UDP"), (9, "SCTP"))).filter(bool)),
        endpoints=tuple((ip, draw(st.booleans())) for ip in draw(some_of(ENDPOINTS, 4))),
        affinity_s=draw(st.sampled_from((0, 0, 60))),
        created=draw(st.sampled_from(("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"))),
        local=draw(st.booleans()),
    )


@st.composite
def clusters(draw):
    return cluster(*(draw(services(name)) for name in draw(some_of(("a", "b", "c")))))


@st.composite
def left_overs(draw) -> FakeKernel:
    """A kernel that a run with other settings left behind and somebody then damaged; one foreign entry."""
    node = Node(scheduler=draw(st.sampled_from(("rr", "lc"))))
    node.sync(draw(clusters()))
    fake = node.fake
    spared = draw(
        st.sampled_from((Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY, Kind.ADDRESS))
    )  # the trace that tells what is ours
    damaged = {*ENTRIES, Kind.ADDRESS, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.RULES} - {spared}
    for kind in sorted(damaged):
        for key in draw(some_of(tuple(fake.state[kind]), 2)) if fake.state[kind] else ():
            if kind is Kind.REAL_SERVER:
                fake.state[kind][key] = blob(("10.244.9.9", 1, 0)) if len(key.address) == 4 else b""
            elif key in fake.state[kind]:
                del fake.state[kind][key]
                if kind is Kind.VIRTUAL_SERVER:
                    del fake.state[Kind.REAL_SERVER][key]
    if spared is not Kind.ADDRESS and draw(st.booleans()):
        fake.state[Kind.LINK].clear()
        fake.state[Kind.ADDRESS].clear()
    fake.state[Kind.VIRTUAL_SERVER][FOREIGN] = VirtualServer("wlc")
    fake.state[Kind.REAL_SERVER][FOREIGN] = blob(("192.0.2.100", 80))
    return fake


def fresh(now: Cluster) -> State:
    node = Node()
    node.sync(now)
    return node.fake.state


def without_foreign(state: State) -> State:
    found = {kind: dict(objects) for kind, objects in state.items()}
    found[Kind.VIRTUAL_SERVER].pop(FOREIGN, None)
    found[Kind.REAL_SERVER].pop(FOREIGN, None)
    return found


@given(st.lists(clusters(), min_size=1, max_size=5))
def test_a_second_sync_sends_nothing(sequence):
    node = Node()
    for now in sequence:
        node.sync(now)
        assert node.sync() == 0


@given(st.lists(clusters(), min_size=2, max_size=5))
def test_incremental_equals_from_scratch(sequence):
    node = Node()
    for now in sequence:
        node.sync(now)
    assert node.fake.state == fresh(sequence[-1])


@given(left_overs(), clusters())
def test_any_kernel_state_at_start_converges_in_one_sync(fake, now):
    Node(fake).sync(now)
    assert without_foreign(fake.state) == fresh(now)


@given(left_overs(), clusters())
def test_what_is_not_ours_is_never_touched(fake, now):
    Node(fake).sync(now)
    assert fake.state[Kind.VIRTUAL_SERVER][FOREIGN] == VirtualServer("wlc")
    assert fake.state[Kind.REAL_SERVER][FOREIGN] == blob(("192.0.2.100", 80))


@given(left_overs(), clusters())
def test_a_state_that_is_right_is_not_touched_at_start(fake, now):
    Node(fake).sync(now)
    before = fake.messages
    Node(fake).sync(now)
    assert fake.messages == before


@given(st.lists(clusters(), min_size=2, max_size=4))
def test_k31_no_bound_port_is_accepted_without_a_virtual_server_after_any_message(sequence):
    node = Node()
    for now in sequence:
        Witness(node.fake)
        node.sync(now)


@given(left_overs(), clusters())
def test_k31_holds_from_the_first_message_after_a_start_on_left_overs(fake, now):
    Witness(fake)
    Node(fake).sync(now)


@given(st.lists(clusters(), min_size=2, max_size=4))
def test_k34_what_is_served_before_and_after_a_sync_is_served_all_the_time(sequence):
    node = Node()
    for now in sequence:
        witness = Witness(node.fake)
        node.sync(now)
        witness.check()


@given(left_overs(), clusters())
def test_k34_what_a_former_run_served_is_served_through_the_start(fake, now):
    witness = Witness(fake)
    Node(fake).sync(now)
    witness.check()


@given(clusters(), clusters(), st.data())
def test_a_refused_operation_loses_only_itself_and_is_retried(first, second, data):
    node = Node()
    node.sync(first)
    wanted = fresh(second)
    verb = data.draw(st.sampled_from((Verb.ADD, Verb.DELETE)))
    kinds = (*ENTRIES, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.ADDRESS)
    candidates = [(verb, kind, key) for kind in kinds for key in {**wanted[kind], **node.fake.state[kind]}]
    refused = data.draw(st.sampled_from(candidates)) if candidates else (verb, Kind.ADDRESS, b"")
    node.fake.faults = {refused: errno.EINVAL}
    Witness(node.fake)
    node.sync(second)
    dependent = {refused[2], *_same_front(refused[2], wanted, node.fake.state)}
    for kind in kinds:
        for key in {**wanted[kind], **node.fake.state[kind]}:
            if key not in dependent:
                assert node.fake.state[kind].get(key) == wanted[kind].get(key)
    node.fake.faults = {}
    node.clock.now += 3600
    node.sync()
    assert node.fake.state == wanted


def _same_front(key, *states):
    """Objects that stand behind the same address as the refused one, and so may have to wait for it."""
    address = key if isinstance(key, bytes) else key.address
    return {
        other
        for state in states
        for objects in state.values()
        for other in objects
        if address == (other if isinstance(other, bytes) else getattr(other, "address", None))
    }


@given(clusters(), clusters(), st.sampled_from((errno.ENOBUFS, errno.ETIMEDOUT)))
def test_lost_answers_are_made_good_by_reading_again(first, second, number):
    node = Node()
    node.sync(first)
    real = node.fake.kernel.ipvs.apply
    node.fake.kernel.ipvs.apply = lambda operations: [number for _ in real(operations)]  # type: ignore[method-assign]
    node.sync(second)
    node.fake.kernel.ipvs.apply = real  # type: ignore[method-assign]
    node.clock.now += 3600
    node.sync()
    assert node.fake.state == fresh(second)


def test_the_witness_can_see_a_fault():
    node = Node()
    node.sync(cluster(Svc("a")))
    state = copy.deepcopy(node.fake.state)
    assert open_without_server(state) == set()
    state[Kind.VIRTUAL_SERVER].clear()
    assert open_without_server(state) == {vs_key("10.96.0.20", 80)}
