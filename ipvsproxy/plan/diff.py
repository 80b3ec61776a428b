"""Wanted minus applied, for the objects that a change touched: operations. Cost follows their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.kernel_objects import (
    Key,
    Kind,
    ObjectId,
    Operation,
    SetEntry,
    Settings,
    State,
    Verb,
    VirtualServerKey,
)
from ipvsproxy.plan.order import accepted_by


def diff(refs: Iterable[ObjectId], wanted: Callable[[ObjectId], Settings | None], applied: State) -> list[Operation]:
    """The operations that make `applied` into what `wanted` says, for these objects only."""
    operations: list[Operation] = []
    for ref in dict.fromkeys(refs):
        kind, key = ref
        want, have = wanted(ref), applied[kind].get(key)
        if want == have:
            if want is not None and _is_open(ref, wanted, applied):
                operations += (Operation(Verb.DELETE, kind, key), Operation(Verb.ADD, kind, key, want))
            continue
        if want is None and kind is Kind.SYSCTL:  # sysctls are the node's: set, never taken back
            continue
        if kind is Kind.REAL_SERVER and isinstance(key, VirtualServerKey):
            # Deleting a virtual server takes its real servers along: no message each.
            if wanted((Kind.VIRTUAL_SERVER, key)) is not None:
                operations.extend(_real_servers(key, _blob(want), _blob(have)))
        else:
            operations.append(_change(kind, key, want, have))
    return operations


def _is_open(ref: ObjectId, wanted: Callable[[ObjectId], Settings | None], applied: State) -> bool:
    """Whether it is an accept entry of an address that is or shall be bound, without its virtual server.

    It must go until that one stands. Not where an interface gets the address: it is that one's before all else.
    """
    kind, key = ref
    if kind is not Kind.ACCEPT_ENTRY or not isinstance(key, SetEntry):
        return False
    if accepted_by(key) in applied[Kind.VIRTUAL_SERVER]:
        return False
    return wanted((Kind.ADDRESS, PackedAddr(key.address))) is not None


def _change(kind: Kind, key: Key, want: Settings | None, have: Settings | None) -> Operation:
    if want is None:
        return Operation(Verb.DELETE, kind, key)
    return Operation(Verb.ADD if have is None else Verb.EDIT, kind, key, want)


def _blob(settings: Settings | None) -> bytes:
    return settings if isinstance(settings, bytes) else b""


def _real_servers(key: VirtualServerKey, want: bytes, have: bytes) -> Iterator[Operation]:
    size = len(key.address)
    if not have:
        yield from (Operation(Verb.ADD, Kind.REAL_SERVER, key, record) for record in real_servers.split(want, size))
        return
    wanted_records = set(real_servers.split(want, size))
    applied_records = set(real_servers.split(have, size))
    applied_ids = {real_servers.identity(record) for record in applied_records}
    wanted_ids = {real_servers.identity(record) for record in wanted_records}
    for record in sorted(wanted_records - applied_records):
        verb = Verb.EDIT if real_servers.identity(record) in applied_ids else Verb.ADD
        yield Operation(verb, Kind.REAL_SERVER, key, record)
    for record in sorted(applied_records - wanted_records):
        if real_servers.identity(record) not in wanted_ids:
            yield Operation(Verb.DELETE, Kind.REAL_SERVER, key, record)


def acknowledge(applied: State, operations: Iterable[Operation]) -> None:
    """Note in `applied` that the kernel has carried out these operations."""
    records: dict[Key, dict[bytes, bytes | None]] = {}
    for operation in operations:
        objects, key = applied[operation.kind], operation.key
        if operation.kind is Kind.REAL_SERVER:
            record = _blob(operation.settings)
            kept = None if operation.verb is Verb.DELETE else record
            records.setdefault(key, {})[real_servers.identity(record)] = kept
        elif operation.verb is Verb.DELETE:
            objects.pop(key, None)
            if operation.kind is Kind.VIRTUAL_SERVER:
                applied[Kind.REAL_SERVER].pop(key, None)
        else:
            objects[key] = operation.settings
            if operation.kind is Kind.VIRTUAL_SERVER and (
                operation.verb is Verb.ADD or key not in applied[Kind.REAL_SERVER]
            ):
                applied[Kind.REAL_SERVER][key] = b""
    for key, changed in records.items():
        if isinstance(key, VirtualServerKey):
            blob = _blob(applied[Kind.REAL_SERVER].get(key))
            applied[Kind.REAL_SERVER][key] = _with_records(blob, changed, len(key.address))


def _with_records(blob: bytes, changed: dict[bytes, bytes | None], address_len: int) -> bytes:
    """The blob after each changed record took the place of its namesake; None: it is gone."""
    records = {real_servers.identity(record): record for record in real_servers.split(blob, address_len)}
    after = {**records, **changed}
    return real_servers.join(record for record in after.values() if record is not None)
