"""What all Services together want, kept by owner, so that one changed Service costs what it touches.

An object lives while some owner wants it: a VIP stays bound while one port needs it (K19). Where two owners want the
same virtual server, the older one has it (rank: creation time, then name), whatever order their events came in; and
with it go the set entries of that frontend, so that the other's source ranges or policies cannot widen what it closes.
Anybody can make many Services that want one frontend. So one that comes, goes or changes finds its place among them by
bisection, and touches at most one other: whom it takes the frontend from, or leaves it to.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from ipvsproxy.cluster.health_check import HealthCheck
from ipvsproxy.model.figures import Lacking
from ipvsproxy.model.kernel_objects import Kind, ObjectId, Settings, State, VirtualServerKey, empty_state
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note

_UNKNOWN_AGE = "~"  # sorts behind every time
FIXED = ServiceName("", "")  # the owner of sets, rules, sysctls and the link

_Moved: TypeAlias = dict[ServiceName, set[VirtualServerKey]]
Rank: TypeAlias = tuple[str, ServiceName]  # creation time and name; the smallest has what several want


class OwnerPlan(msgspec.Struct, frozen=True):
    """All objects that one owner wants. `created` is RFC 3339 text, empty where it is not known.

    `frontends`: the set entries that go with each virtual server. `health`: what to tell load balancers about it; None
    where they do not ask. `drain_s`: for how many seconds connections may go on behind what leaves this plan, None
    where the default holds. `notes`: what of the owner's wishes the plan cannot hold; `remarks`: what he should know
    though it holds all. `lacking`: where its traffic shall stay on this node and finds nothing here.
    """

    owner: ServiceName
    created: str
    objects: Mapping[ObjectId, Settings]
    frontends: Mapping[VirtualServerKey, tuple[ObjectId, ...]] = {}
    health: HealthCheck | None = None
    drain_s: float | None = None
    notes: tuple[Note, ...] = ()
    lacking: frozenset[Lacking] = frozenset()
    remarks: tuple[Note, ...] = ()

    @property
    def rank(self) -> Rank:
        """Who does not tell its age is the youngest."""
        return self.created or _UNKNOWN_AGE, self.owner


class Desired:
    """The plans in force, and for each object who wants it."""

    def __init__(self) -> None:
        self._plans: dict[ServiceName, OwnerPlan] = {}
        self._holders: dict[ObjectId, Rank | list[Rank]] = {}  # a list, sorted, where there are several
        self._lost: dict[ServiceName, frozenset[VirtualServerKey]] = {}  # frontends that an older owner has
        self._newly_lost: dict[tuple[VirtualServerKey, ServiceName], None] = {}
        self._health_checks: dict[ServiceName, HealthCheck] = {}
        self._told_health: Mapping[ServiceName, HealthCheck] | None = None
        self.lacking: Counter[Lacking] = Counter()  # how many Services

    @property
    def health_checks(self) -> Mapping[ServiceName, HealthCheck]:
        """What load balancers are told of whom; the same object until something in it changes, and never edited."""
        if self._told_health is None:
            self._told_health = MappingProxyType(dict(self._health_checks))
        return self._told_health

    def replace(self, owner: ServiceName, plan: OwnerPlan | None) -> list[ObjectId]:
        """Put `plan` in the place of the owner's former one (None: it is gone); the objects that this touches."""
        before = self._plans.pop(owner, None)
        old = before.objects if before else {}
        new = plan.objects if plan else {}
        same_rank = before is not None and plan is not None and before.rank == plan.rank
        lost = self._lost.pop(owner, frozenset())
        withheld = _about(before, lost) if before and lost else {}
        touched = [ref for ref, settings in new.items() if not same_rank or old.get(ref) != settings or ref in withheld]
        touched += (ref for ref in old if ref not in new)
        moved: _Moved = {owner: {key for key in lost if (Kind.VIRTUAL_SERVER, key) in new}} if lost and plan else {}
        if before is not None:
            gone = (ref for ref in old if (ref not in new or not same_rank) and ref not in withheld)
            self._release(gone, before.rank, moved)
        if plan is not None:
            self._plans[owner] = plan
            self._hold((ref for ref in new if ref not in old or not same_rank or ref in withheld), plan.rank, moved)
        for other, keys in moved.items():
            known = self._lost.get(other, frozenset()) if other != owner else lost if same_rank else frozenset()
            touched += self._settle(other, keys, known)
        self._set_health(owner, plan.health if plan else None)
        self._set_lacking(before.lacking if before else frozenset(), plan.lacking if plan else frozenset())
        return touched

    def drain_s(self, owner: ServiceName) -> float | None:
        """The drain time that the owner's plan in force asks for; None where it says none, or there is no plan."""
        plan = self._plans.get(owner)
        return plan.drain_s if plan else None

    def drain_s_at(self, key: VirtualServerKey) -> float | None:
        """The same of whoever has a virtual server; None where nobody wants it."""
        holder = self._first((Kind.VIRTUAL_SERVER, key))
        return self._plans[holder[1]].drain_s if holder else None

    def notes(self, owner: ServiceName) -> tuple[Note, ...]:
        """What of the owner's wishes his plan in force cannot hold; nothing where there is none."""
        plan = self._plans.get(owner)
        return plan.notes if plan else ()

    def remarks(self, owner: ServiceName) -> tuple[Note, ...]:
        """What the owner's plan in force remarks; nothing where there is none."""
        plan = self._plans.get(owner)
        return plan.remarks if plan else ()

    def get(self, ref: ObjectId) -> Settings | None:
        """The wanted settings of an object; None where nobody wants it."""
        holder = self._first(ref)
        return None if holder is None else self._plans[holder[1]].objects[ref]

    def holders(self, ref: ObjectId) -> tuple[ServiceName, ...]:
        """The owners that want this object, the one that has it first."""
        holders = self._holders.get(ref, [])
        return tuple(owner for _, owner in (holders if isinstance(holders, list) else [holders]))

    def __iter__(self) -> Iterator[ObjectId]:
        """Every wanted object."""
        return iter(self._holders)

    def take_lost(self) -> list[tuple[VirtualServerKey, ServiceName, ServiceName]]:
        """(virtual server, who has it, who wants it too) for all that this has become true of since the last call."""
        taken, self._newly_lost = self._newly_lost, {}
        return [
            (key, holder[1], owner)
            for key, owner in taken
            if key in self._lost.get(owner, ()) and (holder := self._first((Kind.VIRTUAL_SERVER, key)))
        ]

    def clear(self) -> None:
        """Nobody wants anything."""
        self._plans.clear()
        self._holders.clear()
        self._lost.clear()
        self._newly_lost.clear()
        self._health_checks.clear()
        self._told_health = None
        self.lacking.clear()

    def state(self) -> State:
        """All wanted objects with their settings."""
        state = empty_state()
        for ref in self._holders:
            settings = self.get(ref)
            if settings is not None:
                state[ref[0]][ref[1]] = settings
        return state

    def _set_health(self, owner: ServiceName, check: HealthCheck | None) -> None:
        if check == self._health_checks.get(owner):
            return
        self._told_health = None
        if check is None:
            del self._health_checks[owner]
        else:
            self._health_checks[owner] = check

    def _set_lacking(self, before: frozenset[Lacking], now: frozenset[Lacking]) -> None:
        if before != now:
            self.lacking.subtract(before)
            self.lacking.update(now)

    def _first(self, ref: ObjectId) -> Rank | None:
        holder = self._holders.get(ref)
        return holder[0] if isinstance(holder, list) else holder

    def _hold(self, refs: Iterable[ObjectId], rank: Rank, moved: _Moved) -> None:
        """Add a wish for each of `refs`; `moved` learns who is behind another at a frontend for that."""
        holders = self._holders
        for ref in refs:
            others = holders.setdefault(ref, rank)
            if others is not rank:
                if not isinstance(others, list):
                    others = holders[ref] = [others]
                insort(others, rank)
                _note(moved, ref, others[1] if others[0] is rank else rank)

    def _release(self, refs: Iterable[ObjectId], rank: Rank, moved: _Moved) -> None:
        """Take a wish for each of `refs` back; `moved` learns who has a frontend for that."""
        for ref in refs:
            others = self._holders[ref]
            if not isinstance(others, list):
                del self._holders[ref]
                continue
            place = bisect_left(others, rank)
            del others[place]
            if place == 0:
                _note(moved, ref, others[0])
            if len(others) == 1:
                self._holders[ref] = others[0]

    def _settle(
        self, owner: ServiceName, keys: Collection[VirtualServerKey], known: frozenset[VirtualServerKey]
    ) -> list[ObjectId]:
        """Whether an owner has these virtual servers now; the set entries for which that makes a difference.

        An entry that is about lost ones alone is no wish of its owner meanwhile. `known`: those that were lost before.
        """
        plan, before = self._plans[owner], self._lost.pop(owner, frozenset())
        lost = before.difference(keys) | {key for key in keys if self._first((Kind.VIRTUAL_SERVER, key)) != plan.rank}
        if lost:
            self._lost[owner] = lost
        self._newly_lost.update(((key, owner), None) for key in sorted(lost - known))
        was, now = _about(plan, before), _about(plan, lost)
        self._hold((ref for ref in was if ref not in now), plan.rank, {})
        self._release((ref for ref in now if ref not in was), plan.rank, {})
        return [ref for ref in {**was, **now} if (ref in was) is not (ref in now)]


def _about(plan: OwnerPlan, keys: Collection[VirtualServerKey]) -> dict[ObjectId, None]:
    """The set entries that go with these virtual servers of a plan alone."""
    if not keys:
        return {}
    others = {entry for key, entries in plan.frontends.items() if key not in keys for entry in entries}
    about = (entry for key, entries in plan.frontends.items() if key in keys for entry in entries)
    return {entry: None for entry in about if entry not in others}


def _note(moved: _Moved, ref: ObjectId, rank: Rank) -> None:
    kind, key = ref
    if kind is Kind.VIRTUAL_SERVER and isinstance(key, VirtualServerKey):
        moved.setdefault(rank[1], set()).add(key)
