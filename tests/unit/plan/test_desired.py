from __future__ import annotations

from ipvsproxy.model.kernel_objects import Kind, VirtualServer
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import Desired
from tests.builders import addr, owner, vs_key

ADDRESS = (Kind.ADDRESS, addr("10.96.0.20"))
SERVER = (Kind.VIRTUAL_SERVER, vs_key("10.96.0.20", 80))
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
    assert list(desired.contested([SERVER, ADDRESS])) == [(SERVER, known.owner, unknown.owner)]
