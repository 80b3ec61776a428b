"""What the kernel does not take, loses, or somebody else changes: told once, retried, and nothing else held up."""

from __future__ import annotations

import errno

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry, Verb, VirtualServer
from ipvsproxy.model.names import DUMMY_DEVICE
from tests.builders import addr, blob, vs_key
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, served

VIP, KEY = addr("10.96.0.20"), vs_key("10.96.0.20", 80)
OTHER = vs_key("10.96.0.22", 80)
TWO = cluster(Svc("a"), Svc("b", ("10.96.0.22",)))
EXTERNAL_IP = "203.0.113.20"
EXTERNAL = Svc("a", external_ips=(EXTERNAL_IP,))
OTHER_PORT = Svc("a", ports=((81, "TCP"),), external_ips=(EXTERNAL_IP,))


def named(events, name):
    return [event for event in events if event["event"] == name]


# Refusals


def test_a_refused_virtual_server_keeps_its_port_closed_and_the_rest_serves():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOMEM
    Witness(node.fake)
    node.tell(TWO)
    result = node.reconciler.sync()
    assert (result.refused, result.waiting) == (1, 2)  # its real servers and its accept entry wait for it
    assert served(node.fake.state) == {OTHER}
    assert SetEntry("KUBE-CLUSTER-IP", VIP, 6, 80) not in node.fake.state[Kind.ACCEPT_ENTRY]


def test_what_waited_follows_when_the_refused_one_is_taken():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOMEM
    node.sync(TWO)
    node.fake.faults.clear()
    node.clock.now = 0.5
    Witness(node.fake)
    assert node.sync() == 3
    assert served(node.fake.state) == {KEY, OTHER}


def test_a_virtual_server_stays_while_its_port_is_still_accepted():
    node = Node()
    node.sync(TWO)
    node.fake.faults[Verb.DELETE, Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", VIP, 6, 80)] = errno.EBUSY
    node.sync(cluster(Svc("b", ("10.96.0.22",))))
    assert KEY in node.fake.state[Kind.VIRTUAL_SERVER]


@pytest.mark.parametrize("table", [pytest.param("filter", id="filter"), pytest.param("nat", id="nat")])
def test_no_address_is_bound_without_the_rules_of_its_family_and_the_other_family_serves(table):
    fake = FakeKernel()
    fake.faults[Verb.ADD, Kind.RULES, RuleTable(table, Family.IPV4)] = errno.EAGAIN
    node = Node(fake)
    node.sync(cluster(Svc("a", ("10.96.0.20", "fd00:10:96::20"))))
    assert set(fake.state[Kind.ADDRESS]) == {addr("fd00:10:96::20")}
    fake.faults.clear()
    node.clock.now = 1  # tried at the start and again with the first full plan
    node.sync()
    assert set(fake.state[Kind.ADDRESS]) == {addr("fd00:10:96::20"), VIP}


def test_a_sysctl_that_cannot_be_written_stops_nothing(events):
    fake = FakeKernel()
    fake.faults[Verb.EDIT, Kind.SYSCTL, "net.ipv4.ip_forward"] = errno.EROFS
    node = Node(fake)
    node.sync(TWO)
    assert served(fake.state) == {KEY, OTHER}
    first, *again = named(events, "operation_refused")
    assert (first["log_level"], first["errno"]) == ("error", "EROFS (Read-only file system)")
    assert "read-only" in first["hint"]
    assert {event["log_level"] for event in again} == {"debug"}


def test_a_refusal_is_an_error_once_then_debug_and_its_end_is_told(events):
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOENT
    node.sync(TWO)
    for now in (0.5, 1.5):
        node.clock.now = now
        node.sync()
    node.fake.faults.clear()
    node.clock.now = 3.5
    node.sync()
    refused = named(events, "operation_refused")
    assert [(event["log_level"], event["tries"]) for event in refused] == [("error", 1), ("debug", 2), ("debug", 3)]
    assert refused[0]["operation"] == "add virtual server 10.96.0.20:80/TCP"
    assert refused[0]["services"] == ["default/a"]
    assert refused[0]["errno"] == "ENOENT (No such file or directory)"
    assert "ip_vs_" in refused[0]["hint"]
    (recovered,) = named(events, "operation_recovered")
    assert (recovered["log_level"], recovered["tries"]) == ("info", 3)
    assert recovered["object"] == "virtual server 10.96.0.20:80/TCP"


def test_the_wait_between_tries_doubles_up_to_a_minute():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOMEM
    node.tell(TWO)
    waits = []
    for _ in range(10):
        result = node.reconciler.sync()
        assert result.retry_at is not None
        waits.append(result.retry_at - node.clock.now)
        node.clock.now = result.retry_at
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_refused_operation_is_not_tried_before_it_is_due():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.ADDRESS, VIP] = errno.ENOMEM
    node.sync(TWO)
    node.clock.now = 0.4
    assert node.sync() == 0


def test_a_change_of_the_refused_object_is_tried_at_once():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOMEM
    node.sync(TWO)
    node.fake.faults.clear()
    node.sync(cluster(Svc("a", affinity_s=60), Svc("b", ("10.96.0.22",))))
    assert served(node.fake.state) == {KEY, OTHER}


def test_a_refused_object_that_is_not_wanted_any_more_is_forgotten():
    node = Node()
    node.fake.faults[Verb.ADD, Kind.VIRTUAL_SERVER, KEY] = errno.ENOMEM
    node.sync(TWO)
    node.tell(cluster(Svc("b", ("10.96.0.22",))))
    result = node.reconciler.sync()
    assert (result.refused, result.waiting, result.retry_at) == (0, 0, None)


# What somebody else did


def test_a_virtual_server_that_somebody_deleted_is_made_anew_when_it_is_edited():
    node = Node()
    node.sync(TWO)
    del node.fake.state[Kind.VIRTUAL_SERVER][KEY]
    del node.fake.state[Kind.REAL_SERVER][KEY]
    node.sync(cluster(Svc("a", affinity_s=60), Svc("b", ("10.96.0.22",))))
    assert KEY in node.fake.state[Kind.VIRTUAL_SERVER]


def test_a_real_server_without_its_virtual_server_makes_the_next_sync_read_again_and_repair():
    node = Node()
    node.sync(TWO)
    del node.fake.state[Kind.VIRTUAL_SERVER][KEY]
    del node.fake.state[Kind.REAL_SERVER][KEY]
    after = cluster(Svc("a", endpoints=(("10.244.1.5", True), ("10.244.2.5", True))), Svc("b", ("10.96.0.22",)))
    node.sync(after)
    node.clock.now = 0.5
    node.sync()
    fresh = Node()
    fresh.sync(after)
    assert node.fake.state == fresh.fake.state


def lose_answers(fake: FakeKernel, number: int):
    """From now on IPVS does what it is asked and every answer is lost; call the result to end that."""
    really = fake.kernel.ipvs.apply
    fake.kernel.ipvs.apply = lambda operations: [number for _ in really(operations)]  # type: ignore[method-assign]

    def end() -> None:
        fake.kernel.ipvs.apply = really  # type: ignore[method-assign]

    return end


@pytest.mark.parametrize(
    "number", [pytest.param(errno.ENOBUFS, id="ENOBUFS"), pytest.param(errno.ETIMEDOUT, id="a time-out")]
)
def test_after_lost_answers_the_kernel_is_read_and_nothing_that_stands_is_sent_again(number):
    node = Node()
    node.sync(TWO)
    end = lose_answers(node.fake, number)
    node.sync(cluster(Svc("a", endpoints=(("10.244.1.5", True), ("10.244.2.5", True))), Svc("b", ("10.96.0.22",))))
    end()
    node.clock.now = 0.5
    before = node.fake.messages
    result = node.reconciler.sync()
    assert node.fake.messages == before
    assert (result.refused, result.retry_at) == (0, None)


@pytest.mark.parametrize(
    "verb, number",
    [
        pytest.param(Verb.ADD, errno.EEXIST, id="there already"),
        pytest.param(Verb.ADD, errno.EINVAL, id="not taken"),
        pytest.param(Verb.ADD, errno.ENOBUFS, id="its answer is lost"),
        pytest.param(Verb.DELETE, errno.ESRCH, id="gone already"),
        pytest.param(Verb.DELETE, errno.EINVAL, id="its deletion is not taken"),
    ],
)
def test_k15_one_bad_virtual_server_holds_up_no_other_and_is_right_when_the_trouble_is_over(verb, number):
    node = Node()
    before, after = (cluster(), TWO) if verb is Verb.ADD else (TWO, cluster(Svc("c", ("10.96.0.23",))))
    node.sync(before)
    node.fake.faults[verb, Kind.VIRTUAL_SERVER, KEY] = number
    node.sync(after)
    fresh = Node()
    fresh.sync(after)
    assert served(node.fake.state) | {KEY} == served(fresh.fake.state) | {KEY}
    node.fake.faults.clear()
    if number == errno.ESRCH:  # the kernel has it no more, as it said
        node.fake.state[Kind.VIRTUAL_SERVER].pop(KEY)
        node.fake.state[Kind.REAL_SERVER].pop(KEY)
    node.pass_time(60)
    assert node.fake.state == fresh.fake.state


def test_a_kernel_that_cannot_be_read_is_told_and_tried_again(events):
    node = Node()
    node.sync(TWO)
    really = node.fake.kernel.addresses.read

    def fail():
        raise KernelError("cannot dump addresses", errno.EINTR)

    node.fake.kernel.addresses.read = fail  # type: ignore[method-assign]
    node.fake.state[Kind.ADDRESS].clear()
    node.reconciler.device_changed(DeviceChanged(DeviceChange.EVENTS_LOST))
    result = node.reconciler.sync()
    assert result.retry_at == 0.5
    assert "cannot dump addresses" in named(events, "kernel_not_read")[0]["reason"]
    node.fake.kernel.addresses.read = really  # type: ignore[method-assign]
    node.clock.now = 0.5
    result = node.reconciler.sync()
    assert set(node.fake.state[Kind.ADDRESS]) == {VIP, OTHER.address}
    assert (result.refused, result.retry_at) == (0, None)


# The device


def test_an_address_that_somebody_took_away_is_bound_again_by_one_message(events):
    node = Node()
    node.sync(TWO)
    del node.fake.state[Kind.ADDRESS][VIP]
    assert node.reconciler.device_changed(DeviceChanged(DeviceChange.ADDRESS_LOST, VIP))
    assert node.sync() == 1
    assert VIP in node.fake.state[Kind.ADDRESS]
    (event,) = named(events, "address_lost")
    assert (event["log_level"], event["count"], event["some"]) == ("warning", 1, ["10.96.0.20/32"])


def test_addresses_that_somebody_took_away_together_are_told_in_one_line(events):
    node = Node()
    node.sync(TWO)
    for address in (VIP, OTHER.address):
        del node.fake.state[Kind.ADDRESS][address]
        node.reconciler.device_changed(DeviceChanged(DeviceChange.ADDRESS_LOST, address))
    assert node.sync() == 2
    (event,) = named(events, "address_lost")
    assert (event["count"], len(event["some"])) == (2, 2)


def test_an_address_that_went_by_our_own_hand_is_not_missed(events):
    node = Node()
    node.sync(TWO)
    node.sync(cluster(Svc("b", ("10.96.0.22",))))
    assert not node.reconciler.device_changed(DeviceChanged(DeviceChange.ADDRESS_LOST, VIP))
    assert node.sync() == 0
    assert named(events, "address_lost") == []


def test_a_device_that_somebody_deleted_comes_back_with_all_its_addresses():
    node = Node()
    node.sync(TWO)
    wanted = {kind: dict(objects) for kind, objects in node.fake.state.items()}
    del node.fake.state[Kind.LINK][DUMMY_DEVICE]
    node.fake.state[Kind.ADDRESS].clear()
    assert node.reconciler.device_changed(DeviceChanged(DeviceChange.LINK_GONE))
    assert node.sync() == 3
    assert node.fake.state == wanted


@pytest.mark.parametrize("change", [pytest.param(c, id=c) for c in (DeviceChange.LINK_DOWN, DeviceChange.EVENTS_LOST)])
def test_addresses_that_went_unseen_are_found_by_reading(change):
    node = Node()
    node.sync(TWO)
    del node.fake.state[Kind.ADDRESS][VIP]
    node.reconciler.device_changed(DeviceChanged(change))
    assert node.sync() == 1
    assert VIP in node.fake.state[Kind.ADDRESS]


@pytest.mark.parametrize("change", [pytest.param(c, id=c) for c in (DeviceChange.LINK_UP, DeviceChange.LINK_APPEARED)])
def test_what_takes_nothing_away_sends_nothing(change):
    node = Node()
    node.sync(TWO)
    node.reconciler.device_changed(DeviceChanged(change))
    assert node.sync() == 0


def test_a_virtual_server_that_came_from_elsewhere_is_taken_over_with_its_real_servers_put_right():
    node = Node()
    node.sync(cluster())
    key = vs_key("10.96.0.20", 80)
    node.fake.state[Kind.VIRTUAL_SERVER][key] = VirtualServer("wlc")
    node.fake.state[Kind.REAL_SERVER][key] = blob(("10.244.9.9", 1))
    node.tell(cluster(Svc("a")))
    result = node.reconciler.sync()
    assert result.retry_at == node.clock.now  # what else stands there is read at once
    node.reconciler.sync()
    assert node.fake.state[Kind.VIRTUAL_SERVER][key] == VirtualServer("rr")
    assert node.fake.state[Kind.REAL_SERVER][key] == blob(("10.244.1.5", 8080))
    assert node.sync() == 0


@pytest.mark.parametrize(
    "now, verb, kind, key",
    [
        pytest.param(
            EXTERNAL, Verb.ADD, Kind.VIRTUAL_SERVER, vs_key(EXTERNAL_IP, 80), id="whose virtual server is refused"
        ),
        pytest.param(
            OTHER_PORT,
            Verb.DELETE,
            Kind.ACCEPT_ENTRY,
            SetEntry("KUBE-EXTERNAL-IP", addr(EXTERNAL_IP), 6, 80),
            id="that is to go and stays",
        ),
    ],
)
def test_k31_an_address_that_an_interface_loses_is_not_bound_while_a_port_is_let_through_without_a_virtual_server(
    now, verb, kind, key
):
    node, right = Node(host=(EXTERNAL_IP,)), Node()
    right.sync(cluster(now))
    node.fake.faults = {(verb, kind, key): errno.ENOMEM}
    if verb is Verb.DELETE:
        node.sync(cluster(EXTERNAL))
    node.sync(cluster(now))
    witness = Witness(node.fake, (addr(EXTERNAL_IP),))
    node.has()
    node.pass_time(60)  # nor at a retry that is refused again
    assert addr(EXTERNAL_IP) not in node.fake.state[Kind.ADDRESS]
    node.fake.faults = {}
    node.pass_time(60)
    witness.check()
    assert node.fake.state == right.fake.state
