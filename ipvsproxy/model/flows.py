"""UDP flows as connection tracking knows them: who sends to whom, and who answers.

Their ends are packed as address and port in network order, the form that an IPVS real server's identity has
(model/real_servers.py), so that flows and servers are compared without being taken apart.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from ipvsproxy.model.addr import PackedAddr, format_endpoint

PackedEndpoint = NewType("PackedEndpoint", bytes)  # 6 or 18 bytes

_PORT_BYTES = 2


class UdpFlow(msgspec.Struct, frozen=True, gc=False):
    """One entry of the connection tracking table; `number` is the kernel's own for it.

    `destination` is what the client sent to; `server` answers, which is the destination itself where nobody has
    translated it. `client` is whom it answers: the node where it masquerades.
    """

    client: PackedEndpoint
    destination: PackedEndpoint
    server: PackedEndpoint
    number: int = 0

    def __str__(self) -> str:
        client, destination, server = map(format_packed, (self.client, self.destination, self.server))
        return f"{client} → {destination} ({server})"


class TableUsage(msgspec.Struct, frozen=True):
    """How many entries connection tracking has, of any protocol, and how many it may have."""

    entries: int
    limit: int


class TrackingErrors(msgspec.Struct, frozen=True):
    """How many packets connection tracking has lost since boot: entries it could not insert, or make at all."""

    insert_failed: int
    dropped: int


def pack_endpoint(address: bytes, port: int) -> PackedEndpoint:
    """An address and a port in one."""
    return PackedEndpoint(address + port.to_bytes(_PORT_BYTES))


def unpack_endpoint(endpoint: PackedEndpoint) -> tuple[PackedAddr, int]:
    """Its address and its port."""
    return PackedAddr(endpoint[:-_PORT_BYTES]), int.from_bytes(endpoint[-_PORT_BYTES:])


def format_packed(endpoint: PackedEndpoint) -> str:
    """`A.B.C.D:port` or `[v6]:port`."""
    return format_endpoint(*unpack_endpoint(endpoint))
