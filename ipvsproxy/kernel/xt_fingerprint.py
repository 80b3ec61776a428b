"""Tables of the legacy iptables as one value, without parsing them.

For a fingerprint, a hundredth of what reading the rules costs, the table is fetched as the kernel gives it to every
iptables program, and hashed without its counters: any change by anybody, to foreign rules too, makes another value;
then the rules are read. For a glance, which is taken each second, the kernel is asked how many entries there are, how
large they all are and where the built-in chains begin. That does not tell a rule that has changed its place, so of a
small table, where it costs little, the first rule of each built-in chain is looked at too: ours, if none has passed it.
Source: include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from sys import byteorder
from typing import Final, NamedTuple

from ipvsproxy.errors import KernelError
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import RuleTable

_SO_GET_INFO: Final = 64
_SO_GET_ENTRIES: Final = 65
_NAME_BYTES = 32
_INFO_BYTES = 84
_HOOKS_AT, _CHAINS_AT, _INFO_SIZE_AT = 32, 36, 80
_SMALL_BYTES = 65_536  # some hundred rules; the kernel gives all or nothing
_ENTRIES_AT = 40  # the table's name, its size, padding to eight bytes
_COUNTER_BYTES = 16
_NEXT = struct.Struct("=H")
_HOOKS, _CHAINS = struct.Struct("=I"), struct.Struct("=5I")
_NO_TABLE = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})


class Layout(NamedTuple):
    """Where an entry says how long it is and where it counts; the level of its socket options."""

    level: int
    next_at: int
    counters_at: int


LAYOUTS = {Family.IPV4: Layout(socket.IPPROTO_IP, 90, 96), Family.IPV6: Layout(socket.IPPROTO_IPV6, 142, 152)}


def table_fingerprint(key: RuleTable) -> bytes:
    """The value of one table, empty where this kernel has no such table. Raises KernelError."""
    try:
        with _raw(key.family) as raw:
            entries = _entries(raw, key, _info(raw, key))
    except OSError as error:
        if error.errno in _NO_TABLE:
            return b""
        raise KernelError(f"cannot read the {key}", error.errno or errno.EIO) from error
    return hashlib.blake2b(without_counters(entries, LAYOUTS[key.family]), digest_size=16).digest()


def tables_glance(keys: Iterable[RuleTable]) -> bytes:
    """What the kernel says of all these tables, with the first rules of small ones; nothing of those it lacks.

    Raises KernelError.
    """
    return b"".join(map(_glance, sorted(keys)))


def _glance(key: RuleTable) -> bytes:
    try:
        with _raw(key.family) as raw:
            info = _info(raw, key)
            if _size(info) > _SMALL_BYTES:
                return bytes(info)
            return bytes(info) + b"".join(first_rules(info, _entries(raw, key, info), LAYOUTS[key.family]))
    except OSError as error:
        if error.errno in _NO_TABLE:
            return b""
        raise KernelError(f"cannot look at the {key}", error.errno or errno.EIO) from error


def _raw(family: Family) -> socket.socket:
    return socket.socket(socket.AddressFamily(family), socket.SOCK_RAW, socket.IPPROTO_RAW)


def _info(raw: socket.socket, key: RuleTable) -> bytearray:
    """Its struct ipt_getinfo: name, hooks, where chains begin and end, number of entries, size."""
    info = bytearray(key.table.encode().ljust(_INFO_BYTES, b"\0"))
    _get_option(raw, LAYOUTS[key.family].level, _SO_GET_INFO, info)
    return info


def _size(info: bytearray) -> int:
    return int.from_bytes(info[_INFO_SIZE_AT:], byteorder)


def _entries(raw: socket.socket, key: RuleTable, info: bytearray) -> bytearray:
    """The entries of a table of this struct ipt_getinfo. EAGAIN: it is of another size by now."""
    size = _size(info)
    entries = bytearray(_ENTRIES_AT + size)
    entries[: _NAME_BYTES + 4] = info[:_NAME_BYTES] + size.to_bytes(4, byteorder)
    _get_option(raw, LAYOUTS[key.family].level, _SO_GET_ENTRIES, entries)
    return entries


def first_rules(info: bytearray, entries: bytearray, layout: Layout) -> Iterator[bytearray]:
    """The first entry of each built-in chain, its policy where it has no rule, without counters."""
    (hooks,) = _HOOKS.unpack_from(info, _HOOKS_AT)
    for hook, offset in enumerate(_CHAINS.unpack_from(info, _CHAINS_AT)):
        if hooks & 1 << hook:
            at = _ENTRIES_AT + offset
            (step,) = _NEXT.unpack_from(entries, at + layout.next_at)
            yield entries[at : at + layout.counters_at]
            yield entries[at + layout.counters_at + _COUNTER_BYTES : at + step]


def _get_option(raw: socket.socket, level: int, option: int, buffer: bytearray) -> None:
    """getsockopt(2) whose buffer carries the question, which Python's own cannot do. Raises OSError."""
    length = ctypes.c_uint32(len(buffer))
    place = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    if _c_library().getsockopt(raw.fileno(), level, option, place, ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def without_counters(entries: bytearray, layout: Layout) -> bytearray:
    """The table with each entry's counters set to zero, in place."""
    at = _ENTRIES_AT
    while at + layout.counters_at + _COUNTER_BYTES <= len(entries):
        counters = at + layout.counters_at
        entries[counters : counters + _COUNTER_BYTES] = bytes(_COUNTER_BYTES)
        (step,) = _NEXT.unpack_from(entries, at + layout.next_at)
        at += step or len(entries)
    return entries
