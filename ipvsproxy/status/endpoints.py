"""Addresses and ports as text: numbers, or the names that the system knows for them.

ipvsadm builds the text in 60 bytes, so a long host name costs it the port and more. Source: ipvsadm 1.31, ipvsadm.c
addrport_to_anyname, port_to_service.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from socket import inet_ntoa
from typing import Protocol as Interface
from typing import TypeAlias

from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.enums import Protocol

Endpoint: TypeAlias = Callable[[bytes, int, int], str]
"""Text of an address, a port and the protocol that says whose port it is (0: nobody's)."""

_IPV4_BYTES = 4
_TEXT_LENGTH = 59
_KNOWN_NAMES = 4096  # of addresses, kept: a table repeats few of them far apart
_PROTOCOLS = {int(protocol): protocol for protocol in Protocol}


class Resolver(Interface):
    """What a system knows by name. Unknown names and numbers are None.

    Names that it gives have a character a byte (PEP 383), so that they are cut and filled up as a C program does it.
    """

    def host_name(self, address: PackedAddr) -> str | None:
        """The canonical name of an address."""

    def host_address(self, name: str) -> PackedAddr | None:
        """The first IPv4 address of a host."""

    def service_name(self, port: int, protocol: Protocol) -> str | None:
        """The service at a port."""

    def service_port(self, name: str, protocol: Protocol) -> int | None:
        """The port of a service."""


def numeric(address: bytes, port: int, protocol: int = 0) -> str:  # noqa: ARG001  # the shape of Endpoint
    """`A.B.C.D:port` or `[v6]:port`."""
    return f"{inet_ntoa(address)}:{port}" if len(address) == _IPV4_BYTES else f"[{format_addr(address)}]:{port}"


def by_name(resolver: Resolver) -> Endpoint:
    """Names where the system has them, each asked for once."""
    host_name = lru_cache(maxsize=_KNOWN_NAMES)(resolver.host_name)
    service_name = lru_cache(maxsize=_KNOWN_NAMES)(resolver.service_name)

    def named(address: bytes, port: int, protocol: int) -> str:
        known = _PROTOCOLS.get(protocol)
        host = host_name(PackedAddr(address)) or format_addr(address)
        service = (known and service_name(port, known)) or port
        return (f"{host}:{service}" if len(address) == _IPV4_BYTES else f"[{host}]:{service}")[:_TEXT_LENGTH]

    return named
