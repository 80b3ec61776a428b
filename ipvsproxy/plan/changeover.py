"""What changes of a frontend before, or after, its real servers do, wherever plan/order.py's table would be too late.

The real servers of a frontend and the set entries that say who may come in, and who is masqueraded, often change at
once: its policy flips, or another Service gets it. What serves before and after serves all the time, so for a moment
the former real servers and the new ones stand side by side. Meanwhile the entries are such as neither do harm behind:

    source ranges   narrow before, widen after: nobody is led where he is not before or after, and who is let in both
                    times comes in all the time, for networks lie in one another or apart (K36)
    masquerading    on before, off after: an endpoint of another node without it would answer the client itself (K24)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from ipvsproxy.model.addr import masked
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Key, Kind, ObjectId, Operation, SetEntry, State, Verb
from ipvsproxy.model.names import SET_LOAD_BALANCER_FW, SETS_LOAD_BALANCER_SOURCE, family_of_set, set_name
from ipvsproxy.plan.ownership import told_by
from ipvsproxy.plan.snat import EXCEPTIONS, NODE_PORTS_LOCAL, Stands, is_masqueraded

Change: TypeAlias = tuple[Verb, SetEntry]

_SOURCES = frozenset(set_name(base, family) for base in SETS_LOAD_BALANCER_SOURCE for family in Family)


class Changeover(NamedTuple):
    """Changes that come before any real server of the same frontend does, and after all that leave have left."""

    before: frozenset[Change] = frozenset()
    after: frozenset[Change] = frozenset()


def changeover(operations: Sequence[Operation], applied: State) -> Changeover:
    """Which of these operations on set entries are out of turn. `applied` is what stands before the first."""
    changes = [(each.verb, each.key) for each in operations if isinstance(each.key, SetEntry)]
    sources = [change for change in changes if change[1].set_name in _SOURCES]
    exceptions = [change for change in changes if change[1].set_name in EXCEPTIONS]
    if not sources and not exceptions:
        return Changeover()
    come = {(each.kind, each.key) for each in operations if each.verb is Verb.ADD}
    # What goes and comes back, as accept entries do for a virtual server that was lost, is there in the end.
    gone = {each.key for each in operations if each.verb is Verb.DELETE and (each.kind, each.key) not in come}
    passage = _Passage(applied, come, gone)
    return Changeover(
        before=frozenset((*_narrowing(sources, gone), *_masquerading(exceptions, passage))),
        after=frozenset((*_widening(sources, applied), *_unmasquerading(exceptions, passage))),
    )


class _Passage(NamedTuple):
    """From what stands to what will. Guards do not count: they come before the real servers, and go after them."""

    applied: State
    come: Container[ObjectId]
    gone: Container[Key]

    def stands_before(self, ref: ObjectId) -> bool:
        kind, key = ref
        return kind is not Kind.GUARD_ENTRY and key in self.applied[kind]

    def stands_meanwhile(self, ref: ObjectId) -> bool:
        """Where nothing is out of turn."""
        return self.stands_before(ref) or (ref[0] is not Kind.GUARD_ENTRY and ref in self.come)

    def stands_after(self, ref: ObjectId) -> bool:
        return self.stands_meanwhile(ref) and ref[1] not in self.gone


def _narrowing(sources: Sequence[Change], gone: Container[Key]) -> Iterator[Change]:
    """Sources that go while their guard stays, and are not within one that comes."""
    come, go = _entries(sources, Verb.ADD), _entries(sources, Verb.DELETE)
    return ((Verb.DELETE, entry) for entry in go - _within(go, come) if _guard(entry) not in gone)


def _widening(sources: Sequence[Change], applied: State) -> Iterator[Change]:
    """Sources that come where a guard stands by now, and are not within one that goes."""
    come, go = _entries(sources, Verb.ADD), _entries(sources, Verb.DELETE)
    return ((Verb.ADD, entry) for entry in come - _within(come, go) if _guard(entry) in applied[Kind.GUARD_ENTRY])


def _masquerading(exceptions: Sequence[Change], passage: _Passage) -> Iterator[Change]:
    """Exceptions in the way of what masquerades in the end."""
    for entry in _entries(exceptions, Verb.DELETE):
        if entry.set_name in NODE_PORTS_LOCAL:
            is_in_the_way = _of_every_policy(entry) not in passage.gone
        else:
            is_in_the_way = _ends(entry, passage.stands_after, passage)
        if is_in_the_way:
            yield Verb.DELETE, entry


def _unmasquerading(exceptions: Sequence[Change], passage: _Passage) -> Iterator[Change]:
    """Exceptions in the way of what masquerades by now."""
    for entry in _entries(exceptions, Verb.ADD):
        if entry.set_name in NODE_PORTS_LOCAL:
            is_in_the_way = _of_every_policy(entry) in passage.applied[Kind.SUPPORT_ENTRY]
        else:
            is_in_the_way = _ends(entry, passage.stands_before, passage)
        if is_in_the_way:
            yield Verb.ADD, entry


def _ends(entry: SetEntry, stands: Stands, passage: _Passage) -> bool:
    """Whether a frontend is masqueraded then, and would not be while all that comes or goes stands."""
    return any(
        is_masqueraded(key, stands) and not is_masqueraded(key, passage.stands_meanwhile) for key in told_by(entry, ())
    )


def _of_every_policy(local: SetEntry) -> SetEntry:
    return replace(local, set_name=NODE_PORTS_LOCAL[local.set_name])


def _entries(changes: Iterable[Change], verb: Verb) -> frozenset[SetEntry]:
    return frozenset(entry for each, entry in changes if each is verb)


def _within(entries: frozenset[SetEntry], others: frozenset[SetEntry]) -> frozenset[SetEntry]:
    """Those of `entries` whose network lies in that of one of `others` of the same frontend."""
    lengths = {other.prefix_len for other in others}
    return frozenset(
        entry
        for entry in entries
        for length in lengths
        if length < entry.prefix_len
        if replace(entry, second=masked(entry.second, length), prefix_len=length) in others
    )


def _guard(entry: SetEntry) -> SetEntry:
    """What closes the frontend of an allowed source to all others."""
    name = set_name(SET_LOAD_BALANCER_FW, family_of_set(entry.set_name))
    return SetEntry(name, entry.address, entry.protocol, entry.port)
