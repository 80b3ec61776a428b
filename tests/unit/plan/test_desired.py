from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.health_check import HealthCheck
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import Desired, OwnerPlan
from tests.builders import addr, owner, vs_key

ADDRESS = (Kind.ADDRESS, addr("10.96.0.20"))
KEY = vs_key("10.96.0.20", 80)
SERVER = (Kind.VIRTUAL_SERVER, KEY)
A, B = ServiceName("default", "a"), ServiceName("default", "b")


def test_an_object_lives_while_one_owner_wants_it():
    desired = Desired()
    desired.replace(A, owner("a", {ADDRESS: True}))
    desired.replace(B, owner("b", {ADDRESS: True}))
    assert desired.replace(A, None) == [ADDRESS]
    assert desired.get(ADDRESS) is True
    desired.replace(B, None)
    assert desired.get(ADDRESS) is None
    assert list(desired) == []


def test_an_unchanged_plan_touches_nothing():
    desired = Desired()
    desired.replace(A, owner("a", {ADDRESS: True, SERVER: VirtualServer("rr")}))
    assert desired.replace(A, owner("a", {ADDRESS: True, SERVER: VirtualServer("rr")})) == []


def test_a_plan_touches_only_what_changed_in_it():
    desired = Desired()
    desired.replace(A, owner("a", {ADDRESS: True, SERVER: VirtualServer("rr")}))
    assert desired.replace(A, owner("a", {ADDRESS: True, SERVER: VirtualServer("lc")})) == [SERVER]


def test_the_older_owner_keeps_an_object_in_whatever_order_they_come():
    old = owner("z", {SERVER: VirtualServer("rr")}, created="2026-01-01T00:00:00Z")
    new = owner("a", {SERVER: VirtualServer("lc")}, created="2026-02-01T00:00:00Z")
    for first, second in ((old, new), (new, old)):
        desired = Desired()
        desired.replace(first.owner, first)
        desired.replace(second.owner, second)
        assert desired.get(SERVER) == VirtualServer("rr")


def test_the_younger_owner_takes_over_when_the_older_goes():
    desired = Desired()
    desired.replace(B, owner("b", {SERVER: VirtualServer("rr")}, created="2026-01-01T00:00:00Z"))
    desired.replace(A, owner("a", {SERVER: VirtualServer("lc")}, created="2026-02-01T00:00:00Z"))
    assert desired.replace(B, None) == [SERVER]
    assert desired.get(SERVER) == VirtualServer("lc")


def test_a_service_made_anew_gives_way_to_one_that_is_older_now():
    desired = Desired()
    desired.replace(A, owner("a", {SERVER: VirtualServer("rr")}, created="2026-01-01T00:00:00Z"))
    desired.replace(B, owner("b", {SERVER: VirtualServer("lc")}, created="2026-02-01T00:00:00Z"))
    touched = desired.replace(A, owner("a", {SERVER: VirtualServer("rr")}, created="2026-03-01T00:00:00Z"))
    assert touched == [SERVER]
    assert desired.get(SERVER) == VirtualServer("lc")


def test_a_service_that_does_not_tell_its_age_is_the_youngest():
    known = owner("z", {SERVER: VirtualServer("rr")}, created="2026-01-01T00:00:00Z")
    unknown = owner("a", {SERVER: VirtualServer("lc")}, created="")
    desired = Desired()
    for plan in (unknown, known):
        desired.replace(plan.owner, plan)
    assert desired.get(SERVER) == VirtualServer("rr")
    assert desired.take_lost() == [(KEY, known.owner, unknown.owner)]


# Set entries go with the frontend that they are about

RANGE = (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", KEY.address, 6, 80, addr("198.51.100.0"), 24))
OTHER_RANGE = (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", KEY.address, 6, 80, addr("10.0.0.0"), 8))
OLD = OwnerPlan(B, "2026-01-01T00:00:00Z", {SERVER: VirtualServer("rr"), RANGE: True}, {KEY: (RANGE,)})
YOUNG = OwnerPlan(A, "2026-02-01T00:00:00Z", {SERVER: VirtualServer("rr"), OTHER_RANGE: True}, {KEY: (OTHER_RANGE,)})


@pytest.mark.parametrize("plans", [pytest.param((OLD, YOUNG), id="old first"), pytest.param((YOUNG, OLD), id="last")])
def test_k35_the_entries_of_a_frontend_are_its_holders_alone(plans):
    desired = Desired()
    for plan in plans:
        desired.replace(plan.owner, plan)
    assert (desired.get(RANGE), desired.get(OTHER_RANGE)) == (True, None)
    assert OTHER_RANGE not in {(kind, key) for kind, objects in desired.state().items() for key in objects}


def test_who_takes_a_frontend_over_brings_its_entries():
    desired = Desired()
    for plan in (OLD, YOUNG):
        desired.replace(plan.owner, plan)
    assert set(desired.replace(B, None)) == {SERVER, RANGE, OTHER_RANGE}
    assert (desired.get(RANGE), desired.get(OTHER_RANGE)) == (None, True)


def test_who_loses_a_frontend_to_an_older_service_takes_its_entries_back():
    desired = Desired()
    desired.replace(A, YOUNG)
    assert set(desired.replace(B, OLD)) == {SERVER, RANGE, OTHER_RANGE}
    assert desired.get(OTHER_RANGE) is None


def test_an_entry_that_another_frontend_names_too_stays():
    second = vs_key("198.51.100.11", 30080)
    port = (Kind.SUPPORT_ENTRY, SetEntry("KUBE-NODE-PORT-TCP", port=30080))
    objects = {SERVER: VirtualServer("rr"), (Kind.VIRTUAL_SERVER, second): VirtualServer("rr"), port: True}
    desired = Desired()
    desired.replace(B, OLD)
    desired.replace(A, OwnerPlan(A, "2026-02-01T00:00:00Z", objects, {KEY: (port,), second: (port,)}))
    assert desired.get(port) is True
    desired.replace(A, OwnerPlan(A, "2026-02-01T00:00:00Z", {SERVER: VirtualServer("rr"), port: True}, {KEY: (port,)}))
    assert desired.get(port) is None


def test_an_entry_of_a_lost_frontend_counts_as_soon_as_it_goes_with_another_one_too():
    second = vs_key("198.51.100.11", 30080)
    port = (Kind.SUPPORT_ENTRY, SetEntry("KUBE-NODE-PORT-TCP", port=30080))
    objects = {SERVER: VirtualServer("rr"), (Kind.VIRTUAL_SERVER, second): VirtualServer("rr"), port: True}
    created = "2026-02-01T00:00:00Z"
    desired = Desired()
    desired.replace(B, OLD)
    desired.replace(A, OwnerPlan(A, created, objects, {KEY: (port,), second: ()}))
    assert desired.get(port) is None
    assert desired.replace(A, OwnerPlan(A, created, objects, {KEY: (port,), second: (port,)})) == [port]
    assert desired.get(port) is True


# Many want one frontend


def contestants(count: int) -> list[OwnerPlan]:
    """Each with an entry of its own; the last is the oldest."""
    plans = []
    for number in range(count):
        entry = (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", KEY.address, 6, 80, bytes(4), number))
        name, created = ServiceName("default", f"s{number}"), f"2026-01-01T00:00:{count - number:02}Z"
        plans.append(OwnerPlan(name, created, {SERVER: VirtualServer("rr"), entry: True}, {KEY: (entry,)}))
    return plans


def test_whoever_comes_among_many_touches_what_he_wants_and_one_other_at_most():
    desired = Desired()
    touched = [len(set(desired.replace(plan.owner, plan))) for plan in contestants(50)]
    assert touched == [2, *[3] * 49]  # the virtual server, his entry, and that of the one from whom he takes it
    plans = contestants(51)
    youngest = OwnerPlan(
        ServiceName("default", "young"), "2027-01-01T00:00:00Z", plans[50].objects, plans[50].frontends
    )
    assert len(set(desired.replace(youngest.owner, youngest))) == 2


def test_each_is_told_once_who_has_what_he_wants_in_vain_whatever_the_others_do():
    *young, old = contestants(50)
    desired = Desired()
    for plan in (*young, old):
        desired.replace(plan.owner, plan)
    assert set(desired.take_lost()) == {(KEY, old.owner, plan.owner) for plan in young}
    for plan in (old, young[0]):
        desired.replace(
            plan.owner, msgspec.structs.replace(plan, objects={**plan.objects, SERVER: VirtualServer("lc")})
        )
    desired.replace(old.owner, None)
    assert desired.take_lost() == []
    desired.replace(old.owner, old)
    assert desired.take_lost() == [(KEY, old.owner, young[-1].owner)]


def test_who_has_it_back_before_anybody_asks_is_told_nothing():
    desired = Desired()
    for plan in (YOUNG, OLD):
        desired.replace(plan.owner, plan)
    desired.replace(B, None)
    assert desired.take_lost() == []


def test_health_checks_are_the_same_object_until_one_of_them_changes():
    desired = Desired()
    two = HealthCheck(32100, {Family.IPV4: 2})
    desired.replace(A, msgspec.structs.replace(owner("a", {ADDRESS: True}), health=two))
    before = desired.health_checks
    desired.replace(A, msgspec.structs.replace(owner("a", {SERVER: VirtualServer("rr")}), health=two))
    desired.replace(B, owner("b", {ADDRESS: True}))
    assert desired.health_checks is before
    desired.replace(A, msgspec.structs.replace(owner("a", {}), health=HealthCheck(32100, {Family.IPV4: 1})))
    assert (before[A].local_endpoints[Family.IPV4], desired.health_checks[A].local_endpoints[Family.IPV4]) == (2, 1)


@pytest.mark.parametrize(
    "plan", [None, owner("a", {ADDRESS: True})], ids=["the Service goes", "it is not asked any more"]
)
def test_a_health_check_goes_when(plan):
    desired = Desired()
    desired.replace(A, msgspec.structs.replace(owner("a", {}), health=HealthCheck(32100, {Family.IPV4: 2})))
    desired.replace(A, plan)
    assert desired.health_checks == {}


def test_the_drain_time_of_an_owner_is_that_of_its_plan_in_force():
    desired = Desired()
    assert desired.drain_s(A) is None
    desired.replace(A, OwnerPlan(A, "", {ADDRESS: True}, drain_s=30.0))
    assert desired.drain_s(A) == 30.0
    desired.replace(A, None)
    assert desired.drain_s(A) is None
