"""Faults that a reviewer found by trying: each must stay fixed."""

from __future__ import annotations

import contextlib
import copy
import errno
import math

import pytest

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.addr import Cidr, parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleTable, SetEntry, Verb, VirtualServer
from ipvsproxy.sync.retries import LONGEST_S, Retries
from tests.builders import FakeClock, addr, blob, vs_key
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, open_without_server

KEY = vs_key("10.96.0.20", 80)
ENTRY = SetEntry("KUBE-CLUSTER-IP", KEY.address, 6, 80)
WEB = Svc("web")


def cidr(text: str) -> Cidr:
    found = parse_cidr(text)
    assert found is not None
    return found


def test_what_fails_for_days_still_waits_a_minute():
    retries: Retries[str] = Retries(FakeClock())
    for _ in range(3000):
        retries.failed("x")
    assert retries.next_due == LONGEST_S


def test_many_refused_real_servers_of_one_virtual_server_are_one_attempt():
    node = Node()
    node.sync(cluster())
    node.fake.faults = {(Verb.ADD, Kind.REAL_SERVER, KEY): errno.EINVAL}
    node.tell(cluster(Svc("web", endpoints=tuple((f"10.244.1.{n}", True) for n in range(1, 60)))))
    assert node.reconciler.sync().retry_at == pytest.approx(0.5)


def test_a_refused_object_that_has_to_wait_wakes_nobody():
    node = Node()
    node.fake.faults = {(Verb.ADD, Kind.ADDRESS, KEY.address): errno.EACCES}
    node.sync(cluster(WEB))
    rules = (Kind.RULES, RuleTable("filter", Family.IPV4))
    node.fake.faults[Verb.ADD, *rules] = errno.EAGAIN
    del node.fake.state[Kind.RULES][rules[1]]
    node.reconciler.distrust((Kind.RULES,))
    node.clock.now += 1
    result = node.reconciler.sync()
    assert result.waiting == 1
    assert result.retry_at is not None
    assert result.retry_at > node.clock.now


@pytest.mark.parametrize("protocol", [0, 1, 136, 255])
def test_an_accept_entry_of_a_foreign_protocol_is_removed_like_any_other(protocol):
    fake = Node().fake
    fake.state[Kind.ACCEPT_ENTRY][SetEntry("KUBE-CLUSTER-IP", KEY.address, protocol, 8)] = True
    Node(fake).sync(cluster(WEB))
    assert set(fake.state[Kind.ACCEPT_ENTRY]) == {ENTRY}


def test_nothing_is_deleted_before_everything_is_listed_not_even_by_an_audit():
    node = Node()
    stranger = addr("10.96.0.77")
    node.fake.state[Kind.ADDRESS][stranger] = True
    node.fake.state[Kind.VIRTUAL_SERVER][vs_key("10.96.0.77", 80)] = VirtualServer("rr")
    node.fake.state[Kind.REAL_SERVER][vs_key("10.96.0.77", 80)] = b""
    for in_full in (False, True):
        node.reconciler.audit(in_full=in_full)
    assert stranger in node.fake.state[Kind.ADDRESS]
    node.sync(cluster())
    assert stranger not in node.fake.state[Kind.ADDRESS]


def test_what_was_found_at_start_and_went_away_since_is_not_taken_for_there():
    fake = FakeKernel()
    fake.state[Kind.VIRTUAL_SERVER][KEY] = VirtualServer("rr")
    fake.state[Kind.REAL_SERVER][KEY] = b""
    node = Node(fake)
    del fake.state[Kind.VIRTUAL_SERVER][KEY]
    del fake.state[Kind.REAL_SERVER][KEY]
    node.reconciler.audit(in_full=True)
    node.sync(cluster(WEB))
    assert KEY in fake.state[Kind.VIRTUAL_SERVER]


def test_a_virtual_server_that_vanished_under_an_edit_gets_its_real_servers_again():
    node = Node()
    node.sync(cluster(WEB))
    del node.fake.state[Kind.VIRTUAL_SERVER][KEY]
    del node.fake.state[Kind.REAL_SERVER][KEY]
    node.sync(cluster(Svc("web", affinity_s=60)))
    node.sync()
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob(("10.244.1.5", 8080))


def test_k48_a_hairpin_entry_makes_no_foreign_virtual_server_ours():
    node = Node(host=("192.0.2.11",))
    theirs = vs_key("192.0.2.11", 8080)
    node.fake.state[Kind.VIRTUAL_SERVER][theirs] = VirtualServer("wlc")
    node.fake.state[Kind.REAL_SERVER][theirs] = b""
    node.sync(cluster(Svc("web", endpoints=(("192.0.2.11", True),), local=True)))
    node.reconciler.audit(in_full=True)
    assert theirs in node.fake.state[Kind.VIRTUAL_SERVER]


def test_k31_an_entry_left_over_is_taken_away_while_its_virtual_server_is_refused():
    fake = FakeKernel()
    Node(fake).sync(cluster(WEB))
    for kind in (Kind.VIRTUAL_SERVER, Kind.REAL_SERVER, Kind.ADDRESS):
        fake.state[kind].clear()
    fake.faults = {(Verb.ADD, Kind.VIRTUAL_SERVER, KEY): errno.ENOMEM}
    Node(fake).sync(cluster(WEB, Svc("other", ports=((81, "TCP"),))))
    assert open_without_server(fake.state) == set()


CLOSING = (Kind.BOUND_ENTRY, SetEntry("KUBE-IPVS-IPS", addr("10.96.0.20")))


@pytest.mark.parametrize("comes_to_know", ["by a start", "by an audit"])
@pytest.mark.parametrize(
    "refused, number",
    [
        pytest.param(CLOSING, errno.ENOMEM, id="the entry that closes it"),
        pytest.param(CLOSING, errno.ENOBUFS, id="the entry, and the answer is lost"),
        pytest.param((Kind.SET, "KUBE-IPVS-IPS"), errno.ENOMEM, id="the set that it stands in"),
    ],
)
def test_k31_an_address_whose_other_ports_cannot_be_closed_is_off_the_device_until_they_can(
    refused, number, comes_to_know, events
):
    node = Node()
    node.sync(cluster(WEB, Svc("other", ("10.96.0.21",))))
    right = copy.deepcopy(node.fake.state)
    for kind, key in (CLOSING, refused):
        node.fake.state[kind].pop(key, None)
    node.fake.faults = {(Verb.ADD, *refused): number}
    if comes_to_know == "by a start":
        node = Node(node.fake)
        node.sync(cluster(WEB, Svc("other", ("10.96.0.21",))))
    else:
        assert node.reconciler.audit(in_full=True).waiting > 0
    assert addr("10.96.0.20") not in node.fake.state[Kind.ADDRESS]
    assert open_without_server(node.fake.state) == set()
    told = [(event["log_level"], event["vip"]) for event in events if event["event"] == "address_unbound"]
    assert told == [("warning", "10.96.0.20/32")]
    node.fake.faults = {}
    Witness(node.fake)
    node.pass_time(60)
    assert node.fake.state == right


def test_k48_nothing_inside_an_excluded_network_is_added_edited_or_deleted():
    fake = FakeKernel()
    fake.state[Kind.VIRTUAL_SERVER][KEY] = VirtualServer("wlc")
    fake.state[Kind.REAL_SERVER][KEY] = blob(("192.0.2.100", 80))
    node = Node(fake, exclude=(cidr("10.96.0.0/24"),))
    for now in (cluster(WEB), cluster(), cluster(WEB)):
        node.sync(now)
        assert fake.state[Kind.VIRTUAL_SERVER] == {KEY: VirtualServer("wlc")}
        assert fake.state[Kind.REAL_SERVER] == {KEY: blob(("192.0.2.100", 80))}
        assert fake.state[Kind.ADDRESS] == fake.state[Kind.ACCEPT_ENTRY] == {}


def test_k48_an_endpoint_in_an_excluded_network_gets_no_entry_either_since_it_would_never_go_again():
    """The API server's endpoints are the nodes' own addresses, and their network a likely one to exclude."""
    node = Node(exclude=(cidr("192.0.2.0/24"),))
    node.sync(cluster(Svc("web", endpoints=(("192.0.2.11", True), ("10.244.1.5", True)), local=True)))
    assert [entry.second for entry in node.fake.state[Kind.SUPPORT_ENTRY] if entry.second] == [addr("10.244.1.5")]
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob(("10.244.1.5", 8080), ("192.0.2.11", 8080))


def test_an_address_in_an_excluded_network_stays_on_the_device():
    fake = Node().fake
    fake.state[Kind.ADDRESS][addr("203.0.113.200")] = True
    Node(fake, exclude=(cidr("203.0.113.128/25"),)).sync(cluster(WEB))
    assert addr("203.0.113.200") in fake.state[Kind.ADDRESS]


@pytest.mark.parametrize("messages", range(6))
def test_a_crash_anywhere_in_the_removal_of_an_unbound_frontend_leaves_a_trace_of_it(messages):
    external = Svc("web", external_ips=("192.0.2.11",))
    node = Node(host=("192.0.2.11",))
    node.sync(cluster(external))
    stop = iter([False] * messages + [True] * 100)

    def crash() -> None:
        if next(stop):
            raise KeyboardInterrupt

    node.fake.after_message = crash
    with contextlib.suppress(KeyboardInterrupt):
        node.sync(cluster())
    node.fake.after_message = lambda: None
    Node(node.fake, host=("192.0.2.11",)).sync(cluster())
    assert node.fake.state[Kind.VIRTUAL_SERVER] == {}


def test_waiting_for_ever_is_no_time():
    retries: Retries[str] = Retries(FakeClock())
    retries.failed("x")
    retries.hold("x")
    assert retries.next_due is None
    assert retries.tries("x") == 1
    assert math.isinf(retries._attempts["x"].due)
