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
from ipvsproxy.model.kernel_objects import Key, Kind, Operation, SetEntry, State, Verb
from ipvsproxy.model.names import (
    SET_LOAD_BALANCER,
    SET_LOAD_BALANCER_FW,
    SET_LOAD_BALANCER_LOCAL,
    SETS_LOAD_BALANCER_SOURCE,
    SETS_NODE_PORT,
    family_of_set,
    set_name,
)

Change: TypeAlias = tuple[Verb, SetEntry]

_SOURCES = frozenset(set_name(base, family) for base in SETS_LOAD_BALANCER_SOURCE for family in Family)
# What is in the first of each pair is not masqueraded, though it is in the second.
LOCAL_SETS = {
    set_name(local, family): set_name(every, family)
    for every, local in ((SET_LOAD_BALANCER, SET_LOAD_BALANCER_LOCAL), *SETS_NODE_PORT.values())
    for family in Family
}


class Changeover(NamedTuple):
    """Changes that come before any real server of the same frontend does, and after all that leave have left."""

    before: frozenset[Change] = frozenset()
    after: frozenset[Change] = frozenset()


def changeover(operations: Sequence[Operation], applied: State) -> Changeover:
    """Which of these operations on support entries are out of turn. `applied` is what stands before the first."""
    support = Kind.SUPPORT_ENTRY
    changes = [(each.verb, each.key) for each in operations if each.kind is support and isinstance(each.key, SetEntry)]
    if not changes:
        return Changeover()
    gone = {each.key for each in operations if each.verb is Verb.DELETE}
    sources = [change for change in changes if change[1].set_name in _SOURCES]
    local = [change for change in changes if change[1].set_name in LOCAL_SETS]
    return Changeover(
        before=frozenset((*_narrowing(sources, gone), *_masquerading(local, gone))),
        after=frozenset((*_widening(sources, applied), *_unmasquerading(local, applied))),
    )


def _narrowing(sources: Sequence[Change], gone: Container[Key]) -> Iterator[Change]:
    """Sources that go while their guard stays, and are not within one that comes."""
    come, go = _entries(sources, Verb.ADD), _entries(sources, Verb.DELETE)
    return ((Verb.DELETE, entry) for entry in go - _within(go, come) if _guard(entry) not in gone)


def _widening(sources: Sequence[Change], applied: State) -> Iterator[Change]:
    """Sources that come where a guard stands by now, and are not within one that goes."""
    come, go = _entries(sources, Verb.ADD), _entries(sources, Verb.DELETE)
    return ((Verb.ADD, entry) for entry in come - _within(come, go) if _guard(entry) in applied[Kind.GUARD_ENTRY])


def _masquerading(local: Sequence[Change], gone: Container[Key]) -> Iterator[Change]:
    """Frontends of policy Local that become others, and do not go."""
    return ((Verb.DELETE, entry) for entry in _entries(local, Verb.DELETE) if _of_every_policy(entry) not in gone)


def _unmasquerading(local: Sequence[Change], applied: State) -> Iterator[Change]:
    """Frontends that are there by now, and become those of policy Local."""
    for entry in _entries(local, Verb.ADD):
        every = _of_every_policy(entry)
        if every in applied[Kind.ACCEPT_ENTRY] or every in applied[Kind.SUPPORT_ENTRY]:
            yield Verb.ADD, entry


def _of_every_policy(local: SetEntry) -> SetEntry:
    return replace(local, set_name=LOCAL_SETS[local.set_name])


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
