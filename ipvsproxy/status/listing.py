"""IPVS entries as lines of `ipvsadm -L -n` (the table) and `ipvsadm -S -n` (the rules that would make them again).

Both show the same objects by the same words in the same order, so they share this file. Lines come one by one, without
their newline, so a table of any size costs the memory of its sorted virtual servers and of one's real servers.
Blanks that a column's width leaves at the end of a line belong to it. Source: ipvsadm 1.31, ipvsadm.c.

A number that has no meaning is shown as ipvsadm shows it. One thing differs: tunnel flags beyond the three known values
make `ipvsadm -S` crash, while here the highest known bit counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from ipvsproxy.model.addr import format_addr, format_endpoint
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, TunnelFlags, TunnelType, VirtualServerFlags
from ipvsproxy.model.observed import IpvsTable, ObservedRealServer, ObservedVirtualServer, full_netmask
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers

_TITLE = (
    "Prot LocalAddress:Port Scheduler Flags",
    "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn",
)

_FORWARD_MASK = 0x07
_UNKNOWN_METHOD = "(null)"  # what C's printf makes of ipvsadm's missing word
_FORWARD_WORDS: dict[int, str] = {
    ForwardingMethod.MASQ: "Masq",
    ForwardingMethod.LOCAL: "Local",
    ForwardingMethod.TUNNEL: "Tunnel",
    ForwardingMethod.ROUTE: "Route",
}
_FORWARD_OPTIONS: dict[int, str] = {
    ForwardingMethod.MASQ: "-m",
    ForwardingMethod.LOCAL: "-g",
    ForwardingMethod.TUNNEL: "-i",
    ForwardingMethod.ROUTE: "-g",
}
_PROTOCOL_OPTIONS: dict[int, str] = {Protocol.TCP: "-t", Protocol.UDP: "-u", Protocol.SCTP: "--sctp-service"}
_PROTOCOL_WORDS: dict[int, str] = {protocol: protocol.name for protocol in Protocol}

_SCHEDULER_BITS = (VirtualServerFlags.SCHEDULER_1, VirtualServerFlags.SCHEDULER_2, VirtualServerFlags.SCHEDULER_3)
_ANY_SCHEDULER_BIT = _SCHEDULER_BITS[0] | _SCHEDULER_BITS[1] | _SCHEDULER_BITS[2]
_FLAG_NAMES = {"sh": ("sh-fallback", "sh-port"), "mh": ("mh-fallback", "mh-port")}
_OTHER_FLAG_NAMES = ("flag-1", "flag-2", "flag-3")


def list_table(table: IpvsTable) -> Iterator[str]:
    """What `ipvsadm -L -n` prints of the whole table, line by line, without newlines."""
    yield _version_line(table)
    yield from _TITLE
    for server in sort_virtual_servers(table.virtual_servers):
        yield _listed_virtual_server(server)
        yield from map(_listed_real_server, sort_real_servers(server.real_servers))


def save(table: IpvsTable) -> Iterator[str]:
    """What `ipvsadm -S -n` prints of the whole table, line by line, without newlines."""
    return save_lines(table.virtual_servers)


def save_lines(virtual_servers: Iterable[ObservedVirtualServer]) -> Iterator[str]:
    """The same of virtual servers that may only be wanted. Rules carry no thresholds, time-outs or counters."""
    for server in sort_virtual_servers(tuple(virtual_servers)):
        selector = _selector(server)
        yield _saved_virtual_server(selector, server)
        for real_server in sort_real_servers(server.real_servers):
            yield _saved_real_server(selector, real_server)


def _version_line(table: IpvsTable) -> str:
    major, minor, patch = table.version >> 16 & 0xFF, table.version >> 8 & 0xFF, table.version & 0xFF
    return f"IP Virtual Server version {major}.{minor}.{patch} (size={table.conn_tab_size})"


def _listed_virtual_server(server: ObservedVirtualServer) -> str:
    words = [_name(server), server.scheduler]
    if server.flags & _ANY_SCHEDULER_BIT:
        words.append(f"({_scheduler_flags(server)})")
    if server.flags & VirtualServerFlags.PERSISTENT:
        words += ["persistent", str(server.timeout_s), *_option("mask", _partial_mask(server))]
        words += _option("pe", server.pe_name)
    if server.flags & VirtualServerFlags.ONE_PACKET:
        words.append("ops")
    return " ".join(words)


def _listed_real_server(server: ObservedRealServer) -> str:
    forward = _FORWARD_WORDS.get(server.conn_flags & _FORWARD_MASK, _UNKNOWN_METHOD)
    endpoint = format_endpoint(server.address, server.port)
    return f"  -> {endpoint:<28} {forward:<7} {_signed(server.weight):<6} {server.active:<10} {server.inactive:<10}"


def _saved_virtual_server(selector: str, server: ObservedVirtualServer) -> str:
    words = ["-A", selector, "-s", server.scheduler]
    if server.flags & VirtualServerFlags.PERSISTENT:
        words += ["-p", str(server.timeout_s), *_option("-M", _partial_mask(server))]
    words += _option("--pe", server.pe_name)
    if server.flags & VirtualServerFlags.ONE_PACKET:
        words.append("-o")
    if server.flags & _ANY_SCHEDULER_BIT:
        words += ["-b", _scheduler_flags(server)]
    return " ".join(words)


def _saved_real_server(selector: str, server: ObservedRealServer) -> str:
    method = server.conn_flags & _FORWARD_MASK
    words = ["-a", selector, "-r", format_endpoint(server.address, server.port)]
    words += [_FORWARD_OPTIONS.get(method, _UNKNOWN_METHOD), "-w", str(_signed(server.weight))]
    if method == ForwardingMethod.TUNNEL:
        words += _tunnel_options(server)
    return " ".join(words)


def _name(server: ObservedVirtualServer) -> str:
    """The title of a virtual server in the table; a firewall mark above 2^31 - 1 is negative, as ipvsadm prints it."""
    if server.fwmark:
        return f"FWM  {_signed(server.fwmark)}" + (" IPv6" if server.family is Family.IPV6 else "")
    return f"{_PROTOCOL_WORDS.get(server.protocol, '?'):<4} {format_endpoint(server.address, server.port)}"


def _selector(server: ObservedVirtualServer) -> str:
    """The option that names a virtual server in a rule."""
    if server.fwmark:
        return f"-f {_signed(server.fwmark)}" + (" -6" if server.family is Family.IPV6 else "")
    return f"{_PROTOCOL_OPTIONS.get(server.protocol, '--xxx-service')} {format_endpoint(server.address, server.port)}"


def _scheduler_flags(server: ObservedVirtualServer) -> str:
    """Names of the scheduler's flag bits, which each scheduler reads its own way; sh and mh have none for the third."""
    names = _FLAG_NAMES.get(server.scheduler, _OTHER_FLAG_NAMES)
    return ",".join(name for bit, name in zip(_SCHEDULER_BITS, names, strict=False) if server.flags & bit)


def _partial_mask(server: ObservedVirtualServer) -> str:
    """The mask by which clients are grouped, empty where each address counts alone."""
    if server.netmask == full_netmask(server.family):
        return ""
    if server.family is Family.IPV4:
        return format_addr(server.netmask)
    return str(int.from_bytes(server.netmask, sys.byteorder))


def _tunnel_options(server: ObservedRealServer) -> list[str]:
    match server.tun_type:
        case TunnelType.IPIP:
            return ["--tun-type", "ipip"]
        case TunnelType.GUE:
            return ["--tun-type", "gue", "--tun-port", str(server.tun_port), _checksum_option(server.tun_flags)]
        case TunnelType.GRE:
            return ["--tun-type", "gre", _checksum_option(server.tun_flags)]
        case _:
            return []


def _checksum_option(tun_flags: int) -> str:
    if tun_flags & TunnelFlags.REMOTE_CHECKSUM:
        return "--tun-remcsum"
    return "--tun-csum" if tun_flags & TunnelFlags.CHECKSUM else "--tun-nocsum"


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _signed(number: int) -> int:
    """An unsigned 32-bit number as C's `%d` prints it."""
    return (number ^ 0x8000_0000) - 0x8000_0000
