"""Reading the kernel's IPVS answers: messages in, our own values out. How: see attribute_reader.py."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from itertools import repeat
from socket import ntohs
from sys import byteorder
from typing import Any

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.attribute_reader import GENL_HEADER_BYTES, AttributeReader, Wanted
from ipvsproxy.kernel.gnlpy_compat import (
    DAEMON_GROUP_IPV4,
    DAEMON_GROUP_IPV6,
    DAEMON_MAX_LENGTH,
    DAEMON_PORT,
    DAEMON_TTL,
    TUNNEL_FLAGS,
    TUNNEL_PORT,
    TUNNEL_TYPE,
    AttrListPacker,
    CtrlAttrList,
    IpvsCmdAttrList,
    IpvsDaemonAttrList,
    IpvsDestAttrList,
    IpvsInfoAttrList,
    IpvsServiceAttrList,
    attribute_number,
)
from ipvsproxy.kernel.netlink import read_attributes
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import (
    NO_STATISTICS,
    ObservedRealServer,
    ObservedVirtualServer,
    Statistics,
    SyncDaemon,
)

_FAMILIES = frozenset(Family)
_UNION_BYTES = 16  # union nf_inet_addr: an address is padded to this
_METHODS = 3  # IP_VS_CONN_F_FWD_MASK without BYPASS, which no real server has


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
_DAEMONS = AttributeReader(
    attribute_number(IpvsCmdAttrList, "DAEMON"),
    [
        *_numbered(IpvsDaemonAttrList, ("STATE", "I", 0), ("MCAST_IFN", "s", b""), ("SYNC_ID", "I", 0)),
        Wanted(DAEMON_MAX_LENGTH, "H", 0),
        Wanted(DAEMON_GROUP_IPV4, "4s", b""),
        Wanted(DAEMON_GROUP_IPV6, "16s", b""),
        Wanted(DAEMON_PORT, "H", 0),
        Wanted(DAEMON_TTL, "B", 0),
    ],
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


def decode_daemon(body: bytes) -> SyncDaemon:
    """A sync daemon."""
    state, interface, sync_id, max_length, group, group6, port, ttl = _DAEMONS.read(body)
    return SyncDaemon(state, _text(interface), sync_id, max_length, PackedAddr(group or group6), port, ttl)


def decode_service(body: bytes, statistics: Statistics = NO_STATISTICS) -> ObservedVirtualServer:
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
        statistics=statistics,
    )


def decode_dest(body: bytes, family: Family, statistics: Statistics = NO_STATISTICS) -> ObservedRealServer:
    """A real server of a virtual server of `family`."""
    return _real_server(_DESTS.read(body), family, statistics)


def decode_dest_run(
    piece: bytes, length: int, family: Family, statistics: Iterable[Statistics] = repeat(NO_STATISTICS)
) -> list[ObservedRealServer] | None:
    """All real servers of a piece of a dump, see AttributeReader.read_run; `statistics` of one after the other."""
    found = _DESTS.read_run(piece, length)
    if found is None:
        return None
    return [_real_server(values, family, its) for values, its in zip(found, statistics, strict=False)]


def _real_server(values: tuple[Any, ...], family: Family, statistics: Statistics) -> ObservedRealServer:
    own_family, address, port, method, weight, upper, lower, active, inactive, persistent, *tunnel = values
    tun_type, tun_port, tun_flags = tunnel
    return ObservedRealServer(  # by position: a hundred thousand come by here
        _unpad(address, own_family or family),
        ntohs(port),
        method,
        weight,
        upper,
        lower,
        active,
        inactive,
        persistent,
        tun_type,
        ntohs(tun_port),
        tun_flags,
        statistics,
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
    found = read_attributes(body, GENL_HEADER_BYTES).get(attribute_number(table, name))
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
