"""What must wait where the kernel refuses what masquerades, or does not let go who needs it (K24).

By the order of changes (order.py, changeover.py) an endpoint of another node serves only while its clients are
masqueraded, or it would answer them itself. What is refused drops out of that order. Then the frontend stays as it is
until that is taken: no real server is added to it, and its masquerading does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, Operation, SetEntry, Settings, State, Verb, VirtualServerKey
from ipvsproxy.model.names import (
    SET_EXTERNAL_IP,
    SET_LOAD_BALANCER,
    SET_LOAD_BALANCER_LOCAL,
    SET_NODE_PORT_IPS,
    SETS_NODE_PORT,
    set_name,
)
from ipvsproxy.plan.order import is_accepted, only_leaves, serving
from ipvsproxy.plan.ownership import told_by
from ipvsproxy.plan.snat import EXCEPTIONS


class Failing(NamedTuple):
    """What is wanted, what stands, and whether the kernel refuses an object, or it waits for one that is refused."""

    wanted: Callable[[ObjectId], Settings | None]
    applied: State
    is_refused: Callable[[ObjectId], bool]

    def stays(self, key: VirtualServerKey) -> bool:
        """Whether a virtual server is wanted."""
        return self.wanted((Kind.VIRTUAL_SERVER, key)) is not None

    def to_come(self, kind: Kind, key: SetEntry) -> bool:
        """Whether this entry should stand, and is refused."""
        return key not in self.applied[kind] and self.is_refused((kind, key)) and self.wanted((kind, key)) is not None

    def to_go(self, kind: Kind, key: SetEntry) -> bool:
        """Whether this entry should have gone, and its deletion is refused."""
        return key in self.applied[kind] and self.is_refused((kind, key)) and self.wanted((kind, key)) is None

    def to_leave(self, key: VirtualServerKey) -> bool:
        """Whether a real server that is not wanted serves, since its leaving is refused."""
        ref = (Kind.REAL_SERVER, key)
        return self.is_refused(ref) and bool(
            serving(key, self.applied[Kind.REAL_SERVER].get(key)) - serving(key, self.wanted(ref))
        )


def unmasks(operation: Operation, failing: Failing, node_port_addresses: Collection[PackedAddr] = ()) -> bool:
    """Whether it would lead clients unmasqueraded to an endpoint that needs it, or that has not left yet."""
    match operation.kind, operation.verb, operation.key:
        case Kind.REAL_SERVER, Verb.ADD | Verb.EDIT, VirtualServerKey() as key:
            return not only_leaves(operation) and _lacks(key, failing)
        case Kind.ACCEPT_ENTRY | Kind.GUARD_ENTRY, Verb.DELETE, SetEntry() as entry:
            return any(
                _lacks(key, failing) or failing.to_leave(key) for key in told_by(entry, ()) if failing.stays(key)
            )
        case Kind.SUPPORT_ENTRY, Verb.ADD, SetEntry(set_name=name) as entry if name in EXCEPTIONS:
            return any(failing.to_leave(key) for key in told_by(entry, node_port_addresses) if failing.stays(key))
        case _:
            return False


def _lacks(key: VirtualServerKey, failing: Failing) -> bool:
    """Whether clients may come in who are to be masqueraded and are not yet."""
    wanted, support = failing.wanted, Kind.SUPPORT_ENTRY
    is_closed = wanted((Kind.ADDRESS, key.address)) is not None  # to all that no accept entry lets in
    external, balancer = _at(SET_EXTERNAL_IP, key), _at(SET_LOAD_BALANCER, key)
    missing = [entry for entry in (external, balancer) if failing.to_come(Kind.ACCEPT_ENTRY, entry)]
    if any(not is_closed or is_accepted(entry, failing.applied) for entry in missing):
        return True
    if wanted((Kind.ACCEPT_ENTRY, balancer)) is not None:
        return failing.to_go(support, _at(SET_LOAD_BALANCER_LOCAL, key))
    trace = SetEntry(set_name(SET_NODE_PORT_IPS, family_of(key.address)), key.address)
    every, local = _at_node_port(key)
    if wanted((support, trace)) is None or wanted((support, every)) is None:
        return False
    return failing.to_come(support, trace) or failing.to_come(support, every) or failing.to_go(support, local)


def _at(base: str, key: VirtualServerKey) -> SetEntry:
    return SetEntry(set_name(base, family_of(key.address)), key.address, key.protocol, key.port)


def _at_node_port(key: VirtualServerKey) -> Iterator[SetEntry]:
    """What masquerades a node port of every policy, and what exempts one of policy Local."""
    bases = SETS_NODE_PORT[key.protocol]
    if key.protocol is Protocol.SCTP:
        return (_at(base, key) for base in bases)
    return (SetEntry(set_name(base, family_of(key.address)), port=key.port) for base in bases)
