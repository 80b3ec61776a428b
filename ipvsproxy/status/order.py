"""ipvsadm's order of virtual servers and of real servers.

ipvsadm compares field by field, each time by the difference of two unsigned 32-bit numbers read as a signed one:
10.0.0.1 comes after 192.168.0.1, since 10 - 192 wraps to a positive number. Over addresses more than 2^31 apart that
relation is not transitive, so the result hangs on the sort algorithm and on the order that the kernel handed out.
glibc's qsort (2.36) is a top-down merge sort, repeated here. Where no two values of a field are that far apart the
relation is a plain order, and Python's own stable sort gives the same result much faster.
Source: ipvsadm 1.31, libipvs.c: ipvs_cmp_services, ipvs_cmp_dests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias, TypeVar

from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer

T = TypeVar("T")
_Words: TypeAlias = tuple[int, ...]
_Keyed: TypeAlias = tuple[_Words, T]
_StaysBefore: TypeAlias = Callable[[_Words, _Words], bool]

_SIGN_BIT = 0x8000_0000
_IPV4_BYTES = 4
_BY_ADDRESS = attrgetter("address", "port")


def sort_virtual_servers(servers: Sequence[ObservedVirtualServer]) -> list[ObservedVirtualServer]:
    """By firewall mark, family, protocol, address, port. `servers` in kernel order, which breaks ties."""
    return _sort([(_virtual_server_words(server), server) for server in servers], _stays_before)


def sort_real_servers(servers: Sequence[ObservedRealServer]) -> list[ObservedRealServer]:
    """By address, then port. `servers` in kernel order, which breaks ties."""
    if len(servers) > 1 and all(len(server.address) == _IPV4_BYTES for server in servers):
        # Most lists are of this kind, and there are thousands: one comparison tells that the order is plain.
        ordered = sorted(servers, key=_BY_ADDRESS)
        if int.from_bytes(ordered[-1].address) - int.from_bytes(ordered[0].address) < _SIGN_BIT:
            return ordered
    return _sort([(_real_server_words(server), server) for server in servers], _real_server_stays_before)


def _virtual_server_words(server: ObservedVirtualServer) -> _Words:
    return (server.fwmark, server.family, server.protocol, *_address_words(server.address), server.port)


def _real_server_words(server: ObservedRealServer) -> _Words:
    return (*_address_words(server.address), server.port)


def _address_words(address: bytes) -> _Words:
    words: _Words = struct.unpack(f"!{len(address) // 4}I", address)
    return words


def _stays_before(left: _Words, right: _Words) -> bool:
    """Whether `left` may stay before `right`: the first difference, read as signed, is negative or none."""
    for one, other in zip(left, right, strict=False):  # lengths differ only behind differing families
        if one != other:
            return bool((one - other) & _SIGN_BIT)
    return True


def _real_server_stays_before(left: _Words, right: _Words) -> bool:
    """The same for real servers, whose families may differ: the left one's says how many words of an address count."""
    if len(left) < len(right):
        right = (right[0], right[-1])
    elif len(left) > len(right):
        right = (right[0], 0, 0, 0, right[-1])
    return _stays_before(left, right)


def _sort(items: list[_Keyed[T]], stays_before: _StaysBefore) -> list[T]:
    ordered = sorted(items, key=_words_of) if _is_plain_order(items) else _merge_sort(items, stays_before)
    return [item for _, item in ordered]


def _words_of(keyed: _Keyed[T]) -> _Words:
    return keyed[0]


def _is_plain_order(items: list[_Keyed[T]]) -> bool:
    """Whether all keys have one form and no field holds two values so far apart that their difference wraps."""
    if len({len(words) for words, _ in items}) > 1:
        return False
    return all(max(field) - min(field) < _SIGN_BIT for field in zip(*(words for words, _ in items), strict=True))


def _merge_sort(items: list[_Keyed[T]], stays_before: _StaysBefore) -> list[_Keyed[T]]:
    middle = len(items) // 2
    if not middle:
        return items
    return _merge(_merge_sort(items[:middle], stays_before), _merge_sort(items[middle:], stays_before), stays_before)


def _merge(left: list[_Keyed[T]], right: list[_Keyed[T]], stays_before: _StaysBefore) -> list[_Keyed[T]]:
    merged: list[_Keyed[T]] = []
    at, to = 0, 0
    while at < len(left) and to < len(right):
        if stays_before(left[at][0], right[to][0]):
            merged.append(left[at])
            at += 1
        else:
            merged.append(right[to])
            to += 1
    return merged + left[at:] + right[to:]
