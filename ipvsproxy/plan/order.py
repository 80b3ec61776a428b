"""The order of kernel changes: one table for syncs, removals and clean-up.

What is new comes first and is built from the inside out, so that an address is bound when all behind it stands; what
goes comes after and is taken from the outside in. Between two messages no bound (address, port) is ever let through the
filter without a virtual server, or host ports would show (K31) and steady UDP senders be lost for good; and what is
served before and after a sync is served all the time (K34). Who may come in and who is masqueraded changes before or
after the real servers do (changeover.py). An address that an interface of the node gets leaves kube-ipvs0 before all
that, and follows the order of such addresses from then. Removal keeps the address until its virtual server is gone, so
that open streams hear a reset and not silence. Whether an object may go yet at all, or drains first, is said elsewhere
(sync/lingering.py): here it is wanted until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import TypeAlias, cast

from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Key,
    Kind,
    ObjectId,
    Operation,
    RuleTable,
    SetEntry,
    Settings,
    State,
    Verb,
    VirtualServerKey,
)
from ipvsproxy.model.names import (
    DUMMY_DEVICE,
    SET_CLUSTER_IP,
    SET_EXTERNAL_IP,
    SET_EXTERNAL_IP_LOCAL,
    SET_IPVS_IPS,
    SET_LOAD_BALANCER,
    set_name,
)
from ipvsproxy.plan.changeover import changeover

_PHASES: tuple[tuple[Kind, Verb], ...] = (
    (Kind.SYSCTL, Verb.ADD),
    (Kind.SYSCTL, Verb.EDIT),
    (Kind.SET, Verb.ADD),
    (Kind.SET, Verb.EDIT),
    (Kind.SUPPORT_ENTRY, Verb.ADD),  # before the rules, which may ask for what a kube-proxy's do not (takeover)
    (Kind.RULES, Verb.ADD),  # filter before nat: restrict, then translate (RuleTable sorts so)
    (Kind.RULES, Verb.EDIT),
    (Kind.LINK, Verb.ADD),
    (Kind.LINK, Verb.EDIT),
    (Kind.GUARD_ENTRY, Verb.ADD),  # after the source ranges that it leaves open, before what it guards (K36)
    (Kind.VIRTUAL_SERVER, Verb.EDIT),
    (Kind.VIRTUAL_SERVER, Verb.ADD),
    (Kind.REAL_SERVER, Verb.EDIT),  # back to weight 1 when an endpoint returns; weight 0 takes away, see `ordered`
    (Kind.REAL_SERVER, Verb.ADD),
    (Kind.ACCEPT_ENTRY, Verb.ADD),
    (Kind.BOUND_ENTRY, Verb.ADD),
    (Kind.ADDRESS, Verb.ADD),
    # All that is new serves from here on.
    (Kind.REAL_SERVER, Verb.DELETE),
    (Kind.ACCEPT_ENTRY, Verb.DELETE),
    (Kind.VIRTUAL_SERVER, Verb.DELETE),
    (Kind.ADDRESS, Verb.DELETE),
    (Kind.BOUND_ENTRY, Verb.DELETE),
    (Kind.GUARD_ENTRY, Verb.DELETE),
    (Kind.SUPPORT_ENTRY, Verb.DELETE),
    (Kind.LINK, Verb.DELETE),
    (Kind.RULES, Verb.DELETE),
    (Kind.SET, Verb.DELETE),
)
PHASE = {row: number for number, row in enumerate(_PHASES)}
_ORPHANS = -1.0  # accept entries that nobody comes in by go first: an address bound before they go shows host ports
_AFTER, _BEFORE = 0.5, -0.5
# Before any accept entry comes, which an interface's address may have without a virtual server.
_GOING_OVER = {
    kind: PHASE[Kind.SUPPORT_ENTRY, Verb.ADD] + number / 10
    for number, kind in enumerate((Kind.VIRTUAL_SERVER, Kind.ADDRESS, Kind.BOUND_ENTRY), 1)
}
_BEFORE_SERVERS = PHASE[Kind.GUARD_ENTRY, Verb.ADD] + _AFTER
_AFTER_SERVERS = PHASE[Kind.REAL_SERVER, Verb.DELETE] + _AFTER
_ACCEPTED_ALREADY = PHASE[Kind.REAL_SERVER, Verb.EDIT] + _BEFORE  # what masquerades must not come after who needs it
_ACCEPT_SETS = {
    family: tuple(
        set_name(base, family) for base in (SET_CLUSTER_IP, SET_EXTERNAL_IP, SET_EXTERNAL_IP_LOCAL, SET_LOAD_BALANCER)
    )
    for family in Family
}
_EXTERNAL_IP = frozenset(set_name(SET_EXTERNAL_IP, family) for family in Family)

IsBound: TypeAlias = Callable[[bytes], bool]
Guards: TypeAlias = Callable[[VirtualServerKey], tuple[ObjectId, ...]]


def ordered(
    operations: Iterable[Operation], applied: State, is_bound: IsBound, interfaces: Collection[PackedAddr] = ()
) -> Iterator[list[Operation]]:
    """The operations phase by phase; each list is of one kind and verb.

    `applied` is what stands before the first; `is_bound` tells which addresses are, or shall be, on kube-ipvs0;
    `interfaces`: the addresses that other interfaces of the node have.
    """
    operations = list(operations)
    phase = _Phases(operations, applied, is_bound, interfaces).of
    phases: dict[tuple[float, Kind], list[Operation]] = {}
    for operation in operations:
        phases.setdefault((phase(operation), operation.kind), []).append(operation)
    for _, together in sorted(phases.items()):
        if together[0].kind is Kind.RULES:
            together.sort(key=lambda operation: (operation.key, operation.verb))
        elif (together[0].kind, together[0].verb) == (Kind.ACCEPT_ENTRY, Verb.DELETE):
            together.sort(key=_is_never_excepted)
        yield together


def _is_never_excepted(operation: Operation) -> bool:
    """Whether an entry has clients masqueraded whatever exception stands: it goes after the others of its frontend."""
    return isinstance(operation.key, SetEntry) and operation.key.set_name in _EXTERNAL_IP


class _Phases:
    """The phase of each of some operations: by the table, or out of its turn."""

    def __init__(
        self, operations: list[Operation], applied: State, is_bound: IsBound, interfaces: Collection[PackedAddr]
    ) -> None:
        self._applied = applied
        self._is_bound = is_bound
        self._gone = _deleted(operations, Kind.VIRTUAL_SERVER)
        self._before, self._after = changeover(operations, applied)
        # Addresses that go over from kube-ipvs0 to an interface do so first of all, and are the interface's from then.
        closed = {entry.address for entry in _deleted(operations, Kind.BOUND_ENTRY) if isinstance(entry, SetEntry)}
        self._going_over = (_deleted(operations, Kind.ADDRESS) | closed).intersection(interfaces)

    def of(self, operation: Operation) -> float:
        kind, verb, key = operation.kind, operation.verb, operation.key
        if kind is Kind.REAL_SERVER and only_leaves(operation):
            return PHASE[Kind.REAL_SERVER, Verb.DELETE] + _BEFORE  # when the new ones serve
        if self._going_over and verb is Verb.DELETE and self._goes_over(kind, key):
            return _GOING_OVER[kind]
        return self._of_entry(operation, key) if isinstance(key, SetEntry) else PHASE[kind, verb]

    def _goes_over(self, kind: Kind, key: Key) -> bool:
        """Whether it is such an address, what closes it, or what nobody comes in to there and must not begin to."""
        match kind, key:
            case Kind.ADDRESS, _:
                return key in self._going_over
            case Kind.BOUND_ENTRY, SetEntry(address=address):
                return address in self._going_over
            case Kind.VIRTUAL_SERVER, VirtualServerKey(address=address):
                return address in self._going_over and not is_open(key, self._applied)
            case _:
                return False

    def _of_entry(self, operation: Operation, entry: SetEntry) -> float:
        kind, verb = operation.kind, operation.verb
        if (verb, entry) in self._before:
            return _BEFORE_SERVERS
        if (verb, entry) in self._after:
            return _AFTER_SERVERS
        if kind is not Kind.ACCEPT_ENTRY:
            return PHASE[kind, verb]
        if entry.address in self._going_over or not self._is_bound(entry.address):
            # The filter does not look at it, it only says what to masquerade; and it is the only trace by which a
            # virtual server on one of the node's own addresses is known as ours, so it comes first and goes last.
            return PHASE[Kind.SUPPORT_ENTRY, verb] + _AFTER
        return self._of_opening(entry) if verb is Verb.ADD else self._of_closing(entry)

    def _of_opening(self, entry: SetEntry) -> float:
        """When an accept entry of an address on kube-ipvs0 comes."""
        key, applied = accepted_by(entry), self._applied
        if key in applied[Kind.VIRTUAL_SERVER]:
            if is_open(key, applied):
                return _ACCEPTED_ALREADY
            if bound_entry(key.address)[1] in applied[Kind.BOUND_ENTRY]:
                return _AFTER_SERVERS  # it is closed: clients shall meet nobody who is to leave
        return PHASE[Kind.ACCEPT_ENTRY, Verb.ADD]

    def _of_closing(self, entry: SetEntry) -> float:
        is_orphan = _is_orphan(entry, self._applied, self._gone)
        return _ORPHANS if is_orphan else PHASE[Kind.ACCEPT_ENTRY, Verb.DELETE]


def _deleted(operations: Iterable[Operation], kind: Kind) -> set[Key]:
    return {each.key for each in operations if each.kind is kind and each.verb is Verb.DELETE}


def _is_orphan(entry: SetEntry, applied: State, gone: Container[Key]) -> bool:
    """Whether nobody comes in by an accept entry, nor will when its address is bound.

    A virtual server that goes does not count where its address is not bound: a dump may have missed it, and it is only
    believed to be there so that it is deleted (sync/mirror.py). One that stays may have served at that very address
    until an interface lost it, with endpoints that need the masquerading by this entry (K24).
    """
    server = accepted_by(entry)
    return server not in applied[Kind.VIRTUAL_SERVER] or (server in gone and entry.address not in applied[Kind.ADDRESS])


def is_open(key: VirtualServerKey, applied: State) -> bool:
    """Whether some accept entry lets clients in to a frontend."""
    return any(entry in applied[Kind.ACCEPT_ENTRY] for entry in accept_entries(key))


def accept_entries(key: VirtualServerKey) -> list[SetEntry]:
    """The entries by any of which clients come in to a frontend on kube-ipvs0."""
    names = _ACCEPT_SETS[family_of(PackedAddr(key.address))]
    return [SetEntry(name, key.address, key.protocol, key.port) for name in names]


def only_leaves(operation: Operation) -> bool:
    """Whether an operation on a real server takes its weight away."""
    record = operation.settings
    return operation.verb is Verb.EDIT and isinstance(record, bytes) and real_servers.is_drained(record)


def leaves(operation: Operation) -> bool:
    """Whether an operation on a real server takes it away, or its weight."""
    return operation.verb is Verb.DELETE or only_leaves(operation)


def must_stand(operation: Operation, is_bound: IsBound, guards: Guards) -> tuple[ObjectId, ...]:
    """Objects without which an operation that adds must not be sent, since it would open what should be closed.

    `guards`: the guard entries that are wanted for a virtual server. Its real servers wait for them, not it: empty, it
    refuses everybody, and a guard may become necessary while it stands.
    """
    if operation.verb is Verb.DELETE:
        return ()
    match operation.kind, operation.key:
        case Kind.REAL_SERVER, VirtualServerKey() as key:
            server = (Kind.VIRTUAL_SERVER, key)
            return (server,) if only_leaves(operation) else (server, *guards(key))
        case Kind.VIRTUAL_SERVER, VirtualServerKey(address=address) if operation.verb is Verb.ADD:
            # On one of the node's own addresses it serves at once, and its traffic must be masqueraded.
            return () if is_bound(address) else ((Kind.RULES, RuleTable("nat", family_of(address))),)
        case kind, SetEntry() as entry:
            opens = kind is Kind.ACCEPT_ENTRY and is_bound(entry.address)
            return ((Kind.SET, entry.set_name), *(((Kind.VIRTUAL_SERVER, accepted_by(entry)),) if opens else ()))
        case Kind.ADDRESS, bytes() as address:
            return _under_an_address(PackedAddr(address))
        case _:
            return ()


def _under_an_address(address: PackedAddr) -> tuple[ObjectId, ...]:
    family = family_of(address)
    return (
        (Kind.LINK, DUMMY_DEVICE),
        (Kind.RULES, RuleTable("filter", family)),
        (Kind.RULES, RuleTable("mangle", family)),
        (Kind.RULES, RuleTable("nat", family)),
        bound_entry(address),
    )


def bound_entry(address: PackedAddr) -> ObjectId:
    """The set entry that closes every port of an address on kube-ipvs0 but those of Services."""
    return Kind.BOUND_ENTRY, SetEntry(set_name(SET_IPVS_IPS, family_of(address)), address)


def must_be_gone(operation: Operation, is_bound: IsBound) -> tuple[ObjectId, ...]:
    """Objects that must have left before an operation that deletes may be sent: the outside goes first."""
    key = operation.key
    if operation.verb is not Verb.DELETE:
        return ()
    if operation.kind is Kind.VIRTUAL_SERVER and isinstance(key, VirtualServerKey) and is_bound(key.address):
        return tuple((Kind.ACCEPT_ENTRY, entry) for entry in accept_entries(key))
    if operation.kind is Kind.BOUND_ENTRY and isinstance(key, SetEntry):
        return ((Kind.ADDRESS, PackedAddr(key.address)),)
    return ()


def still_guards(operation: Operation, wanted: Callable[[ObjectId], Settings | None], applied: State) -> bool:
    """Whether an operation takes a guard entry away from real servers that still serve and are not wanted to."""
    entry = operation.key
    if operation.kind is not Kind.GUARD_ENTRY or operation.verb is not Verb.DELETE or not isinstance(entry, SetEntry):
        return False
    return is_to_leave(accepted_by(entry), wanted, applied)


def is_to_leave(key: VirtualServerKey, wanted: Callable[[ObjectId], Settings | None], applied: State) -> bool:
    """Whether a real server serves that is not wanted to."""
    return bool(serving(key, applied[Kind.REAL_SERVER].get(key)) - serving(key, wanted((Kind.REAL_SERVER, key))))


def still_opens(operation: Operation, wanted: Callable[[ObjectId], Settings | None], applied: State) -> bool:
    """Whether an operation takes an accept entry away from a frontend that no wanted one opens yet, and one should."""
    entry = operation.key
    if operation.kind is not Kind.ACCEPT_ENTRY or operation.verb is not Verb.DELETE or not isinstance(entry, SetEntry):
        return False
    key = accepted_by(entry)
    if key not in applied[Kind.VIRTUAL_SERVER]:
        return False
    instead = [each for each in accept_entries(key) if wanted((Kind.ACCEPT_ENTRY, each)) is not None]
    return bool(instead) and not any(each in applied[Kind.ACCEPT_ENTRY] for each in instead)


def serving(key: VirtualServerKey, settings: Settings | None) -> frozenset[bytes]:
    """The records of those of a virtual server's real servers that get new connections."""
    records = real_servers.split(settings, len(key.address)) if isinstance(settings, bytes) else ()
    return frozenset(record for record in records if not real_servers.is_drained(record))


def accepted_by(entry: SetEntry) -> VirtualServerKey:
    """The virtual server behind an accept entry. Others may have put any protocol there: its number stands for it."""
    return VirtualServerKey(cast("Protocol", entry.protocol), PackedAddr(entry.address), entry.port)
