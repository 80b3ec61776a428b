"""What must wait where the kernel refuses what masquerades, or does not let go who needs it (K24).

By the order of changes (order.py, changeover.py) an endpoint of another node serves only while its clients are
masqueraded, or it would answer them itself. What is refused drops out of that order. Then the frontend stays as it is
until that is taken: no real server is added to it, and its masquerading does not end. Where it is closed instead, and
an interface then gets its address, which may not be closed (K32), it serves nobody until that is taken.

Nothing waits for itself: real servers wait for entries, entries that have clients masqueraded for others that do and
for real servers that leave, and what leaves, or only stands in the way of masquerading, for nothing of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.kernel_objects import Kind, ObjectId, Operation, SetEntry, Settings, State, Verb, VirtualServerKey
from ipvsproxy.plan.order import accept_entries, is_open, is_to_leave, only_leaves
from ipvsproxy.plan.ownership import told_by
from ipvsproxy.plan.snat import MASQUERADE_SETS, is_masqueraded


class Failing(NamedTuple):
    """What is wanted, what stands, and whether the kernel refuses an object, or it waits for one that is refused."""

    wanted: Callable[[ObjectId], Settings | None]
    applied: State
    is_refused: Callable[[ObjectId], bool]

    def is_wanted(self, ref: ObjectId) -> bool:
        """Whether an object should stand."""
        return self.wanted(ref) is not None

    def stands(self, ref: ObjectId) -> bool:
        """Whether an object does."""
        return ref[1] in self.applied[ref[0]]

    def to_leave(self, key: VirtualServerKey) -> bool:
        """Whether a real server serves that is not wanted to."""
        return is_to_leave(key, self.wanted, self.applied)


def unmasks(operation: Operation, failing: Failing, node_port_addresses: Collection[PackedAddr] = ()) -> bool:
    """Whether it would lead clients unmasqueraded to an endpoint that needs it, or that has not left yet."""
    match operation.kind, operation.verb, operation.key:
        case Kind.REAL_SERVER, Verb.ADD | Verb.EDIT, VirtualServerKey() as key:
            return not only_leaves(operation) and _lacks(key, failing)
        case kind, verb, SetEntry(set_name=name) as entry if name in MASQUERADE_SETS:
            return any(
                _ends(verb, (kind, entry), key, failing)
                for key in told_by(entry, node_port_addresses)
                if key in failing.applied[Kind.VIRTUAL_SERVER]
            )
        case _:
            return False


def relies_on_closing(key: VirtualServerKey, failing: Failing) -> bool:
    """Whether its closed address alone keeps clients from being led unmasqueraded to who needs it, or is to leave."""
    return (
        not is_open(key, failing.applied)
        and not is_masqueraded(key, failing.stands)
        and (failing.to_leave(key) or is_masqueraded(key, failing.is_wanted))
    )


def _lacks(key: VirtualServerKey, failing: Failing) -> bool:
    """Whether clients come in who are to be masqueraded and are not yet."""
    return (
        is_masqueraded(key, failing.is_wanted)
        and not is_masqueraded(key, failing.stands)
        and not _is_closed(key, failing)
    )


def _ends(verb: Verb, changed: ObjectId, key: VirtualServerKey, failing: Failing) -> bool:
    """Whether this change of an entry would end a frontend's masquerading, or open it without, which somebody needs."""
    goes = verb is Verb.DELETE

    def stands_then(ref: ObjectId) -> bool:
        if ref == changed:
            return not goes
        # Entries of one kind go in one batch.
        goes_too = goes and ref[0] is changed[0] and not failing.is_wanted(ref) and not failing.is_refused(ref)
        return failing.stands(ref) and not goes_too

    opens = changed[0] is Kind.ACCEPT_ENTRY and not goes and _is_closed(key, failing)
    if is_masqueraded(key, stands_then) or not (opens or is_masqueraded(key, failing.stands)):
        return False
    if is_masqueraded(key, failing.is_wanted):
        return True
    if failing.is_wanted((Kind.VIRTUAL_SERVER, key)) and failing.to_leave(key):
        return True
    # Where all goes, clients may still come in by an entry that is refused to.
    return goes and any(ref != changed and failing.is_refused(ref) and failing.stands(ref) for ref in _accepting(key))


def _is_closed(key: VirtualServerKey, failing: Failing) -> bool:
    """Whether nobody comes in: the address is closed to all that no accept entry lets in, and none stands."""
    return failing.is_wanted((Kind.ADDRESS, key.address)) and not is_open(key, failing.applied)


def _accepting(key: VirtualServerKey) -> list[ObjectId]:
    return [(Kind.ACCEPT_ENTRY, entry) for entry in accept_entries(key)]
