"""Reading the kernel's IPVS answers: the wanted attributes of each message, at a third of the cost of a walk.

All messages of one kind and shape have the same length and attribute order on one kernel, and two thirds of each are
statistics that nobody asked for. So the first of a shape is walked attribute by attribute, which gives its layout:

    message   generic header | SERVICE header | AF header | AF | PROTOCOL header | PROTOCOL | …
    mask      ff             | ff             | ff        | 00 | ff              | 00       | …
    values    (skip)         | (skip)         | (skip)    | H  | (skip)          | H        | …

Each next one of that length is read by `values` if all but the attributes' values is the same; otherwise it is walked
in its turn. Attributes that this program does not know, or that the kernel does not send, do no harm.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from socket import ntohs
from sys import byteorder
from typing import Any, NamedTuple

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.gnlpy_compat import (
    TUNNEL_FLAGS,
    TUNNEL_PORT,
    TUNNEL_TYPE,
    AttrListPacker,
    CtrlAttrList,
    IpvsCmdAttrList,
    IpvsDestAttrList,
    IpvsInfoAttrList,
    IpvsServiceAttrList,
    attribute_number,
)
from ipvsproxy.kernel.netlink import attributes, read_attributes
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer

_GENL_HEADER_BYTES = 4
_FAMILIES = frozenset(Family)
_UNION_BYTES = 16  # union nf_inet_addr: an address is padded to this
_METHODS = 3  # IP_VS_CONN_F_FWD_MASK without BYPASS, which no real server has


class Wanted(NamedTuple):
    """An attribute to read: its number, its `struct` code ("s" takes the whole value), the value where it is absent."""

    number: int
    code: str
    default: int | bytes


class _Layout(NamedTuple):
    mask: int
    headers: int
    values: struct.Struct
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]


class AttributeReader:
    """Reads some of the attributes inside the attribute `outer` of a generic netlink message."""

    def __init__(self, outer: int, wanted: Sequence[Wanted]) -> None:
        self._outer = outer
        self._wanted = {attribute.number: (index, attribute.code) for index, attribute in enumerate(wanted)}
        self._defaults = tuple(attribute.default for attribute in wanted)
        self._layouts: dict[int, _Layout] = {}

    def read(self, body: bytes) -> tuple[Any, ...]:
        """The wanted attributes' values, in the order in which they were given."""
        layout = self._layouts.get(len(body))
        if layout is None or int.from_bytes(body) & layout.mask != layout.headers:
            layout = self._layouts[len(body)] = self._learn(body)
        return layout.pick(layout.values.unpack(body) + self._defaults)

    def _learn(self, body: bytes) -> _Layout:
        mask = bytearray(b"\xff" * len(body))
        codes, end_of_codes = "=", 0
        found: dict[int, int] = {}
        for number, start, end in self._walk(body):
            mask[start:end] = bytes(end - start)
            index, code = self._wanted.get(number, (-1, ""))
            code = f"{end - start}s" if code == "s" else code
            if code and index not in found and struct.calcsize(f"={code}") == end - start:
                found[index] = len(found)
                codes, end_of_codes = f"{codes}{start - end_of_codes}x{code}", end
        values = struct.Struct(f"{codes}{len(body) - end_of_codes}x")
        picked = [found.get(index, len(found) + index) for index in range(len(self._defaults))]
        bits = int.from_bytes(mask)
        return _Layout(bits, int.from_bytes(body) & bits, values, itemgetter(*picked))

    def _walk(self, body: bytes) -> Iterator[tuple[int, int, int]]:
        """Number, start and end of each attribute inside the outer one; those beside that have the number -1."""
        for number, start, end in attributes(body, _GENL_HEADER_BYTES, len(body)):
            if number == self._outer:
                yield from attributes(body, start, end)
            else:
                yield -1, start, end


def _numbered(table: type[AttrListPacker], *wanted: tuple[str, str, int | bytes]) -> list[Wanted]:
    """The attributes that gnlpy's table calls by these names."""
    return [Wanted(attribute_number(table, name), code, default) for name, code, default in wanted]


# What these learn depends on the running kernel only, and a process meets one.
_SERVICES = AttributeReader(
    attribute_number(IpvsCmdAttrList, "SERVICE"),
    _numbered(
        IpvsServiceAttrList,
        ("AF", "H", 0),
        ("PROTOCOL", "H", 0),
        ("ADDR", "16s", bytes(_UNION_BYTES)),
        ("PORT", "H", 0),
        ("FWMARK", "I", 0),
        ("SCHED_NAME", "s", b""),
        ("FLAGS", "I4x", 0),  # and a mask
        ("TIMEOUT", "I", 0),
        ("NETMASK", "4s", bytes(4)),
        ("PE_NAME", "s", b""),
    ),
)
_DESTS = AttributeReader(
    attribute_number(IpvsCmdAttrList, "DEST"),
    [
        *_numbered(
            IpvsDestAttrList,
            ("ADDR_FAMILY", "H", 0),  # kernels before 3.18 send none: it is the virtual server's
            ("ADDR", "16s", bytes(_UNION_BYTES)),
            ("PORT", "H", 0),
            ("FWD_METHOD", "I", 0),
            ("WEIGHT", "i", 1),
            ("U_THRESH", "I", 0),
            ("L_THRESH", "I", 0),
            ("ACTIVE_CONNS", "I", 0),
            ("INACT_CONNS", "I", 0),
            ("PERSIST_CONNS", "I", 0),
        ),
        Wanted(TUNNEL_TYPE, "B", 0),
        Wanted(TUNNEL_PORT, "H", 0),
        Wanted(TUNNEL_FLAGS, "H", 0),
    ],
)
# The same message, as far as a record of model/real_servers.py goes: a third of the work.
_RECORDS = AttributeReader(
    attribute_number(IpvsCmdAttrList, "DEST"),
    _numbered(
        IpvsDestAttrList,
        ("ADDR_FAMILY", "H", 0),
        ("ADDR", "16s", bytes(_UNION_BYTES)),
        ("PORT", "2s", bytes(2)),
        ("FWD_METHOD", "I", 0),
        ("WEIGHT", "i", 1),
    ),
)
# And what tells whether a real server is still in use.
_CONNECTIONS = AttributeReader(
    attribute_number(IpvsCmdAttrList, "DEST"),
    _numbered(
        IpvsDestAttrList,
        ("ADDR_FAMILY", "H", 0),
        ("ADDR", "16s", bytes(_UNION_BYTES)),
        ("PORT", "2s", bytes(2)),
        ("ACTIVE_CONNS", "I", 0),
        ("INACT_CONNS", "I", 0),
    ),
)


def decode_family_id(body: bytes) -> int:
    """The message type that the kernel has given to a generic netlink family. Raises KernelError without one."""
    return _number(body, CtrlAttrList, "FAMILY_ID", 2)


def decode_info(body: bytes) -> tuple[int, int]:
    """The version word and the size of the connection table. Raises KernelError where they are missing."""
    return _number(body, IpvsInfoAttrList, "VERSION", 4), _number(body, IpvsInfoAttrList, "CONN_TAB_SIZE", 4)


def decode_timeouts(body: bytes) -> tuple[int, int, int]:
    """The connection time-outs in seconds: TCP, TCP after a FIN, UDP. Raises KernelError where one is missing."""
    tcp, fin, udp = (_number(body, IpvsCmdAttrList, f"TIMEOUT_{name}", 4) for name in ("TCP", "TCP_FIN", "UDP"))
    return tcp, fin, udp


def decode_service(body: bytes) -> ObservedVirtualServer:
    """A virtual server, without its real servers. Raises KernelError for a family that is neither IPv4 nor IPv6."""
    family, protocol, address, port, fwmark, scheduler, flags, timeout, netmask, pe_name = _SERVICES.read(body)
    if family not in _FAMILIES:
        raise _not_understood(f"a virtual server of the address family {family}")
    return ObservedVirtualServer(
        family=Family(family),
        protocol=protocol,
        address=_unpad(address, family),
        port=ntohs(port),
        fwmark=fwmark,
        scheduler=_text(scheduler),
        flags=flags,
        timeout_s=timeout,
        netmask=netmask,
        pe_name=_text(pe_name),
    )


def decode_dest(body: bytes, family: Family) -> ObservedRealServer:
    """A real server of a virtual server of `family`."""
    own_family, address, port, method, weight, upper, lower, active, inactive, persistent, *tunnel = _DESTS.read(body)
    tun_type, tun_port, tun_flags = tunnel
    return ObservedRealServer(
        address=_unpad(address, own_family or family),
        port=ntohs(port),
        conn_flags=method,
        weight=weight,
        upper_threshold=upper,
        lower_threshold=lower,
        active=active,
        inactive=inactive,
        persistent=persistent,
        tun_type=tun_type,
        tun_port=ntohs(tun_port),
        tun_flags=tun_flags,
    )


def decode_record(body: bytes, family: Family) -> bytes | None:
    """The packed record of a real server of a virtual server of `family`; None for one of the other family."""
    own_family, address, port, method, weight = _RECORDS.read(body)
    if own_family not in {family, 0}:
        return None
    return real_servers.from_wire(_unpad(address, family), port, max(weight, 0), method & _METHODS)


def decode_connections(body: bytes, family: Family) -> tuple[bytes, int] | None:
    """A real server's identity and its connections, active and inactive; None for one of the other family."""
    own_family, address, port, active, inactive = _CONNECTIONS.read(body)
    if own_family not in {family, 0}:
        return None
    return _unpad(address, family) + port, active + inactive


def _number(body: bytes, table: type[AttrListPacker], name: str, size: int) -> int:
    found = read_attributes(body, _GENL_HEADER_BYTES).get(attribute_number(table, name))
    if found is None:
        raise _not_understood(f"an answer without {name}")
    if len(found) != size:
        raise _not_understood(f"{name} of {len(found)} bytes")
    return int.from_bytes(found, byteorder)


def _not_understood(why: str) -> KernelError:
    return KernelError("cannot understand the kernel's IPVS", errno.EBADMSG, why=why)


def _unpad(address: bytes, family: int) -> PackedAddr:
    return PackedAddr(address[:4] if family == Family.IPV4 else address)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("ascii", "replace")
