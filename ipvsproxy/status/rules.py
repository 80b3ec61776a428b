"""IPVS entries as the lines of `ipvsadm -S`: the rules that would make them again.

Rules carry no thresholds, time-outs or counters. A number that has no meaning is shown as ipvsadm shows it. One thing
differs: tunnel flags beyond the three known values make `ipvsadm -S` crash, while here the highest known bit counts.
Source: ipvsadm 1.31, ipvsadm.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, TunnelFlags, TunnelType, VirtualServerFlags
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer
from ipvsproxy.status.endpoints import Endpoint, numeric
from ipvsproxy.status.figures import signed
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers
from ipvsproxy.status.source import Source
from ipvsproxy.status.words import (
    ANY_SCHEDULER_BIT,
    FORWARD_MASK,
    UNKNOWN_METHOD,
    option,
    partial_mask,
    scheduler_flags,
)

_FORWARD_OPTIONS: dict[int, str] = {
    ForwardingMethod.MASQ: "-m",
    ForwardingMethod.LOCAL: "-g",
    ForwardingMethod.TUNNEL: "-i",
    ForwardingMethod.ROUTE: "-g",
}
_PROTOCOL_OPTIONS: dict[int, str] = {Protocol.TCP: "-t", Protocol.UDP: "-u", Protocol.SCTP: "--sctp-service"}


def save(source: Source, endpoint: Endpoint) -> Iterator[str]:
    """What `ipvsadm -S` prints of the whole table, line by line, without newlines. Raises what `source` does."""
    for server in sort_virtual_servers(source.virtual_servers()):
        yield from _rules(server, source.real_servers(server), endpoint)


def save_lines(virtual_servers: Iterable[ObservedVirtualServer]) -> Iterator[str]:
    """What `ipvsadm -S -n` would print of virtual servers that may only be wanted."""
    for server in sort_virtual_servers(tuple(virtual_servers)):
        yield from _rules(server, server.real_servers, numeric)


def _rules(
    server: ObservedVirtualServer, real_servers: Sequence[ObservedRealServer], endpoint: Endpoint
) -> Iterator[str]:
    selector = _selector(server, endpoint)
    yield _saved_virtual_server(selector, server)
    for real_server in sort_real_servers(real_servers):
        text = endpoint(real_server.address, real_server.port, server.protocol)
        yield _saved_real_server(selector, text, real_server)


def _selector(server: ObservedVirtualServer, endpoint: Endpoint) -> str:
    """The option that names a virtual server; a mark above 2^31 - 1 is negative, as ipvsadm prints it."""
    if server.fwmark:
        return f"-f {signed(server.fwmark)}" + (" -6" if server.family is Family.IPV6 else "")
    text = endpoint(server.address, server.port, server.protocol)
    return f"{_PROTOCOL_OPTIONS.get(server.protocol, '--xxx-service')} {text}"


def _saved_virtual_server(selector: str, server: ObservedVirtualServer) -> str:
    words = ["-A", selector, "-s", server.scheduler]
    if server.flags & VirtualServerFlags.PERSISTENT:
        words += ["-p", str(server.timeout_s), *option("-M", partial_mask(server))]
    words += option("--pe", server.pe_name)
    if server.flags & VirtualServerFlags.ONE_PACKET:
        words.append("-o")
    if server.flags & ANY_SCHEDULER_BIT:
        words += ["-b", scheduler_flags(server)]
    return " ".join(words)


def _saved_real_server(selector: str, endpoint: str, server: ObservedRealServer) -> str:
    method = server.conn_flags & FORWARD_MASK
    words = ["-a", selector, "-r", endpoint]
    words += [_FORWARD_OPTIONS.get(method, UNKNOWN_METHOD), "-w", str(signed(server.weight))]
    if method == ForwardingMethod.TUNNEL:
        words += _tunnel_options(server)
    return " ".join(words)


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
