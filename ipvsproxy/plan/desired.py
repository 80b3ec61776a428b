"""What all Services together want, kept by owner, so that one changed Service costs what it touches.

An object lives while some owner wants it: a VIP stays bound while one port needs it (K19). Where two owners want the
same virtual server, the older one has it (rank: creation time, then name), whatever order their events came in; and
with it go the set entries of that frontend, so that the other's source ranges or policies cannot widen what it closes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import cast

import msgspec

from ipvsproxy.cluster.health_check import HealthCheck
from ipvsproxy.model.figures import Lacking
from ipvsproxy.model.kernel_objects import Kind, ObjectId, Settings, State, VirtualServerKey, empty_state
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note

_UNKNOWN_AGE = "~"  # sorts behind every time
FIXED = ServiceName("", "")  # the owner of sets, rules, sysctls and the link


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
    def rank(self) -> tuple[str, ServiceName]:
        """Smaller wins where two owners want one object; who does not tell its age is the youngest."""
        return self.created or _UNKNOWN_AGE, self.owner


class Desired:
    """The plans in force, and for each object who wants it."""

    def __init__(self) -> None:
        self._plans: dict[ServiceName, OwnerPlan] = {}
        self._holders: dict[ObjectId, tuple[ServiceName, ...]] = {}
        self._lost: dict[ServiceName, frozenset[VirtualServerKey]] = {}  # frontends that an older owner has
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
        touched = [ref for ref, settings in new.items() if not same_rank or old.get(ref) != settings]
        for ref in old:
            if ref not in new:
                touched.append(ref)
                self._release(ref, owner)
        for ref in new:
            if ref not in old:
                self._holders[ref] = (*self._holders.get(ref, ()), owner)
        if plan is not None:
            self._plans[owner] = plan
        self._set_health(owner, plan.health if plan else None)
        self._set_lacking(before.lacking if before else frozenset(), plan.lacking if plan else frozenset())
        return [*touched, *self._settle(ref for ref in (*old, *new) if ref[0] is Kind.VIRTUAL_SERVER)]

    def drain_s(self, owner: ServiceName) -> float | None:
        """The drain time that the owner's plan in force asks for; None where it says none, or there is no plan."""
        plan = self._plans.get(owner)
        return plan.drain_s if plan else None

    def drain_s_at(self, key: VirtualServerKey) -> float | None:
        """The same of whoever has a virtual server; None where nobody wants it."""
        holders = self._holders.get((Kind.VIRTUAL_SERVER, key))
        return min((self._plans[owner] for owner in holders), key=lambda plan: plan.rank).drain_s if holders else None

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
        holders = self._holders.get(ref)
        if holders is None:
            return None
        if self._lost:
            holders = tuple(owner for owner in holders if self._counts(owner, ref))
            if not holders:
                return None
        plan = (
            self._plans[holders[0]]
            if len(holders) == 1
            else min((self._plans[o] for o in holders), key=lambda p: p.rank)
        )
        return plan.objects[ref]

    def holders(self, ref: ObjectId) -> tuple[ServiceName, ...]:
        """The owners that want this object."""
        return self._holders.get(ref, ())

    def __iter__(self) -> Iterator[ObjectId]:
        """Every wanted object."""
        return iter(self._holders)

    def contested(self, refs: Iterable[ObjectId]) -> Iterator[tuple[ObjectId, ServiceName, ServiceName]]:
        """(virtual server, who has it, who wants it too) for those of `refs` that several owners want."""
        for ref in refs:
            holders = self._holders.get(ref, ())
            if ref[0] is Kind.VIRTUAL_SERVER and len(holders) > 1:
                first, *others = sorted(holders, key=lambda owner: self._plans[owner].rank)
                for other in others:
                    yield ref, first, other

    def clear(self) -> None:
        """Nobody wants anything."""
        self._plans.clear()
        self._holders.clear()
        self._lost.clear()
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

    def _settle(self, refs: Iterable[ObjectId]) -> Iterator[ObjectId]:
        """Who has each of these virtual servers now; the set entries for which that may make a difference."""
        for ref in refs:
            holders = self._holders.get(ref, ())
            if len(holders) <= 1 and not self._lost:
                continue
            key = cast("VirtualServerKey", ref[1])
            losers = set(sorted(holders, key=lambda owner: self._plans[owner].rank)[1:])
            before = {owner for owner, keys in self._lost.items() if key in keys}
            for owner in before | losers:
                lost = self._lost.get(owner, frozenset()) - {key}
                self._lost[owner] = lost | {key} if owner in losers else lost
                if not self._lost[owner]:
                    del self._lost[owner]
            for owner in {*holders, *before} & self._plans.keys():
                yield from self._plans[owner].frontends.get(key, ())

    def _counts(self, owner: ServiceName, ref: ObjectId) -> bool:
        """Whether this owner's wish for an object counts: not where it is about frontends alone that it has lost."""
        lost = self._lost.get(owner)
        if lost is None:
            return True
        about = [key for key, entries in self._plans[owner].frontends.items() if ref in entries]
        return not about or any(key not in lost for key in about)

    def _release(self, ref: ObjectId, owner: ServiceName) -> None:
        left = tuple(holder for holder in self._holders[ref] if holder != owner)
        if left:
            self._holders[ref] = left
        else:
            del self._holders[ref]
