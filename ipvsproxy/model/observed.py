"""IPVS entries as the kernel reports them, foreign and firewall-mark ones included: what `status` prints.

Source: include/uapi/linux/ip_vs.h (IPVS_SVC_ATTR_*, IPVS_DEST_ATTR_*).
"""

from __future__ import annotations

import sys

import msgspec

from ipvsproxy.model import real_servers as packed
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import VirtualServer, VirtualServerKey


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """What passed since the entry was made or zeroed, then the kernel's estimate of each a second."""

    connections: int = 0
    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections_per_s: int = 0
    packets_in_per_s: int = 0
    packets_out_per_s: int = 0
    bytes_in_per_s: int = 0
    bytes_out_per_s: int = 0


NO_STATISTICS = Statistics()


class ObservedRealServer(msgspec.Struct, frozen=True, gc=False):
    """One destination. `conn_flags` is the raw forwarding word; connection counts are those of the moment.

    The `tun_` fields are raw numbers (TunnelType, TunnelFlags) that mean something only where the method is TUNNEL.
    """

    address: PackedAddr
    port: int
    conn_flags: int = 0
    weight: int = 1
    upper_threshold: int = 0
    lower_threshold: int = 0
    active: int = 0
    inactive: int = 0
    persistent: int = 0
    tun_type: int = 0
    tun_port: int = 0
    tun_flags: int = 0
    statistics: Statistics = NO_STATISTICS


class ObservedVirtualServer(msgspec.Struct, frozen=True):
    """One service with its destinations, in kernel order. With a `fwmark`, protocol and port are 0.

    Statistics, here and there, only where they were asked for.
    `netmask` holds the four raw bytes of the attribute: a dotted mask for IPv4, a native-order prefix length for IPv6.
    """

    family: Family
    protocol: int
    address: PackedAddr
    port: int
    fwmark: int
    scheduler: str
    flags: int
    timeout_s: int
    netmask: bytes
    pe_name: str = ""
    real_servers: tuple[ObservedRealServer, ...] = ()
    statistics: Statistics = NO_STATISTICS


class IpvsTable(msgspec.Struct, frozen=True):
    """All of IPVS: the kernel's version word (0x010201), its connection hash size, the services in kernel order."""

    version: int
    conn_tab_size: int
    virtual_servers: tuple[ObservedVirtualServer, ...] = ()


class ServiceName(msgspec.Struct, frozen=True, gc=False):
    """What names one virtual server: a firewall mark (then all else is 0), or protocol, address and port."""

    family: Family
    protocol: int
    address: PackedAddr
    port: int
    fwmark: int = 0


class SyncDaemon(msgspec.Struct, frozen=True, gc=False):
    """A connection synchronisation daemon. `state` is IP_VS_STATE_*; 0 and an empty group are what was not told."""

    state: int
    interface: str
    sync_id: int
    max_length: int = 0
    group: PackedAddr = PackedAddr(b"")
    port: int = 0
    ttl: int = 0


class SurveyedServer(msgspec.Struct, frozen=True, gc=False):
    """What a cheap look tells of one virtual server; `servers` packed as in model/real_servers.py."""

    scheduler: str
    is_persistent: bool
    servers: bytes


def full_netmask(family: Family) -> bytes:
    """The `netmask` that groups no clients: 255.255.255.255, or the number 128 in native byte order."""
    return b"\xff" * 4 if family is Family.IPV4 else (128).to_bytes(4, sys.byteorder)


def as_observed(key: VirtualServerKey, settings: VirtualServer, servers: bytes) -> ObservedVirtualServer:
    """A virtual server with its packed real servers (model/real_servers.py) as the kernel would report it."""
    family = family_of(key.address)
    unpacked = (packed.unpack(record) for record in packed.split(servers, len(key.address)))
    return ObservedVirtualServer(
        family=family,
        protocol=key.protocol,
        address=key.address,
        port=key.port,
        fwmark=0,
        scheduler=settings.scheduler,
        flags=settings.flags,
        timeout_s=settings.persistence_s,
        netmask=full_netmask(family),
        real_servers=tuple(ObservedRealServer(s.address, s.port, int(s.method), s.weight) for s in unpacked),
    )
