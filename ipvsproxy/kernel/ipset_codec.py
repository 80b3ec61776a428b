"""Our ipsets' messages: what an entry, a set and their listing look like in bytes. Pure; see ipsets.py for their use.

Sets are created with the lowest revision that can hold our entries, since an older `ipset` program on the node
refuses to list anything once it meets a revision that it does not know.
Source: include/uapi/linux/netfilter/ipset/ip_set.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple

from ipvsproxy.kernel.netlink import ATTRIBUTE, NLA_F_NESTED, attribute, attributes, read_attributes
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Operation, SetEntry, SetSpec, Verb

_SUBSYSTEM: Final = 6 << 8  # NFNL_SUBSYS_IPSET
CREATE, DESTROY, RENAME, SWAP, LIST, ADD, DEL, TYPE = (_SUBSYSTEM | command for command in (2, 3, 5, 6, 7, 9, 10, 13))
HEADER: Final = struct.pack("=BBH", Family.IPV4, 0, 0)  # struct nfgenmsg; ipset does not look at its family

_NETWORK_ORDER: Final = 0x4000
_PROTOCOL, _SET_NAME, TYPE_NAME, REVISION, FAMILY, _DATA, _ADT, _LINE, REVISION_MIN = 1, 2, 3, 4, 5, 7, 8, 9, 10
_IP, _PORT, _PORT_TO, _PROTO, _HASH_SIZE, _MAX_ELEMENTS, _IP2, _CIDR2 = 1, 4, 5, 7, 18, 19, 20, 21
_HARMLESS: Final = {24, 25, 26}  # counters and comments, in sets that somebody has made with them
_ADDRESS: Final = {4: 1, 16: 2}  # IPSET_ATTR_IPADDR_IPV4, _IPV6 by length in bytes

_FAMILIES: Final = frozenset(Family)
_PACKED: Final = frozenset(ATTRIBUTE.size + size for size in _ADDRESS)  # an address, nested in an attribute
_SIZES: Final = {_IP: _PACKED, _PORT: {2}, _PROTO: {1}, _IP2: _PACKED, _CIDR2: {1}}

_PORT_NUMBER = struct.Struct(">H")
_COUNT = struct.Struct(">I")

MAX_ELEMENTS: Final = 65536
_MESSAGE_ENTRIES = 800  # of 76 bytes at most: the nest's length has 16 bits
# The first revision that knows SCTP, where the entry has a protocol.
REVISIONS: Final = {"hash:ip": 0, "hash:ip,port": 1, "hash:ip,port,ip": 1, "hash:ip,port,net": 1, "bitmap:port": 0}


START: Final = HEADER + attribute(_PROTOCOL, b"\x06")  # protocol 6: all kernels since 3.1, and 7 adds nothing we use


def named(set_name: str) -> bytes:
    """The start of every message about one set."""
    return START + attribute(_SET_NAME, set_name.encode() + b"\0")


def two_named(set_name: str, other: str) -> bytes:
    """The body of a SWAP or RENAME message."""
    return named(set_name) + attribute(TYPE_NAME, other.encode() + b"\0")


def _address(number: int, packed: bytes) -> bytes:
    return attribute(number | NLA_F_NESTED, attribute(_ADDRESS[len(packed)] | _NETWORK_ORDER, packed))


def encode_entry(entry: SetEntry) -> bytes:
    """The DATA attribute of an entry: just the fields that it has."""
    parts = [_address(_IP, entry.address)] if entry.address else []
    if entry.protocol or not entry.address:
        parts.append(attribute(_PORT | _NETWORK_ORDER, _PORT_NUMBER.pack(entry.port)))
    if entry.protocol:
        parts.append(attribute(_PROTO | _NETWORK_ORDER, bytes([entry.protocol])))
    if entry.second:
        if entry.prefix_len:
            parts.append(attribute(_CIDR2 | _NETWORK_ORDER, bytes([entry.prefix_len])))
        parts.append(_address(_IP2, entry.second))
    return attribute(_DATA | NLA_F_NESTED, b"".join(parts))


def encode_create(name: str, spec: SetSpec, revision: int, max_elements: int = MAX_ELEMENTS) -> bytes:
    """The body of a CREATE message, with the sizes that kube-proxy uses unless more are wanted."""
    if spec.family is None:
        options = (_PORT, _PORT_NUMBER.pack(0)), (_PORT_TO, _PORT_NUMBER.pack(0xFFFF))
    else:
        options = (_HASH_SIZE, _COUNT.pack(1024)), (_MAX_ELEMENTS, _COUNT.pack(max_elements))
    return (
        named(name)
        + attribute(TYPE_NAME, spec.type_name.encode() + b"\0")
        + attribute(REVISION, bytes([revision]))
        + attribute(FAMILY, bytes([spec.family or 0]))
        + attribute(
            _DATA | NLA_F_NESTED, b"".join(attribute(number | _NETWORK_ORDER, value) for number, value in options)
        )
    )


class Message(NamedTuple):
    """Entries of one set and verb that travel together; `positions` are those of their operations."""

    command: int
    set_name: str
    positions: tuple[int, ...]
    entries: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        """Behind the netlink header."""
        if len(self.entries) == 1:
            return named(self.set_name) + self.entries[0]
        return (
            named(self.set_name) + attribute(_LINE, bytes(4)) + attribute(_ADT | NLA_F_NESTED, b"".join(self.entries))
        )

    def one_by_one(self) -> list[Message]:
        """The same, each entry by itself."""
        return [self._replace(positions=(p,), entries=(e,)) for p, e in zip(self.positions, self.entries, strict=True)]


def messages_of(numbered: Iterable[tuple[int, Operation]]) -> Iterator[Message]:
    """The operations as messages, in order: one for each run of entries of one set and verb, more where it is long."""
    for (command, set_name), run in groupby(numbered, key=lambda item: _command_and_set(item[1])):
        while part := tuple(islice(run, _MESSAGE_ENTRIES)):
            positions, operations = zip(*part, strict=True)
            yield Message(command, set_name, positions, tuple(encode_entry(operation.key) for operation in operations))


def _command_and_set(operation: Operation) -> tuple[int, str]:
    assert isinstance(operation.key, SetEntry)  # noqa: S101 - grouped by the caller
    return DEL if operation.verb is Verb.DELETE else ADD, operation.key.set_name


def decode_set(name: str, messages: Sequence[bytes]) -> tuple[SetSpec, tuple[SetEntry, ...]]:
    """A set's real type and its entries. The first message of a dump has the type, each has some of the entries.

    The set may be somebody else's: what is not of our types and forms is passed over, and never an error.
    """
    first = read_attributes(messages[0], len(HEADER))
    type_name = first.get(TYPE_NAME, b"").rstrip(b"\0").decode("ascii", "replace")
    number = int.from_bytes(first.get(FAMILY, b""))
    family = Family(number) if number in _FAMILIES else None
    if type_name not in REVISIONS:
        return SetSpec(type_name, family), ()
    decoded = (entry for body in messages for entry in _decode_entries(name, body))
    return SetSpec(type_name, family), tuple(entry for entry in decoded if entry)


def decode_max_elements(messages: Sequence[bytes]) -> int:
    """How many entries a listed set can hold; 0 where it has no such limit."""
    data = read_attributes(messages[0], len(HEADER)).get(_DATA, b"")
    found = read_attributes(data, 0).get(_MAX_ELEMENTS, b"")
    return int.from_bytes(found) if len(found) == _COUNT.size else 0


def _decode_entries(name: str, body: bytes) -> Iterator[SetEntry | None]:
    for number, start, end in attributes(body, len(HEADER), len(body)):
        if number == _ADT:
            for _, data_start, data_end in attributes(body, start, end):
                yield _decode_entry(name, body, data_start, data_end)


def _decode_entry(name: str, body: bytes, start: int, end: int) -> SetEntry | None:
    """The entry, None where it has what ours never have and what matters (a `nomatch` flag, a time-out)."""
    found = {number: body[first:last] for number, first, last in attributes(body, start, end)}
    fields = found.keys() - _HARMLESS
    if not fields or any(len(found[field]) not in _SIZES.get(field, ()) for field in fields):
        return None
    return SetEntry(
        name,
        address=found.get(_IP, b"")[ATTRIBUTE.size :],
        protocol=found.get(_PROTO, b"\0")[0],
        port=_PORT_NUMBER.unpack(found.get(_PORT, b"\0\0"))[0],
        second=found.get(_IP2, b"")[ATTRIBUTE.size :],
        prefix_len=found.get(_CIDR2, b"\0")[0],
    )
