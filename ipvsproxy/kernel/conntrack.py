"""Connection tracking entries of UDP, over ctnetlink: finding stale ones by one dump, deleting just these.

A node's table may hold hundreds of thousands of entries, of which a change concerns some. So the kernel is asked for
as few as it can tell apart (CTA_FILTER, Linux 5.8; older kernels ignore it and send all), and what it sends is looked
at where it was received:

    nfgenmsg | TUPLE_ORIG { IP { SRC, DST }, PROTO { NUM, SRC_PORT, DST_PORT } } | TUPLE_REPLY { … } | STATUS | ID | …
               always the same bytes but for the values: one `unpack` tells whether an entry is of interest

Only what is, or looks otherwise, is decoded attribute by attribute. In the zone 0 alone: IPVS works in no other one
(net/netfilter/ipvs/ip_vs_nfct.c), so entries in others are somebody else's.

The kernel does not say when the table changed during a dump. An entry may so be missing, if it has just come, or be
told twice; each is judged by itself, so that does no harm.
Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from ipvsproxy.kernel.netlink import (
    NETLINK_NETFILTER,
    NLA_F_NESTED,
    NetlinkSocket,
    attribute,
    read_attributes,
)
from ipvsproxy.kernel.sysctls import PROC_SYS
from ipvsproxy.kernel.template import Field, Template
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.flows import PackedEndpoint, TableUsage, UdpFlow
from ipvsproxy.plan.flows import Answerers, is_stale

_SUBSYSTEM: Final = 1 << 8  # NFNL_SUBSYS_CTNETLINK
NEW, GET, DELETE = (_SUBSYSTEM | command for command in (0, 1, 2))

TUPLE_ORIG, TUPLE_REPLY, STATUS, TIMEOUT, ID, ZONE, FILTER = 1, 2, 3, 7, 12, 18, 25
_IP, _PROTO, _TUPLE_ZONE = 1, 2, 3
_SOURCE: Final = {4: 1, 16: 3}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC by length in bytes; each destination is one more
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_ORIG_FLAGS = 1
_BY_ADDRESS, _BY_PROTOCOL, _BY_PORT = 1 << 1, 1 << 3, 1 << 5  # CTA_FILTER_F_*, net/netfilter/nf_internals.h

_USAGE: Final = ("net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max")

_HEADER = struct.Struct("=BBH")  # struct nfgenmsg
_PORT_BYTES = 2
_ID = struct.Struct(">I")
_UDP = bytes([Protocol.UDP])


def header(family: Family) -> bytes:
    """How each message begins."""
    return _HEADER.pack(family, 0, 0)


def encode_tuple(number: int, source: bytes, destination: bytes, protocol: bytes = _UDP) -> bytes:
    """One direction of a flow: two packed endpoints."""
    from_address, from_port = source[:-_PORT_BYTES], source[-_PORT_BYTES:]
    to_address, to_port = destination[:-_PORT_BYTES], destination[-_PORT_BYTES:]
    kind = _SOURCE[len(from_address)]
    addresses = attribute(kind, from_address) + attribute(kind + 1, to_address)
    ports = attribute(_SOURCE_PORT, from_port) + attribute(_DESTINATION_PORT, to_port)
    return attribute(
        number | NLA_F_NESTED,
        attribute(_IP | NLA_F_NESTED, addresses)
        + attribute(_PROTO | NLA_F_NESTED, attribute(_NUMBER, protocol) + ports),
    )


def encode_dump(family: Family, destinations: Iterable[PackedEndpoint]) -> bytes:
    """What to ask for all UDP flows to any of `destinations`: the kernel compares what these have in common.

    Not addresses of IPv6: up to Linux 6.18 at least it then leaves out those that match (seen; ipv6_addr_cmp negated).
    """
    addresses, ports = map(set, zip(*((end[:-_PORT_BYTES], end[-_PORT_BYTES:]) for end in destinations), strict=True))
    address, port = min(addresses), min(ports)
    flags = _BY_PROTOCOL
    if len(ports) == 1:
        flags |= _BY_PORT
    if len(addresses) == 1 and family is Family.IPV4:
        flags |= _BY_ADDRESS
    anything = bytes(len(address) + _PORT_BYTES)
    asked = attribute(FILTER | NLA_F_NESTED, attribute(_ORIG_FLAGS, struct.pack("=I", flags)))
    return header(family) + encode_tuple(TUPLE_ORIG, anything, address + port) + asked


def _deletion(family: Family) -> Template:
    """By the direction of the replies, which names the wrong server: a newer flow of the client's has another one.

    The number alone would not tell them apart, for an entry that takes the place of another in memory may get the same
    (seen). Without any tuple the message would empty the table.
    """
    size = family.host_prefix_len // 8
    server, client, number = b"\xa1" * size + b"\xa2\xa3", b"\xb1" * size + b"\xb2\xb3", b"\xc1\xc2\xc3\xc4"
    marks = (server[:-_PORT_BYTES], client[:-_PORT_BYTES], server[-_PORT_BYTES:], client[-_PORT_BYTES:], number)
    encoded = header(family) + encode_tuple(TUPLE_REPLY, server, client) + attribute(ID, number)
    return Template(encoded, [Field(f"{len(mark)}s", mark) for mark in marks])


_DELETIONS: Final = {family: _deletion(family) for family in Family}
_FAMILY_BY_ENDPOINT: Final = {family.host_prefix_len // 8 + _PORT_BYTES: family for family in Family}


def encode_deletion(flow: UdpFlow) -> bytes:
    """The message that deletes this very entry."""
    server, client = flow.server, flow.client
    return _DELETIONS[_FAMILY_BY_ENDPOINT[len(server)]].pack(
        server[:-_PORT_BYTES],
        client[:-_PORT_BYTES],
        server[-_PORT_BYTES:],
        client[-_PORT_BYTES:],
        _ID.pack(flow.number),
    )


def decode(body: bytes) -> UdpFlow | None:
    """The flow that an entry is about; None for other protocols, other zones, and what cannot be understood."""
    found = read_attributes(body, _HEADER.size)
    original, reply = (_decode_tuple(found.get(number, b"")) for number in (TUPLE_ORIG, TUPLE_REPLY))
    number = found.get(ID, b"")
    if original is None or reply is None or len(number) != _ID.size or any(found.get(ZONE, b"")):
        return None
    server, client = reply
    return UdpFlow(client, original[1], server, *_ID.unpack(number))


def _decode_tuple(data: bytes) -> tuple[PackedEndpoint, PackedEndpoint] | None:
    parts = read_attributes(data, 0)
    addresses, ports = (read_attributes(parts.get(part, b""), 0) for part in (_IP, _PROTO))
    if ports.get(_NUMBER) != _UDP or any(parts.get(_TUPLE_ZONE, b"")):
        return None
    ends = [ports.get(port, b"") for port in (_SOURCE_PORT, _DESTINATION_PORT)]
    for size, kind in _SOURCE.items():
        pair = [addresses.get(number, b"") for number in (kind, kind + 1)]
        if [*map(len, pair), *map(len, ends)] == [size, size, _PORT_BYTES, _PORT_BYTES]:
            return PackedEndpoint(pair[0] + ends[0]), PackedEndpoint(pair[1] + ends[1])
    return None


class _Layout:
    """Where the values stand in an entry of one family, as kernels send it, and the bytes that stand between them."""

    def __init__(self, family: Family) -> None:
        size = family.host_prefix_len // 8
        # Original destination, protocol and port; source of replies and its port.
        fields = struct.Struct(f"16x {size}x4x{size}s 8xc7x2x6x2s2x 12x{size}s4x{size}x 8x1x7x2s6x2x2x")
        self.size, self.unpack = fields.size, fields.unpack
        nothing, everything = (_example(family, value) for value in (b"\x00", b"\xff"))
        self.mask = ~(nothing ^ everything)
        self.headers = nothing & self.mask


def _example(family: Family, value: bytes) -> int:
    """The beginning of an entry whose values all have this byte, as a number."""
    end = value * (family.host_prefix_len // 8 + _PORT_BYTES)
    tuples = (encode_tuple(number, end, end, value) for number in (TUPLE_ORIG, TUPLE_REPLY))
    return int.from_bytes(header(family) + b"".join(tuples))


_LAYOUTS: Final = {family: _Layout(family) for family in Family}


class NetlinkConntrack:
    """The table of the network namespace in which it is first used. Meets `kernel.api.Conntrack`; for one thread."""

    def __init__(self, netlink: NetlinkSocket | None = None, root: Path = PROC_SYS) -> None:
        self.netlink = netlink or NetlinkSocket(NETLINK_NETFILTER, "the connection tracking table")
        self._root = root

    def usage(self) -> TableUsage | None:
        """Two small files; None before the module is loaded."""
        try:
            return TableUsage(*(int((self._root / name).read_bytes()) for name in _USAGE))
        except (OSError, ValueError):
            return None

    def stale(self, answerers: Answerers) -> list[UdpFlow]:
        """By one dump. Raises KernelError."""
        if not answerers:
            return []
        family = _FAMILY_BY_ENDPOINT[len(next(iter(answerers)))]
        return self.netlink.select(GET, encode_dump(family, answerers), _picker(_LAYOUTS[family], answerers))

    def delete(self, flows: Sequence[UdpFlow]) -> list[int]:
        """One message each; one error number each, ENOENT where the entry is gone or has given way to a newer one."""
        return self.netlink.send_batch(DELETE, [encode_deletion(flow) for flow in flows])

    def close(self) -> None:
        """Close the socket; the next use opens another one."""
        self.netlink.close()


def _picker(layout: _Layout, answerers: Answerers) -> Callable[[bytes, int, int], UdpFlow | None]:
    """Takes a piece of a dump, and where an entry starts and ends in it; the flow if it is stale."""
    size, mask, headers, unpack = layout.size, layout.mask, layout.headers, layout.unpack

    def pick(data: bytes, start: int, end: int) -> UdpFlow | None:
        tuples = data[start : start + size]
        if int.from_bytes(tuples) & mask == headers:
            address, protocol, port, its_address, its_port = unpack(tuples)
            if protocol != _UDP or not is_stale(answerers, address + port, its_address + its_port):
                return None
        flow = decode(data[start:end])
        return flow if flow is not None and is_stale(answerers, flow.destination, flow.server) else None

    return pick
