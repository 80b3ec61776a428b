"""IPVS entries as the table of `ipvsadm -L`, in each of its sets of columns.

Lines come one by one, without their newline: a table of any size costs the memory of its virtual servers and of the
real servers of one. Blanks that a column's width leaves at the end of a line belong to it. A number that has no meaning
is shown as ipvsadm shows it; in particular a real server's numbers wrap at 2^32, except counted bytes: ipvsadm reads 64
bits with a reader of 32. Source: ipvsadm 1.31, ipvsadm.c print_title, print_service_entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ipvsproxy.model.enums import PROTOCOL_NAMES, Family, ForwardingMethod, TunnelFlags, TunnelType, VirtualServerFlags
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer
from ipvsproxy.status.endpoints import Endpoint
from ipvsproxy.status.figures import Figures, exact, scaled, signed, unsigned
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers
from ipvsproxy.status.requests import Columns, Table
from ipvsproxy.status.source import Source
from ipvsproxy.status.words import (
    ANY_SCHEDULER_BIT,
    FORWARD_MASK,
    UNKNOWN_METHOD,
    option,
    partial_mask,
    scheduler_flags,
)

_NAME_COLUMNS, _ENDPOINT_COLUMNS = 33, 28  # what an IPv4 address is cut to, and any is filled up to

_FORWARD_WORDS: dict[int, str] = {
    ForwardingMethod.MASQ: "Masq",
    ForwardingMethod.LOCAL: "Local",
    ForwardingMethod.TUNNEL: "Tunnel",
    ForwardingMethod.ROUTE: "Route",
}
_NO_TUNNEL = "n/a"
_U32 = 0xFFFF_FFFF


class _Layout(NamedTuple):
    titles: tuple[str, str]
    virtual_server: Callable[[str, ObservedVirtualServer, Figures], str]
    real_server: Callable[[str, ObservedRealServer, Figures], str]
    with_statistics: bool = False


def list_all(source: Source, info: tuple[int, int], table: Table, endpoint: Endpoint) -> Iterator[str]:
    """The whole table under its version line, `info` as in Source. Raises what `source` does."""
    layout = _LAYOUTS[table.columns]
    yield _version_line(*info)
    servers = source.virtual_servers(with_statistics=layout.with_statistics)
    yield from layout.titles
    for server in sort_virtual_servers(servers) if table.is_sorted else servers:
        yield from _entry(source, server, table, endpoint)


def list_one(source: Source, table: Table, endpoint: Endpoint) -> Iterator[str] | None:
    """One virtual server's part of it, without the version line; None where there is none. Raises likewise."""
    layout = _LAYOUTS[table.columns]
    found = table.only and source.find(table.only, with_statistics=layout.with_statistics)
    return _under_titles(layout, _entry(source, found, table, endpoint)) if found else None


def _under_titles(layout: _Layout, lines: Iterator[str]) -> Iterator[str]:
    yield from layout.titles
    yield from lines


def _entry(source: Source, server: ObservedVirtualServer, table: Table, endpoint: Endpoint) -> Iterator[str]:
    layout, figures = _LAYOUTS[table.columns], exact if table.is_exact else scaled
    real_servers = source.real_servers(server, with_statistics=layout.with_statistics)
    yield layout.virtual_server(_name(server, endpoint), server, figures)
    protocol, write = server.protocol, layout.real_server
    for real_server in sort_real_servers(real_servers) if table.is_sorted else real_servers:
        text = endpoint(real_server.address, real_server.port, protocol)
        yield write(text if text[0] == "[" else text[:_ENDPOINT_COLUMNS], real_server, figures)


def _version_line(version: int, conn_tab_size: int) -> str:
    return f"IP Virtual Server version {dotted(version)} (size={signed(conn_tab_size)})"


def dotted(version: int) -> str:
    """A version word as people write it."""
    return f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}"


def _name(server: ObservedVirtualServer, endpoint: Endpoint) -> str:
    """The title of a virtual server in the table; a firewall mark above 2^31 - 1 is negative, as ipvsadm prints it."""
    if server.fwmark:
        return f"FWM  {signed(server.fwmark)}" + (" IPv6" if server.family is Family.IPV6 else "")
    text = endpoint(server.address, server.port, server.protocol)
    name = f"{PROTOCOL_NAMES.get(server.protocol, '?'):<4} {text}"
    return name[:_NAME_COLUMNS] if server.family is Family.IPV4 else name


def _settings(name: str, server: ObservedVirtualServer, _: Figures) -> str:
    words = [name, server.scheduler]
    if server.flags & ANY_SCHEDULER_BIT:
        words.append(f"({scheduler_flags(server)})")
    if server.flags & VirtualServerFlags.PERSISTENT:
        words += ["persistent", str(server.timeout_s), *option("mask", partial_mask(server))]
        words += option("pe", server.pe_name)
    if server.flags & VirtualServerFlags.ONE_PACKET:
        words.append("ops")
    return " ".join(words)


def _counters(name: str, server: ObservedVirtualServer, figures: Figures) -> str:
    seen = server.statistics
    counts = (seen.connections, seen.packets_in, seen.packets_out, seen.bytes_in, seen.bytes_out)
    return f"{name:<33}{figures(counts)}"


def _rates(name: str, server: ObservedVirtualServer, figures: Figures) -> str:
    seen = server.statistics
    counts = (seen.connections_per_s, seen.packets_in_per_s, seen.packets_out_per_s)
    return f"{name:<33}{figures((*counts, seen.bytes_in_per_s, seen.bytes_out_per_s))}"


def _forward(server: ObservedRealServer) -> str:
    return _FORWARD_WORDS.get(server.conn_flags & FORWARD_MASK, UNKNOWN_METHOD)


def _real_server(endpoint: str, server: ObservedRealServer, _: Figures) -> str:
    forward = _FORWARD_WORDS.get(server.conn_flags & FORWARD_MASK, UNKNOWN_METHOD)
    return f"  -> {endpoint:<28}{_columns(forward, server.weight, server.active, server.inactive)}"


@lru_cache(maxsize=4096)  # most of a table ends alike, and the columns are half of what a line costs
def _columns(forward: str, weight: int, active: int, inactive: int) -> str:
    return f" {forward:<7} {signed(weight):<6} {active:<10} {inactive:<10}"


def _real_server_tunnel(endpoint: str, server: ObservedRealServer, _: Figures) -> str:
    settings = f"{_forward(server):<7} {_tunnel(server):<13} {signed(server.weight):<6}"
    return f"  -> {endpoint:<28} {settings} {server.active:<10} {server.inactive:<10}"


def _real_server_counters(endpoint: str, server: ObservedRealServer, figures: Figures) -> str:
    seen = server.statistics
    counts = (seen.connections & _U32, seen.packets_in & _U32, seen.packets_out & _U32, seen.bytes_in, seen.bytes_out)
    return f"  -> {endpoint:<28}{figures(counts)}"


def _real_server_rates(endpoint: str, server: ObservedRealServer, figures: Figures) -> str:
    seen = server.statistics
    counts = (seen.connections_per_s & _U32, seen.packets_in_per_s & _U32, seen.packets_out_per_s & _U32)
    bytes_per_s = (seen.bytes_in_per_s & _U32, seen.bytes_out_per_s & _U32)
    return f"  -> {endpoint:<28}{' %8d' * 3 % counts}{figures(bytes_per_s)}"


def _real_server_thresholds(endpoint: str, server: ObservedRealServer, _: Figures) -> str:
    thresholds = f"{server.upper_threshold:<10} {server.lower_threshold:<10}"
    return f"  -> {endpoint:<28} {thresholds} {server.active:<10} {server.inactive:<10}"


def _real_server_persistence(endpoint: str, server: ObservedRealServer, _: Figures) -> str:
    settings = f"{unsigned(server.weight):<9} {server.persistent:<11}"
    return f"  -> {endpoint:<28} {settings} {server.active:<10} {server.inactive:<10}"


def _tunnel(server: ObservedRealServer) -> str:
    if server.conn_flags & FORWARD_MASK != ForwardingMethod.TUNNEL:
        return _NO_TUNNEL
    match server.tun_type:
        case TunnelType.IPIP:
            return "ipip"
        case TunnelType.GUE:
            return f"gue:{server.tun_port}:{_checksum(server.tun_flags)}"
        case TunnelType.GRE:
            return f"gre:{_checksum(server.tun_flags)}"
        case _:
            return _NO_TUNNEL


def _checksum(tun_flags: int) -> str:
    if tun_flags & TunnelFlags.REMOTE_CHECKSUM:
        return "r+c"
    return "+c" if tun_flags & TunnelFlags.CHECKSUM else "-c"


def _title(*columns: str) -> str:
    return f"{'Prot LocalAddress:Port':<33} {' '.join(columns)}"


_PLAIN = "Prot LocalAddress:Port Scheduler Flags"
_REMOTE = "  -> RemoteAddress:Port"
_LAYOUTS = {
    Columns.PLAIN: _Layout(
        (_PLAIN, f"{_REMOTE}           Forward Weight ActiveConn InActConn"), _settings, _real_server
    ),
    Columns.TUNNELS: _Layout(
        (_PLAIN, f"{_REMOTE}           Forward TunnelInfo    Weight ActiveConn InActConn"),
        _settings,
        _real_server_tunnel,
    ),
    Columns.STATISTICS: _Layout(
        (_title("   Conns", "  InPkts", " OutPkts", " InBytes", "OutBytes"), _REMOTE),
        _counters,
        _real_server_counters,
        with_statistics=True,
    ),
    Columns.RATES: _Layout(
        (_title("     CPS", "   InPPS", "  OutPPS", "   InBPS", "  OutBPS"), _REMOTE),
        _rates,
        _real_server_rates,
        with_statistics=True,
    ),
    Columns.THRESHOLDS: _Layout(
        (_title("Uthreshold", "Lthreshold", "ActiveConn", "InActConn "), _REMOTE), _settings, _real_server_thresholds
    ),
    Columns.PERSISTENCE: _Layout(
        (_title("Weight   ", "PersistConn", "ActiveConn", "InActConn "), _REMOTE), _settings, _real_server_persistence
    ),
}
