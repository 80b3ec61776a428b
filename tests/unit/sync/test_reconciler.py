"""One sync: what it sends, in which order, and that what stands is left alone. Rules over any input: tests/property."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.errors import KernelError, NotInKernel, Unsupported
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, RuleTable, SetEntry, State, Verb, VirtualServer
from ipvsproxy.model.notices import Notice
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.reconciler import Reconciler, SyncResult
from tests.builders import FakeClock, addr, blob, vs_key
from tests.clusters import NODE, Node, Svc, cluster
from tests.witness import Witness, accepted, served

VIP = addr("10.96.0.20")
FOREIGN = vs_key("192.0.2.99", 80)
DUAL = ("10.96.0.20", "fd00:10:96::20")
SIX_ENDPOINTS = (("10.244.1.5", True), ("fd00:10:244::5", True))
THREE = cluster(Svc("a", ("10.96.0.21",)), Svc("b", ("10.96.0.22",)), Svc("c", ("10.96.0.23",)))


class Timeline:
    """The objects of the fake kernel after each message."""

    def __init__(self, fake: FakeKernel) -> None:
        self.fake = fake
        self.moments: list[frozenset[ObjectId]] = []
        fake.after_message = self.look
        self.look()

    def look(self) -> None:
        self.moments.append(frozenset((kind, key) for kind, objects in self.fake.state.items() for key in objects))

    def first(self, kind: Kind, key: object) -> int:
        """After which message the object was there."""
        return next(number for number, moment in enumerate(self.moments) if (kind, key) in moment)

    def changes(self) -> list[tuple[str, Kind, object]]:
        """What came and went, in order."""
        found = []
        for before, after in pairwise(self.moments):
            found += [("+", *ref) for ref in after - before] + [("-", *ref) for ref in before - after]
        return found


def many(count: int, *endpoints: str) -> dict:
    """`count` Services of one port; the first one has these endpoints, each other one has one of its own."""
    return cluster(
        *(
            Svc(
                f"s{number}",
                (f"10.96.{number // 250}.{number % 250 + 1}",),
                endpoints=tuple((address, True) for address in (endpoints if number == 0 else ("10.244.1.9",))),
            )
            for number in range(count)
        )
    )


# Counts


def test_a_cold_start_sends_each_object_once_and_set_entries_together():
    node = Node()
    fixed = node.fake.messages
    assert fixed == 4 + 2 * 19 + 2 * 3 + 1  # sysctls, sets, three tables a family, the link
    virtual_servers, real_servers, addresses, accept_entries, closing_entries = 3, 3, 3, 1, 1
    assert node.sync(THREE) == virtual_servers + real_servers + addresses + accept_entries + closing_entries


def test_a_second_sync_sends_nothing():
    node = Node()
    node.sync(THREE)
    assert node.sync() == 0


def test_an_event_that_changes_nothing_sends_nothing():
    node = Node()
    node.sync(THREE)
    before = cluster(Svc("a", ("10.96.0.21",), endpoints=(("10.244.1.5", True), ("10.244.1.5", False))))
    assert node.sync({**THREE, **before}) == 0


@pytest.mark.parametrize("count", [pytest.param(10, id="among 10 Services"), pytest.param(1000, id="among 1000")])
def test_k37_one_endpoint_more_is_one_message_and_one_less_three(count):
    """Weight 0, the question whether anything is connected, the deletion."""
    node = Node()
    node.sync(many(count, "10.244.1.5"))
    assert node.sync(many(count, "10.244.1.5", "10.244.2.5")) == 1
    assert node.fake.state[Kind.REAL_SERVER][vs_key("10.96.0.1", 80)] == blob(
        ("10.244.1.5", 8080), ("10.244.2.5", 8080)
    )
    assert node.sync(many(count, "10.244.1.5")) == 3


def test_one_endpoint_more_behind_two_ports_in_two_families_is_one_message_for_each_virtual_server_of_its_family():
    ports = ((80, "TCP"), (53, "UDP"))
    node = Node()
    node.sync(cluster(Svc("a", DUAL, ports, SIX_ENDPOINTS)))
    assert node.sync(cluster(Svc("a", DUAL, ports, (*SIX_ENDPOINTS, ("10.244.2.5", True))))) == 2


def test_an_endpoint_that_becomes_ready_is_one_message_and_one_that_is_no_longer_three():
    node = Node()
    one, both = (cluster(Svc("a", endpoints=(("10.244.1.5", True), ("10.244.2.5", is_2)))) for is_2 in (False, True))
    node.sync(one)
    assert [node.sync(both), node.sync(one)] == [1, 3]


def test_a_change_that_was_undone_before_the_sync_sends_nothing():
    node = Node()
    node.sync(THREE)
    node.tell(cluster(Svc("a", ("10.96.0.21",))))
    node.tell(THREE)
    assert node.sync() == 0


def test_another_affinity_edits_the_virtual_server_in_place():
    node = Node()
    node.sync(cluster(Svc("a")))
    assert node.sync(cluster(Svc("a", affinity_s=60))) == 1
    assert node.fake.state[Kind.VIRTUAL_SERVER][vs_key("10.96.0.20", 80)].persistence_s == 60  # type: ignore[union-attr]


def test_a_service_that_goes_takes_all_its_objects_along():
    node = Node()
    empty = {kind: dict(objects) for kind, objects in node.fake.state.items()}
    node.sync(cluster(Svc("a", DUAL, endpoints=SIX_ENDPOINTS, local=True), Svc("b", ("10.96.0.22",))))
    node.sync(cluster())
    assert node.fake.state == empty


# Order


def test_k38_on_an_empty_node_the_rules_stand_before_the_first_address():
    fake = FakeKernel()
    timeline = Timeline(fake)
    Node(fake).sync(THREE)
    bound = min(timeline.first(Kind.ADDRESS, key) for key in fake.state[Kind.ADDRESS])
    for kind in (Kind.SYSCTL, Kind.SET, Kind.RULES, Kind.LINK):
        assert all(timeline.first(kind, key) < bound for key in fake.state[kind])


@pytest.mark.parametrize(
    "name,namespace,ip,port",
    [
        pytest.param("kubernetes", "default", "10.96.0.1", (443, "TCP"), id="default/kubernetes"),
        pytest.param("kube-dns", "kube-system", "10.96.0.10", (53, "UDP"), id="kube-system/kube-dns"),
    ],
)
def test_k38_what_a_node_needs_most_is_served_before_anything_of_another_service_is_sent(name, namespace, ip, port):
    fake = FakeKernel()
    node = Node(fake)
    timeline = Timeline(fake)
    key = vs_key(ip, port[0], Protocol[port[1]])
    is_served = []
    fake.after_message = lambda: (timeline.look(), is_served.append(key in served(fake.state)))
    node.sync({**THREE, **cluster(Svc(name, (ip,), (port,), namespace=namespace))})
    others = [timeline.first(Kind.VIRTUAL_SERVER, vs_key(f"10.96.0.2{n}", 80)) for n in (1, 2, 3)]
    assert is_served.index(True) + 1 < min(others)


def test_k38_entries_of_one_set_travel_together_however_many_services_there_are():
    counts = []
    for count in (10, 200):
        fake = FakeKernel()
        node = Node(fake)
        messages = node.sync(many(count, "10.244.1.5"))
        counts.append(messages - 3 * count)  # a virtual server, a real server and an address each
    assert counts == [2, 2]


def test_a_service_comes_from_the_inside_out_and_goes_from_the_outside_in():
    node = Node()
    node.sync(cluster(Svc("other", ("10.96.0.22",))))
    timeline = Timeline(node.fake)
    node.sync(cluster(Svc("other", ("10.96.0.22",)), Svc("a")))
    node.sync(cluster(Svc("other", ("10.96.0.22",))))
    kinds = [(sign, kind) for sign, kind, _ in timeline.changes() if kind is not Kind.REAL_SERVER]
    assert kinds == [
        ("+", Kind.VIRTUAL_SERVER),
        ("+", Kind.ACCEPT_ENTRY),
        ("+", Kind.BOUND_ENTRY),
        ("+", Kind.ADDRESS),
        ("-", Kind.ACCEPT_ENTRY),
        ("-", Kind.VIRTUAL_SERVER),
        ("-", Kind.ADDRESS),
        ("-", Kind.BOUND_ENTRY),
    ]


def test_a_real_server_is_added_before_another_one_loses_its_weight_and_goes():
    node = Node()
    node.sync(cluster(Svc("a", endpoints=(("10.244.1.5", True),))))
    key = vs_key("10.96.0.20", 80)
    seen = []
    node.fake.after_message = lambda: seen.append(node.fake.state[Kind.REAL_SERVER][key])
    node.sync(cluster(Svc("a", endpoints=(("10.244.2.5", True),))))
    both, drained = (blob(("10.244.1.5", 8080, weight), ("10.244.2.5", 8080)) for weight in (1, 0))
    assert seen == [both, drained, drained, blob(("10.244.2.5", 8080))]  # asked in between


# The known reports


@pytest.mark.parametrize(
    "before,after",
    [
        pytest.param(((80, "TCP"), (443, "TCP")), ((80, "TCP"),), id="80 and 443, then 80"),
        pytest.param(((53, "TCP"), (53, "UDP")), ((53, "UDP"),), id="TCP and UDP 53, then UDP"),
    ],
)
def test_k19_a_port_that_goes_leaves_the_address_and_the_other_port_alone(before, after):
    node = Node()
    node.sync(cluster(Svc("a", ports=before)))
    (number, protocol) = after[0]
    kept = vs_key("10.96.0.20", number, Protocol[protocol])
    moments = []
    node.fake.after_message = lambda: moments.append(
        (VIP in node.fake.state[Kind.ADDRESS], kept in served(node.fake.state))
    )
    # The accept entry and the virtual server of the other port, and the question whether anything is connected to it.
    assert node.sync(cluster(Svc("a", ports=after))) == 3
    assert set(moments) == {(True, True)}
    assert set(node.fake.state[Kind.VIRTUAL_SERVER]) == {kept}


def test_k19_the_address_goes_with_the_last_port():
    node = Node()
    node.sync(cluster(Svc("a", ports=((80, "TCP"), (443, "TCP")))))
    node.sync(cluster())
    assert node.fake.state[Kind.ADDRESS] == {}


def test_k19_an_address_that_two_services_share_stays_for_the_other_one():
    node = Node()
    node.sync(cluster(Svc("a"), Svc("b", ports=((81, "TCP"),))))
    moments = []
    node.fake.after_message = lambda: moments.append(VIP in node.fake.state[Kind.ADDRESS])
    node.sync(cluster(Svc("b", ports=((81, "TCP"),))))
    assert set(moments) == {True}


def test_k31_no_moment_of_a_start_a_change_a_removal_or_a_restart_opens_a_host_port():
    fake = FakeKernel()
    services = [Svc("a", DUAL, ((80, "TCP"), (53, "UDP")), SIX_ENDPOINTS), Svc("b", ("10.96.0.22",))]
    Witness(fake)  # asserts after every message
    node = Node(fake)
    node.sync(cluster(*services))
    node.sync(cluster(services[0], Svc("b", ("10.96.0.23",), ((81, "TCP"),))))
    restarted = Node(fake)
    restarted.sync(cluster(services[0]))
    restarted.sync(cluster())
    assert fake.state[Kind.ADDRESS] == {}


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(Svc("a"), id="TCP"),
        pytest.param(Svc("a", ports=((53, "UDP"),)), id="UDP"),
        pytest.param(Svc("a", ports=((53, "TCP"), (53, "UDP"), (9, "SCTP"))), id="three protocols"),
        pytest.param(Svc("a", DUAL, endpoints=SIX_ENDPOINTS), id="both families"),
        pytest.param(Svc("a", ("fd00:10:96::20",), endpoints=SIX_ENDPOINTS), id="IPv6"),
        pytest.param(Svc("a", endpoints=()), id="without endpoints"),
        pytest.param(Svc("a", affinity_s=60), id="with affinity"),
    ],
)
def test_k34_every_virtual_server_is_accepted_and_every_other_port_of_its_address_closed(service):
    node = Node()
    node.sync(cluster(service))
    state = node.fake.state
    assert accepted(state) == set(state[Kind.VIRTUAL_SERVER])
    closed = {entry.address for entry in state[Kind.BOUND_ENTRY] if isinstance(entry, SetEntry)}
    assert closed == set(state[Kind.ADDRESS]) == {addr(ip) for ip in service.ips}


def test_k34_a_port_is_served_all_the_time_while_others_of_its_address_come_and_go():
    fake = FakeKernel()
    node = Node(fake)
    kept = Svc("kept", ports=((80, "TCP"),))
    node.sync(cluster(kept, Svc("other", ports=((81, "TCP"),))))
    for others in ([Svc("other", ports=((82, "TCP"), (81, "UDP")))], [], [Svc("third", ports=((81, "TCP"),))]):
        witness = Witness(fake)
        node.sync(cluster(kept, *others))
        witness.check()
        assert vs_key("10.96.0.20", 80) in witness.before


def test_k55_a_node_without_ipv6_serves_ipv4_and_says_once_what_it_skips(events):
    families = frozenset({Family.IPV4})
    node = Node(FakeKernel(families), families=families)
    services = cluster(
        Svc("both", DUAL, endpoints=SIX_ENDPOINTS), Svc("six", ("fd00:10:96::21",), endpoints=SIX_ENDPOINTS)
    )
    node.sync(services)
    node.sync({**services, **cluster(Svc("four", ("10.96.0.23",)))})
    assert set(node.fake.state[Kind.VIRTUAL_SERVER]) == {vs_key("10.96.0.20", 80), vs_key("10.96.0.23", 80)}
    packed = [key for key in node.fake.state[Kind.ADDRESS] if isinstance(key, bytes)]
    assert {family_of(key) for key in packed} == {Family.IPV4}
    assert not any(str(name).startswith("KUBE-6-") for name in node.fake.state[Kind.SET])
    skipped = [event for event in events if event["event"] == "object_rejected"]
    assert [event["object"] for event in skipped] == ["Service default/six"]
    assert "IPv6 only" in skipped[0]["reason"]


# Starts


def test_nothing_is_deleted_before_services_and_slices_are_listed():
    node = Node()
    node.sync(cluster(Svc("a")))
    restarted = Node(node.fake)
    before = node.fake.messages
    restarted.reconciler.sync()
    assert node.fake.messages == before
    assert vs_key("10.96.0.20", 80) in served(node.fake.state)


def test_a_restart_on_a_state_that_is_right_sends_nothing():
    node = Node()
    node.sync(THREE)
    before = node.fake.messages
    restarted = Node(node.fake)
    assert node.fake.messages == before
    assert restarted.sync(THREE) == 0


def test_a_restart_removes_what_the_cluster_does_not_have_any_more_and_no_more():
    node = Node()
    node.sync(THREE)
    node.fake.state[Kind.VIRTUAL_SERVER][FOREIGN] = VirtualServer("wlc")
    node.fake.state[Kind.REAL_SERVER][FOREIGN] = b""
    Node(node.fake).sync(cluster(Svc("a", ("10.96.0.21",))))
    assert set(node.fake.state[Kind.VIRTUAL_SERVER]) == {vs_key("10.96.0.21", 80), FOREIGN}
    assert set(node.fake.state[Kind.ADDRESS]) == {addr("10.96.0.21")}


def clean(fake: FakeKernel) -> SyncResult:
    """What --cleanup does: a reconciler that never started."""
    families = frozenset(Family)
    mode = IpvsMode(IpvsOptions(ServiceOptions(families)))
    return Reconciler(fake.kernel, Tracker(NODE, families), mode, FakeClock()).remove_all()


def test_clean_up_removes_everything_of_ours_but_the_sysctls():
    node = Node()
    node.sync(THREE)
    node.fake.state[Kind.VIRTUAL_SERVER][FOREIGN] = VirtualServer("wlc")
    node.fake.state[Kind.REAL_SERVER][FOREIGN] = b""
    Witness(node.fake)
    result = clean(node.fake)
    assert (result.refused, result.waiting) == (0, 0)
    left = {kind: set(objects) for kind, objects in node.fake.state.items() if objects and kind is not Kind.SYSCTL}
    assert left == {Kind.VIRTUAL_SERVER: {FOREIGN}, Kind.REAL_SERVER: {FOREIGN}}


def test_a_second_clean_up_finds_nothing_to_do():
    node = Node()
    node.sync(THREE)
    clean(node.fake)
    before = node.fake.messages
    assert clean(node.fake).operations == 0
    assert node.fake.messages == before


def test_a_clean_up_that_is_refused_something_removes_the_rest_and_says_so():
    node = Node()
    node.sync(THREE)
    table = RuleTable("nat", Family.IPV6)
    node.fake.faults[Verb.DELETE, Kind.RULES, table] = errno.EMLINK
    assert clean(node.fake).refused == 1
    left = {kind: set(objects) for kind, objects in node.fake.state.items() if objects and kind is not Kind.SYSCTL}
    assert left == {Kind.RULES: {table}}


def raising(error: KernelError) -> Callable[[], State]:
    def read() -> State:
        raise error

    return read


def test_a_clean_up_removes_the_rest_where_the_kernel_has_no_ipvs_any_more(monkeypatch):
    node = Node()
    node.sync(THREE)
    for key in node.fake.state[Kind.VIRTUAL_SERVER]:
        node.fake.faults[Verb.DELETE, Kind.VIRTUAL_SERVER, key] = errno.ENOENT
    for kind in node.fake.kernel.ipvs.kinds:
        node.fake.state[kind].clear()
    monkeypatch.setattr(node.fake.kernel.ipvs, "read", raising(NotInKernel("cannot read IPVS", errno.ENOENT)))
    result = clean(node.fake)
    assert (result.refused, result.waiting) == (0, 0)
    assert not [kind for kind, objects in node.fake.state.items() if objects and kind is not Kind.SYSCTL]


def test_a_clean_up_that_may_not_read_ipvs_removes_nothing_that_tells_whose_virtual_servers_are_there(monkeypatch):
    node = Node()
    node.sync(THREE)
    monkeypatch.setattr(node.fake.kernel.ipvs, "read", raising(Unsupported("cannot read IPVS", errno.EPERM)))
    with pytest.raises(Unsupported):
        clean(node.fake)
    assert node.fake.state[Kind.ADDRESS]


def test_a_start_needs_every_part_of_the_kernel(monkeypatch):
    node = Node()
    monkeypatch.setattr(node.fake.kernel.ipvs, "read", raising(NotInKernel("cannot read IPVS", errno.ENOENT)))
    with pytest.raises(NotInKernel):
        Node(node.fake)


def test_a_running_reconciler_can_remove_everything_too():
    node = Node()
    node.sync(THREE)
    node.reconciler.remove_all()
    assert node.fake.state[Kind.VIRTUAL_SERVER] == node.fake.state[Kind.ADDRESS] == node.fake.state[Kind.RULES] == {}


def test_k25_a_start_says_once_for_each_family_that_pods_cannot_be_told(events):
    node = Node()
    assert [event["family"] for event in events if event["event"] == "pods_count_as_outside"] == ["IPv4", "IPv6"]
    node.sync(THREE)
    node.has("192.0.2.11")
    node.sync()
    assert len([event for event in events if event["event"] == "pods_count_as_outside"]) == 2


# One frontend, two Services


@pytest.mark.parametrize("first,second", [pytest.param("old", "young", id="old first"), ("young", "old")])
def test_the_younger_of_two_services_is_told_that_its_frontend_is_taken_whatever_the_order_of_events(first, second):
    both = {
        "old": Svc("zebra", ("10.96.0.20",), ingress=(("203.0.113.10", "VIP"),), created="2026-01-01T00:00:00Z"),
        "young": Svc("ape", ("10.96.0.21",), ingress=(("203.0.113.10", "VIP"),), created="2026-02-01T00:00:00Z"),
    }
    node = Node()
    told: list[Notice] = []
    node.reconciler.tell = told.append
    node.sync(cluster(both[first]))
    assert told == []
    node.sync(cluster(both[first], both[second]))
    assert {(notice.kind, notice.namespace, notice.name, notice.reason) for notice in told} == {
        ("Service", "default", "ape", "FrontendTaken")
    }
    assert all("203.0.113.10:80/TCP is served for Service default/zebra" in notice.text for notice in told)
    told.clear()
    node.sync()
    assert told == []


def test_neither_an_edit_of_who_has_a_frontend_nor_one_more_who_wants_it_tells_the_others_again(events):
    def svc(number: int, **fields) -> Svc:
        created = f"2026-01-0{number}T00:00:00Z"
        return Svc(f"s{number}", (f"10.96.0.2{number}",), external_ips=("203.0.113.10",), created=created, **fields)

    node = Node()
    node.sync(cluster(svc(1), svc(2), svc(3)))
    events.clear()
    node.sync(cluster(svc(1, affinity_s=60), svc(2), svc(3), svc(4)))
    assert [line["service"] for line in events if line["event"] == "frontend_taken"] == ["default/s4"]


def test_two_ports_of_a_service_that_make_one_virtual_server_are_said_once_in_the_log_and_to_its_owner(events):
    service = Svc("web", ports=((80, "TCP"), (30080, "TCP")), node_ports=(30080, 0), external_ips=("192.0.2.11",))
    node = Node(host=["192.0.2.11"])
    told: list[Notice] = []
    node.reconciler.tell = told.append
    node.sync(cluster(service))
    node.sync(cluster(msgspec.structs.replace(service, endpoints=(("10.244.1.6", True),))))
    (line,) = [event for event in events if event["event"] == "object_rejected"]
    (notice,) = [each for each in told if each.reason == "FrontendTaken"]
    assert (line["object"], notice.name, notice.reason) == ("Service default/web", "web", "FrontendTaken")
    assert notice.text == f"{line['reason']}. {line['hint']}"


def test_two_ports_that_clash_again_after_the_clash_was_over_are_said_again(events):
    service = Svc("web", ports=((80, "TCP"), (30080, "TCP")), node_ports=(30080, 0), external_ips=("192.0.2.11",))
    node = Node(host=["192.0.2.11"])
    node.sync(cluster(service))
    for addresses in ((), ("192.0.2.11",)):
        node.has(*addresses)
        node.reconciler.sync()
    assert len([event for event in events if event["event"] == "object_rejected"]) == 2
