"""Who has what follows from the plans in force alone, whatever came in which order; what is touched holds all news."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, Settings, VirtualServer, VirtualServerKey
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import Desired, OwnerPlan
from tests.builders import addr, vs_key

OWNERS = tuple(ServiceName("default", name) for name in "abc")
KEYS = tuple(vs_key(address, 80) for address in ("203.0.113.20", "203.0.113.21"))
ENTRIES: tuple[ObjectId, ...] = tuple(
    (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-SOURCE-CIDR", KEYS[0].address, 6, 80, addr(net), 24))
    for net in ("198.51.100.0", "198.51.101.0", "198.51.102.0")
)
ADDRESS: ObjectId = (Kind.ADDRESS, KEYS[0].address)
REFS = (*((Kind.VIRTUAL_SERVER, key) for key in KEYS), *ENTRIES, ADDRESS)

Plans = Mapping[ServiceName, OwnerPlan]


def shapes() -> Iterator[OwnerPlan]:
    """Every plan of some frontends, each with some entries, of which one may go with several."""
    some = [entries for size in range(3) for entries in combinations(ENTRIES, size)]
    ways = [None, *product(("rr", "lc"), some)]
    for created, *chosen, address in product(("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", ""), ways, ways, (0, 1)):
        taken = {key: way for key, way in zip(KEYS, chosen, strict=True) if way}
        objects: dict[ObjectId, Settings] = {
            (Kind.VIRTUAL_SERVER, key): VirtualServer(scheduler) for key, (scheduler, _) in taken.items()
        }
        objects |= {entry: True for _, entries in taken.values() for entry in entries}
        objects |= {ADDRESS: True} if address else {}
        yield OwnerPlan(OWNERS[0], created, objects, {key: entries for key, (_, entries) in taken.items()})


SHAPES = st.sampled_from((*shapes(),))
steps = st.lists(
    st.tuples(st.sampled_from(OWNERS), SHAPES | SHAPES | st.none()),
    min_size=10,
    max_size=25,
)


def lost(now: Plans) -> set[tuple[VirtualServerKey, ServiceName, str]]:
    """(virtual server, who wants it in vain, since when he has been there)."""
    found = set()
    for key in KEYS:
        wanting = sorted(plan.rank for plan in now.values() if (Kind.VIRTUAL_SERVER, key) in plan.objects)
        found |= {(key, owner, created) for created, owner in wanting[1:]}
    return found


def settings(now: Plans, ref: ObjectId) -> Settings | None:
    """What the oldest wants whose wish counts: not that for entries of nothing but lost frontends."""
    in_vain = {(key, owner) for key, owner, _ in lost(now)}
    for plan in sorted(now.values(), key=lambda plan: plan.rank):
        about = [key for key, entries in plan.frontends.items() if ref in entries]
        if ref in plan.objects and (not about or any((key, plan.owner) not in in_vain for key in about)):
            return plan.objects[ref]
    return None


@given(steps)
def test_what_is_wanted_and_by_whom_in_vain_follows_from_the_plans_alone(history):
    desired, now = Desired(), {}
    for owner, shape in history:
        plan = shape and msgspec.structs.replace(shape, owner=owner)
        before, now = now, {name: kept for name, kept in now.items() if name != owner} | ({owner: plan} if plan else {})
        touched = desired.replace(owner, plan)
        wanted = {ref: settings(now, ref) for ref in REFS}
        assert {ref: desired.get(ref) for ref in REFS} == wanted
        assert set(desired) == {ref for ref, found in wanted.items() if found is not None}
        assert {ref for ref in REFS if settings(before, ref) != settings(now, ref)} <= set(touched)
        told = desired.take_lost()
        assert {(key, other) for key, _, other in told} == {(key, name) for key, name, _ in lost(now) - lost(before)}
        assert all(desired.holders((Kind.VIRTUAL_SERVER, key))[0] == holder for key, holder, _ in told)
    for owner in OWNERS:
        desired.replace(owner, None)
    assert list(desired) == []
