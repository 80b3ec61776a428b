"""Real servers of one virtual server as one sorted `bytes`: 9 or 21 bytes each instead of an object of 120.

A record is address (4 or 16), port (2), weight (2), forwarding method (1), all in network order, so a sorted blob is
sorted by address, then port. Equal blobs mean equal servers: the common diff is one comparison.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import ForwardingMethod
from ipvsproxy.model.kernel_objects import Kind, Operation, RealServer

_TAIL = struct.Struct("!HHB")
_SETTINGS = struct.Struct("!HB")  # the end of the tail
_WIRE_FIELDS = {size + _TAIL.size: struct.Struct(f"!{size}s2sHB") for size in (4, 16)}
_MAX_WEIGHT = 0xFFFF
_NO_WEIGHT = bytes(2)
_METHOD_BYTES = 1


def pack(server: RealServer) -> bytes:
    """The record of one real server. A weight beyond 65535 (only foreign ones have it) is stored as 65535."""
    return server.address + _TAIL.pack(server.port, min(server.weight, _MAX_WEIGHT), server.method)


def unpack(record: bytes) -> RealServer:
    """The public form of one record."""
    size = len(record) - _TAIL.size
    port, weight, method = _TAIL.unpack_from(record, size)
    return RealServer(PackedAddr(record[:size]), port, weight, ForwardingMethod(method))


def wire_fields(record: bytes) -> tuple[bytes, bytes, int, int]:
    """Address and port in network order, weight, forwarding method: what a message holds, without an object between."""
    return _WIRE_FIELDS[len(record)].unpack(record)


def from_wire(address: bytes, port: bytes, weight: int, method: int) -> bytes:
    """The record of what a message holds, as `pack` makes it."""
    return address + port + _SETTINGS.pack(min(weight, _MAX_WEIGHT), method)


def join(records: Iterable[bytes]) -> bytes:
    """The blob of these records, each key at most once."""
    return b"".join(sorted(records))


def split(blob: bytes, address_len: int) -> list[bytes]:
    """The records of a blob whose addresses have `address_len` bytes."""
    size = address_len + _TAIL.size
    return [blob[at : at + size] for at in range(0, len(blob), size)]


def identity(record: bytes) -> bytes:
    """Address and port: what makes two records the same real server."""
    return record[: -_SETTINGS.size]


def drained(record: bytes) -> bytes:
    """The same real server at weight 0, which gets no new connection and keeps those it has."""
    return record[: -_SETTINGS.size] + _NO_WEIGHT + record[-_METHOD_BYTES:]


def is_drained(record: bytes) -> bool:
    """Whether a real server has weight 0."""
    return record[-_SETTINGS.size : -_METHOD_BYTES] == _NO_WEIGHT


def describe(operation: Operation) -> str:
    """The operation in words, a real server's with its address and port."""
    if operation.kind is Kind.REAL_SERVER and isinstance(operation.settings, bytes):
        return f"{operation.verb} real server {unpack(operation.settings)} of {operation.key!s}"
    return str(operation)
