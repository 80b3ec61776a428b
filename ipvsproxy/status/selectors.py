"""Which virtual server a command line means: an address and port, or a firewall mark. Names count as well as numbers.

Addresses are read more leniently than anywhere else in this program, as C's inet_aton does: 10.1 is 10.0.0.1, and
010.0.0.1 is 8.0.0.1. Source: ipvsadm 1.31, ipvsadm.c parse_service, parse_fwmark, string_to_number.
"""

from __future__ import annotations

import re
import socket

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.status.endpoints import Resolver

PROTOCOLS = {"tcp-service": Protocol.TCP, "udp-service": Protocol.UDP, "sctp-service": Protocol.SCTP}
"""What an option that names a virtual server by its address says of the protocol."""

_PORTS = range(1 << 16)
_MARKS = range(1, 1 << 32)
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]{1,99}", re.ASCII)  # what strtol takes, within reason


def number(text: str, allowed: range) -> int | None:
    """A whole number in decimal, as C reads it, that is allowed."""
    if not _NUMBER.fullmatch(text):
        return None
    found = int(text)
    return found if found in allowed else None


def firewall_mark(text: str) -> int | None:
    """A mark, None where the text is none."""
    return number(text, _MARKS)


def service_address(text: str, protocol: Protocol, resolver: Resolver) -> tuple[PackedAddr, int] | None:
    """Address and port of `A:P`, `[A6]:P`, `HOST:P`, or with port 0 of `A`, `A6`, `HOST`; None of anything else."""
    if re.fullmatch(r"[0-9]*", text, re.ASCII):
        return None
    host, port = text, None
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            return None
        port = rest[1:]
    address = _ipv6(host)
    if address is None:
        # ipvsadm forgets the port behind brackets that hold no IPv6 address, and looks for one inside.
        host, colon, behind = host.rpartition(":")
        host, port = (host, behind) if colon else (behind, None)
        address = ipv4_address(host, resolver)
    found = 0 if port is None else _port(port, protocol, resolver)
    return None if address is None or found is None else (address, found)


def ipv4_address(text: str, resolver: Resolver) -> PackedAddr | None:
    """A dotted address in any of C's forms, or a host's."""
    try:
        return PackedAddr(socket.inet_aton(text))
    except (OSError, ValueError):
        return resolver.host_address(text)


def _ipv6(text: str) -> PackedAddr | None:
    try:
        return PackedAddr(socket.inet_pton(socket.AF_INET6, text))
    except (OSError, ValueError):
        return None


def _port(text: str, protocol: Protocol, resolver: Resolver) -> int | None:
    found = number(text, _PORTS)
    return resolver.service_port(text, protocol) if found is None else found
