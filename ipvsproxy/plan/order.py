"""The order of kernel changes: one table for syncs, removals and clean-up.

What is new comes first and is built from the inside out, so that an address is bound when all behind it stands; what
goes comes after and is taken from the outside in. Between two messages no bound (address, port) is ever let through
the filter without a virtual server, or host ports would show (K31) and steady UDP senders be lost for good; and what
is served before and after a sync is served all the time (K34). Removal keeps the address until its virtual server is
gone, so that open streams hear a reset and not silence; a grace time there, and draining before it, find their place
between the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    Operation,
    RuleTable,
    SetEntry,
    State,
    Verb,
    VirtualServerKey,
)
from ipvsproxy.model.names import DUMMY_DEVICE, set_name

_PHASES: tuple[tuple[Kind, Verb], ...] = (
    (Kind.SYSCTL, Verb.ADD),
    (Kind.SYSCTL, Verb.EDIT),
    (Kind.SET, Verb.ADD),
    (Kind.SET, Verb.EDIT),
    (Kind.RULES, Verb.ADD),  # filter before nat: restrict, then translate (RuleTable sorts so)
    (Kind.RULES, Verb.EDIT),
    (Kind.LINK, Verb.ADD),
    (Kind.LINK, Verb.EDIT),
    (Kind.SUPPORT_ENTRY, Verb.ADD),
    (Kind.VIRTUAL_SERVER, Verb.EDIT),
    (Kind.VIRTUAL_SERVER, Verb.ADD),
    (Kind.REAL_SERVER, Verb.EDIT),  # later: weight 0 while draining, back to 1 when the endpoint returns
    (Kind.REAL_SERVER, Verb.ADD),
    (Kind.ACCEPT_ENTRY, Verb.ADD),
    (Kind.BOUND_ENTRY, Verb.ADD),
    (Kind.ADDRESS, Verb.ADD),
    # All that is new serves from here on.
    (Kind.REAL_SERVER, Verb.DELETE),
    (Kind.ACCEPT_ENTRY, Verb.DELETE),
    (Kind.VIRTUAL_SERVER, Verb.DELETE),
    (Kind.ADDRESS, Verb.DELETE),  # later: only after the grace time in which everything is refused actively
    (Kind.BOUND_ENTRY, Verb.DELETE),
    (Kind.SUPPORT_ENTRY, Verb.DELETE),
    (Kind.LINK, Verb.DELETE),
    (Kind.RULES, Verb.DELETE),
    (Kind.SET, Verb.DELETE),
)
PHASE = {row: number for number, row in enumerate(_PHASES)}
_ORPHANS = -1  # accept entries without a virtual server go first: an address bound before they go would show host ports


def ordered(operations: Iterable[Operation], applied: State) -> Iterator[list[Operation]]:
    """The operations phase by phase; each list is of one kind and verb. `applied` is what stands before the first."""

    def phase(operation: Operation) -> int:
        return _ORPHANS if _is_orphan(operation, applied) else PHASE[operation.kind, operation.verb]

    for _, group in groupby(sorted(operations, key=phase), key=phase):
        together = list(group)
        if together[0].kind is Kind.RULES:
            together.sort(key=lambda operation: (operation.key, operation.verb))
        yield together


def _is_orphan(operation: Operation, applied: State) -> bool:
    """Whether it deletes an accept entry that is left over without its virtual server."""
    key = operation.key
    if operation.kind is not Kind.ACCEPT_ENTRY or operation.verb is not Verb.DELETE or not isinstance(key, SetEntry):
        return False
    return accepted_by(key) not in applied[Kind.VIRTUAL_SERVER]


def must_stand(operation: Operation) -> tuple[ObjectId, ...]:
    """Objects without which an operation that adds must not be sent, since it would open what should be closed."""
    key = operation.key
    if operation.verb is Verb.DELETE:
        return ()
    if operation.kind is Kind.REAL_SERVER:
        return ((Kind.VIRTUAL_SERVER, key),)
    if operation.kind is Kind.ACCEPT_ENTRY and isinstance(key, SetEntry):
        return ((Kind.VIRTUAL_SERVER, accepted_by(key)),)
    if operation.kind is Kind.ADDRESS and isinstance(key, bytes):
        family = family_of(key)
        return (
            (Kind.LINK, DUMMY_DEVICE),
            (Kind.RULES, RuleTable("filter", family)),
            (Kind.RULES, RuleTable("nat", family)),
            (Kind.BOUND_ENTRY, SetEntry(set_name("KUBE-IPVS-IPS", family), key)),
        )
    return ()


def must_be_gone(operation: Operation, accept_sets: dict[Family, tuple[str, ...]]) -> tuple[ObjectId, ...]:
    """Objects that must have left before an operation that deletes may be sent: the outside goes first."""
    key = operation.key
    if operation.verb is not Verb.DELETE:
        return ()
    if operation.kind is Kind.VIRTUAL_SERVER and isinstance(key, VirtualServerKey):
        names = accept_sets[family_of(key.address)]
        return tuple((Kind.ACCEPT_ENTRY, SetEntry(name, key.address, key.protocol, key.port)) for name in names)
    if operation.kind is Kind.BOUND_ENTRY and isinstance(key, SetEntry):
        return ((Kind.ADDRESS, PackedAddr(key.address)),)
    return ()


def accepted_by(entry: SetEntry) -> VirtualServerKey:
    """The virtual server behind an accept entry."""
    return VirtualServerKey(Protocol(entry.protocol), PackedAddr(entry.address), entry.port)
