"""Names of hosts and services as this machine's C library knows them (nsswitch: files, DNS and so on)."""

from __future__ import annotations

import socket

from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.enums import Protocol

_NO_HOST_NAMES = frozenset({"", "<broadcast>"})  # Python gives these meanings of its own


class SystemResolver:
    """Meets status/endpoints.py's Resolver."""

    def host_name(self, address: PackedAddr) -> str | None:
        """The canonical name of an address."""
        try:
            return socket.gethostbyaddr(format_addr(address))[0]
        except (OSError, UnicodeError):
            return None

    def host_address(self, name: str) -> PackedAddr | None:
        """The first IPv4 address of a host."""
        if name in _NO_HOST_NAMES:
            return None
        try:
            return PackedAddr(socket.inet_aton(socket.gethostbyname(name)))
        except (OSError, UnicodeError, ValueError):
            return None

    def service_name(self, port: int, protocol: Protocol) -> str | None:
        """The service at a port."""
        try:
            return socket.getservbyport(port, protocol.word)
        except OSError:
            return None

    def service_port(self, name: str, protocol: Protocol) -> int | None:
        """The port of a service."""
        try:
            return socket.getservbyname(name, protocol.word)
        except (OSError, ValueError):
            return None
