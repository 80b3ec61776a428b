"""The rules that hold over any sequence of changes and any kernel state at start (house style §1)."""

from __future__ import annotations

import contextlib
import copy
import errno
from collections import Counter
from itertools import pairwise
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.cluster.events import Listed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.first_sync import rehearse
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, State, Verb, VirtualServer, VirtualServerKey
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.lingering import CHECK_S, GRACE_S
from ipvsproxy.sync.outcomes import Outcome, judge
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Cluster, Node, Svc, cluster, events
from tests.witness import Witness, admitted, closed, open_without_server

IPS = ("10.96.0.20", "10.96.0.21", "fd00:10:96::20")
ENDPOINTS = ("10.244.1.5", "10.244.1.6", "10.244.2.5", "fd00:10:244::5", "fd00:10:244::6")
# Some have a node port's number: an external IP that is the node's own makes one frontend with it.
PORTS = ((80, "TCP"), (53, "TCP"), (53, "UDP"), (9, "SCTP"), (30080, "TCP"), (30080, "UDP"), (30081, "SCTP"))
NODE_PORTS = (0, 30080, 30081)
HOSTS = ("192.0.2.11", "192.0.2.12", "198.51.100.11", "2001:db8:1::11")
# Two Services may ask for one address, for another one's cluster IP, or for an address that the node itself has.
EXTERNAL_IPS = ("203.0.113.20", "10.96.0.21", "192.0.2.11", "2001:db8:113::20", "2001:db8:1::11")
BALANCER_IPS = ("203.0.113.20", "198.51.100.11", "2001:db8:113::20")
# On one of the node's addresses, and on another host's at one of our node ports (K48).
FOREIGN = (vs_key("192.0.2.12", 8443), vs_key("192.0.2.99", 30080))
FOREIGN_SERVERS = blob(("192.0.2.100", 80))
ENTRIES = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)
RANGES = ("198.51.100.0/24", "198.51.100.7/32", "10.0.0.0/8", "2001:db8:5::/48", "0.0.0.0/0")
DRAIN_S = 900.0


class Connected(Counter[tuple[VirtualServerKey, bytes]]):
    """Connections to the real servers with these addresses, whichever virtual server they are behind."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.addresses = frozenset(map(addr, addresses))

    def __repr__(self) -> str:
        return f"Connected({', '.join(map(repr, map(format_addr, self.addresses)))})"

    def __missing__(self, key: tuple[VirtualServerKey, bytes]) -> int:
        return int(key[1][:-2] in self.addresses)  # the port is the rest


class World(msgspec.Struct, frozen=True):
    """A cluster, and the addresses of the node's interfaces."""

    cluster: Cluster
    host: tuple[str, ...]

    @property
    def addresses(self) -> frozenset[PackedAddr]:
        """The node's addresses, packed."""
        return frozenset(map(addr, self.host))


def some_of(values, max_size=3):
    return st.lists(st.sampled_from(values), unique=True, max_size=max_size).map(tuple)


def one_of_each_family(ips):
    return tuple({":" in ip: ip for ip in ips}.values())


@st.composite
def services(draw, name):
    ports = draw(some_of(PORTS).filter(bool))
    endpoints = draw(some_of(ENDPOINTS, 4))
    return Svc(
        name,
        ips=one_of_each_family(draw(some_of(IPS).filter(bool))),
        ports=ports,
        endpoints=tuple((ip, draw(st.booleans())) for ip in endpoints),
        here=tuple(ip for ip in endpoints if draw(st.booleans())),
        internal_policy=draw(st.sampled_from(("Cluster", "Cluster", "Local"))),
        external_policy=draw(st.sampled_from(("Cluster", "Local"))),
        source_ranges=draw(some_of(RANGES, 2)),
        affinity_s=draw(st.sampled_from((0, 0, 60))),
        created=draw(st.sampled_from(("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"))),
        local=draw(st.booleans()),
        node_ports=tuple(draw(st.sampled_from(NODE_PORTS)) for _ in ports),
        external_ips=draw(some_of(EXTERNAL_IPS, 2)),
        ingress=tuple((ip, "VIP") for ip in draw(some_of(BALANCER_IPS, 2))),
        health_port=draw(st.sampled_from((0, 32100, 32101))),
    )


@st.composite
def clusters(draw):
    return cluster(*(draw(services(name)) for name in draw(some_of(("a", "b", "c")))))


def connections():
    """Now and then nobody is connected to anything, else to some."""
    return some_of(ENDPOINTS).map(lambda addresses: Connected(*addresses))


def hosts():
    return some_of(HOSTS)


def worlds():
    return st.builds(World, clusters(), hosts())


@st.composite
def histories(draw, max_size=5):
    """Worlds one after the other; often only the cluster or only the node's addresses change."""
    found = [draw(worlds())]
    for what in draw(st.lists(st.sampled_from(("cluster", "host", "both")), min_size=1, max_size=max_size - 1)):
        now = draw(worlds())
        if what == "cluster":
            now = World(now.cluster, found[-1].host)
        elif what == "host":
            now = World(found[-1].cluster, now.host)
        found.append(now)
    return found


def node_in(world: World, fake: FakeKernel | None = None, scheduler: str = "rr") -> Node:
    """A node whose proxy starts in this world, before its first sync."""
    node = Node(fake, scheduler=scheduler, host=world.host)
    node.tell(world.cluster)
    return node


def connected(node: Node, connections: Connected) -> Node:
    """The same node, with clients."""
    node.fake.connections = connections
    return node


def settle(node: Node) -> None:
    """All that drains has drained."""
    node.pass_time(DRAIN_S + GRACE_S + CHECK_S)


def live(node: Node, world: World) -> None:
    """The world becomes this, then one sync."""
    node.has(*world.host)
    node.sync(world.cluster)


@st.composite
def left_overs(draw) -> tuple[FakeKernel, World]:
    """A kernel that a run with other settings left behind and somebody then damaged; two foreign virtual servers.

    And the world of now, in which the node has the addresses that it had.
    """
    before = draw(worlds())
    node = node_in(before, scheduler=draw(st.sampled_from(("rr", "lc"))))
    node.sync()
    fake = node.fake
    # The trace that tells what is ours. What is not bound has its own set entry as its only one.
    spared = draw(st.sampled_from((Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY, Kind.ADDRESS)))
    damaged = {*ENTRIES, Kind.ADDRESS, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.RULES} - {spared}
    for kind in sorted(damaged):
        candidates = tuple(key for key in fake.state[kind] if not _is_only_trace(kind, key, fake.state))
        for key in draw(some_of(candidates, 2)) if candidates else ():
            if kind is Kind.REAL_SERVER:
                fake.state[kind][key] = blob(("10.244.9.9", 1, 0)) if len(key.address) == 4 else b""
            elif key in fake.state[kind]:
                del fake.state[kind][key]
                if kind is Kind.VIRTUAL_SERVER:
                    del fake.state[Kind.REAL_SERVER][key]
    if spared is not Kind.ADDRESS and draw(st.booleans()):
        fake.state[Kind.LINK].clear()
        fake.state[Kind.ADDRESS].clear()
    for key in FOREIGN:
        fake.state[Kind.VIRTUAL_SERVER][key] = VirtualServer("wlc")
        fake.state[Kind.REAL_SERVER][key] = FOREIGN_SERVERS
    return fake, World(draw(clusters()), before.host)


def _is_only_trace(kind: Kind, key: object, state: State) -> bool:
    """Whether an entry belongs to a virtual server on an address that is not bound."""
    if not isinstance(key, SetEntry) or kind is Kind.BOUND_ENTRY:
        return False
    return "NODE-PORT" in key.set_name or (kind is Kind.ACCEPT_ENTRY and key.address not in state[Kind.ADDRESS])


def fresh(world: World) -> State:
    node = node_in(world)
    node.sync()
    return node.fake.state


def without_foreign(state: State) -> State:
    found = {kind: dict(objects) for kind, objects in state.items()}
    for key in FOREIGN:
        found[Kind.VIRTUAL_SERVER].pop(key, None)
        found[Kind.REAL_SERVER].pop(key, None)
    return found


@given(histories(), connections())
def test_a_second_sync_sends_nothing(history, connections):
    node = connected(node_in(history[0]), connections)
    for world in history:
        live(node, world)
        assert node.sync() == 0


@given(histories())
def test_incremental_equals_from_scratch(history):
    node = node_in(history[0])
    for world in history:
        live(node, world)
    assert node.fake.state == fresh(history[-1])


@given(histories(), connections(), st.sampled_from((0, 1, CHECK_S, DRAIN_S)), st.booleans())
def test_incremental_equals_from_scratch_once_all_has_drained_and_nothing_is_left_to_do(
    history, connections, pause_s, ends
):
    node = connected(node_in(history[0]), connections)
    for world in history:
        live(node, world)
        node.pass_time(pause_s)
    if ends:
        node.fake.connections = Connected()
    settle(node)
    assert node.reconciler.sync().retry_at is None
    assert node.fake.state == fresh(history[-1])


@given(histories())
def test_what_load_balancers_are_told_does_not_depend_on_the_way_there(history):
    node, anew = node_in(history[0]), node_in(history[-1])
    for world in history:
        live(node, world)
    anew.sync()
    assert node.published[-1].checks == anew.published[-1].checks


@given(left_overs())
def test_any_kernel_state_at_start_converges_in_one_sync(found):
    fake, now = found
    node_in(now, fake).sync()
    assert without_foreign(fake.state) == fresh(now)


@given(left_overs(), connections())
def test_any_kernel_state_at_start_converges_once_all_has_drained(found, connections):
    fake, now = found
    settle(connected(node_in(now, fake), connections))
    assert without_foreign(fake.state) == fresh(now)


@given(left_overs(), hosts(), connections())
def test_what_is_not_ours_is_never_touched(found, host, connections):
    fake, now = found
    node = connected(node_in(now, fake), connections)
    live(node, World(now.cluster, host))
    settle(node)
    for key in FOREIGN:
        assert fake.state[Kind.VIRTUAL_SERVER][key] == VirtualServer("wlc")
        assert fake.state[Kind.REAL_SERVER][key] == FOREIGN_SERVERS


@given(left_overs())
def test_a_state_that_is_right_is_not_touched_at_start(found):
    fake, now = found
    node_in(now, fake).sync()
    before = fake.messages
    node_in(now, fake).sync()
    assert fake.messages == before


@given(histories(max_size=4), connections())
def test_k31_no_bound_port_is_accepted_without_a_virtual_server_after_any_message(history, connections):
    node = connected(node_in(history[0]), connections)
    for world in history:
        Witness(node.fake)
        live(node, world)
    settle(node)


@given(left_overs(), connections())
def test_k31_holds_from_the_first_message_after_a_start_on_left_overs(found, connections):
    fake, now = found
    fake.connections = connections
    Witness(fake)
    settle(node_in(now, fake))


@given(left_overs(), st.data())
def test_k31_holds_after_a_start_whatever_single_addition_the_kernel_refuses(found, data):
    fake, now = found
    kinds = (*ENTRIES, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.RULES)
    wanted = fresh(now)
    candidates = [(Verb.ADD, kind, key) for kind in kinds for key in wanted[kind]]
    if candidates:
        fake.faults = {data.draw(st.sampled_from(candidates)): errno.ENOMEM}
    node_in(now, fake).sync()
    assert open_without_server(fake.state) == set()


@given(worlds(), clusters(), st.integers(0, 30), connections())
def test_after_a_crash_at_any_message_the_next_start_leaves_what_a_fresh_one_would(world, after, messages, connections):
    node = connected(node_in(world), connections)
    node.sync()
    left = iter(range(messages))

    def crash() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    node.fake.after_message = crash
    with contextlib.suppress(KeyboardInterrupt):
        node.sync(after)
    node.fake.after_message = lambda: None
    now = World(after, world.host)
    settle(node_in(now, node.fake))
    assert node.fake.state == fresh(now)


def lossy(fake: FakeKernel, random: Random) -> None:
    """From now on each dump of IPVS misses three in ten of its virtual and real servers, and does not say so."""
    whole = fake.kernel.ipvs.read

    def read() -> State:
        found = whole()
        for key in sorted(found[Kind.VIRTUAL_SERVER], key=str):
            if random.random() < 0.3:
                del found[Kind.VIRTUAL_SERVER][key], found[Kind.REAL_SERVER][key]
            else:
                kept = [
                    one
                    for one in real_servers.split(found[Kind.REAL_SERVER][key], len(key.address))
                    if random.random() < 0.7
                ]
                found[Kind.REAL_SERVER][key] = real_servers.join(kept)
        return found

    fake.kernel.ipvs.read = read


@given(histories(), connections(), st.randoms(use_true_random=False), st.booleans())
def test_k48_no_virtual_server_is_left_behind_by_dumps_that_miss_some(history, connections, random, restarts):
    """With restarts nothing drains: then an address is the only trace, and does not tell the port."""
    node = connected(node_in(history[0]), Connected() if restarts else connections)
    node.sync()
    whole = node.fake.kernel.ipvs.read
    lossy(node.fake, random)
    for before, world in pairwise(history):
        if restarts:  # with the addresses that the node had: they alone tell whose a node port is
            node = node_in(World(world.cluster, before.host), node.fake)
            node.sync()
        node.reconciler.audit(in_full=True)
        live(node, world)
    node.fake.kernel.ipvs.read = whole
    node.reconciler.audit(in_full=True)
    settle(node)
    node.reconciler.audit(in_full=True)
    settle(node)
    assert node.fake.state == fresh(history[-1])


@given(histories(), connections())
def test_k32_no_address_of_an_interface_is_bound_or_closed_unless_it_is_a_cluster_ip(history, connections):
    node = connected(node_in(history[0]), connections)
    for world in history:
        live(node, world)
        state = node.fake.state
        assert not world.addresses & (set(state[Kind.ADDRESS]) | closed(state))


@given(histories(max_size=4), connections())
def test_k34_what_is_served_before_and_after_a_sync_is_served_all_the_time(history, connections):
    node = connected(node_in(history[0]), connections)
    for world in history:
        witness = Witness(node.fake, world.addresses)
        live(node, world)
        witness.check()


@given(histories(max_size=4), connections())
def test_k25_during_a_sync_no_client_outside_is_led_where_it_is_not_before_or_after(history, connections):
    node = connected(node_in(history[0]), connections)
    for before, world in pairwise((history[0], *history)):
        witness = Witness(node.fake, world.addresses, lost=before.addresses - world.addresses)
        live(node, world)
        witness.check_sources()


@given(histories(max_size=4), connections())
def test_k24_during_a_sync_no_endpoint_sees_a_client_outside_unmasqueraded_that_does_not_before_or_after(
    history, connections
):
    """One on another node would answer the client itself, past the node that he asked."""
    cluster_ips = frozenset(map(addr, IPS))
    node = connected(node_in(history[0]), connections)
    for before, world in pairwise((history[0], *history)):
        witness = Witness(node.fake, world.addresses, lost=before.addresses - world.addresses)
        live(node, world)
        witness.check_masquerading(cluster_ips)


@st.composite
def balancers(draw):
    """An old and a young load balancer, often with one address and port, whose source ranges and endpoints change."""
    old, young = (
        Svc(
            name,
            ips=(ip,),
            ingress=((draw(st.sampled_from(("203.0.113.10", "203.0.113.11"))), "VIP"),),
            created=created,
            source_ranges=draw(some_of(RANGES, 2)),
            endpoints=tuple((endpoint, True) for endpoint in draw(some_of(ENDPOINTS[:3], 2))),
        )
        for name, ip, created in (("z", IPS[0], "2026-01-01T00:00:00Z"), ("a", IPS[1], "2026-02-01T00:00:00Z"))
    )
    return draw(st.sampled_from(((old,), (young,), (old, young), (old, young))))


@given(st.lists(balancers(), min_size=2, max_size=5), connections())
def test_k36_during_a_sync_nobody_is_let_in_who_is_not_before_or_after_and_nobody_kept_out_who_is_both_times(
    history, connections
):
    """Also while a frontend gets another owner, with other endpoints: nobody who may use one is led to the other's."""
    node = connected(Node(), connections)
    for balancers_now in history:
        witness = Witness(node.fake)
        node.sync(cluster(*balancers_now))
        witness.check_sources()


@given(st.lists(balancers(), min_size=1, max_size=3))
def test_k35_no_service_changes_whom_an_older_one_lets_in(history):
    node = Node()
    for balancers_now in history:
        node.sync(cluster(*balancers_now))
    first = history[-1][0]
    key = vs_key(first.ingress[0][0], 80)
    assert admitted(node.fake.state, key) == admitted(state_of(first), key)


def state_of(service: Svc) -> State:
    node = Node()
    node.sync(cluster(service))
    return node.fake.state


@given(left_overs(), connections())
def test_k34_what_a_former_run_served_is_served_through_the_start(found, connections):
    fake, now = found
    fake.connections = connections
    witness = Witness(fake, now.addresses)
    node_in(now, fake).sync()
    witness.check()


@given(worlds(), worlds(), st.data())
def test_a_refused_operation_loses_only_itself_and_is_retried(first, second, data):
    node = node_in(first)
    node.sync()
    wanted = fresh(second)
    verb = data.draw(st.sampled_from(Verb))
    kinds = (*ENTRIES, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.ADDRESS)
    candidates = [(verb, kind, key) for kind in kinds for key in {**wanted[kind], **node.fake.state[kind]}]
    refused = data.draw(st.sampled_from(candidates)) if candidates else (verb, Kind.ADDRESS, b"")
    node.fake.faults = {refused: errno.EINVAL}
    Witness(node.fake)
    live(node, second)
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
    """Objects that stand behind the same address as the refused one, and so may have to wait for it.

    And those with the port of a node port, whose entry may have no address.
    """

    def fronts(of):
        if isinstance(of, bytes):
            return {of}
        return {getattr(of, "address", None), getattr(of, "port", None)} - {None, b"", 0}

    return {other for state in states for objects in state.values() for other in objects if fronts(key) & fronts(other)}


@given(worlds(), worlds(), st.data(), connections())
def test_k24_whatever_single_change_is_refused_no_endpoint_sees_a_client_outside_unmasqueraded_for_it(
    first, second, data, connections
):
    wanted = fresh(second)
    node = connected(node_in(first), connections)
    node.sync()
    changes = [
        (kind, key)
        for kind in (*ENTRIES, Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.ADDRESS)
        for key in {**wanted[kind], **node.fake.state[kind]}
        if wanted[kind].get(key) != node.fake.state[kind].get(key)
    ]
    if changes:
        refused = data.draw(st.sampled_from(changes))
        verbs = data.draw(st.sampled_from((tuple(Verb), *((verb,) for verb in Verb))))
        node.fake.faults = {(verb, *refused): errno.ENOMEM for verb in verbs}
    witness = Witness(node.fake, second.addresses, lost=first.addresses - second.addresses)
    live(node, second)
    witness.check_masquerading(frozenset(map(addr, IPS)), after=wanted)
    node.fake.faults = {}
    settle(node)
    witness.check_masquerading(frozenset(map(addr, IPS)), after=wanted)
    assert node.fake.state == wanted


@given(worlds(), worlds(), st.sampled_from((errno.ENOBUFS, errno.ETIMEDOUT)), st.booleans(), connections())
def test_lost_answers_are_made_good_by_reading_again(first, second, number, is_carried_out, connections):
    node = connected(node_in(first), connections)
    node.sync()
    real = node.fake.kernel.ipvs.apply
    node.fake.kernel.ipvs.apply = lambda operations: [  # type: ignore[method-assign]
        number for _ in (real(operations) if is_carried_out else operations)
    ]
    live(node, second)
    node.fake.kernel.ipvs.apply = real  # type: ignore[method-assign]
    node.clock.now += 3600
    settle(node)
    assert node.fake.state == fresh(second)


def test_the_witness_can_see_a_fault():
    node = Node()
    node.sync(cluster(Svc("a")))
    state = copy.deepcopy(node.fake.state)
    assert open_without_server(state) == set()
    state[Kind.VIRTUAL_SERVER].clear()
    assert open_without_server(state) == {vs_key("10.96.0.20", 80)}


@given(histories(), connections())
def test_k08_what_has_connections_goes_only_when_its_time_is_up_or_its_address_is_taken(history, connections):
    """A connection of TCP through an address that stays bound ends in no other way."""
    node = connected(node_in(history[0]), connections)
    for world in history:
        before = connected_servers(node)
        live(node, world)
        lost = before - connected_servers(node)
        assert not {key for key, _ in lost if key.address in node.fake.state[Kind.ADDRESS]}


def connected_servers(node: Node) -> set[tuple[VirtualServerKey, bytes]]:
    """Each real server of TCP that a client is connected to, on kube-ipvs0."""
    return {
        (key, identity)
        for key, blob in node.fake.state[Kind.REAL_SERVER].items()
        if key.protocol is Protocol.TCP and key.address in node.fake.state[Kind.ADDRESS]
        for identity in map(real_servers.identity, real_servers.split(blob, len(key.address)))
        if node.fake.connections[key, identity]
    }


@given(left_overs(), connections())
def test_a_rehearsed_first_sync_is_the_first_sync(found, connections):
    """What `diff` prints is what a start does, whatever it finds; and it changes nothing."""
    fake, now = found
    fake.connections = connections
    untouched = copy.deepcopy(fake.state)
    tracker = Tracker(NODE, frozenset(Family))
    for event in (*events({}, now.cluster), *map(Listed, ("Service", "EndpointSlice", "Node"))):
        tracker.note(event)
    mode = IpvsMode(IpvsOptions(ServiceOptions(frozenset(Family))))
    rehearsed = rehearse(fake.kernel, tracker, mode, now.addresses)
    assert fake.state == untouched
    node_in(now, fake).sync()
    done = copy.deepcopy(fake.state)
    fake.state = untouched
    for operation in rehearsed.operations:
        assert judge(operation, fake.kernel.apply([operation])[0]) is Outcome.DONE
    assert fake.state == done
