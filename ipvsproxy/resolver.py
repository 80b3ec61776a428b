"""Names of hosts and services as this machine's C library knows them (nsswitch: files, DNS and so on).

They are bytes in any encoding, and so they are kept: a byte that is not ASCII is a lone surrogate (PEP 383).
"""

from __future__ import annotations

import os
import socket

from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.enums import Protocol

_NO_HOST_NAMES = frozenset({"", "<broadcast>"})  # Python gives these meanings of its own


class SystemResolver:
    """Meets status/endpoints.py's Resolver."""

    def host_name(self, address: PackedAddr) -> str | None:
        """The canonical name of an address."""
        try:
            return _byte_by_byte(socket.gethostbyaddr(format_addr(address))[0].encode())
        except UnicodeDecodeError as error:
            return _byte_by_byte(error.object)
        except OSError:
            return None

    def host_address(self, name: str) -> PackedAddr | None:
        """The first IPv4 address of a host."""
        if name in _NO_HOST_NAMES:
            return None
        try:
            # As bytes: of text Python would make what the DNS calls it, xn--…
            return PackedAddr(socket.inet_aton(socket.gethostbyname(os.fsencode(name))))  # type: ignore[arg-type]
        except (OSError, ValueError):
            return None

    def service_name(self, port: int, protocol: Protocol) -> str | None:
        """The service at a port."""
        try:
            return _byte_by_byte(socket.getservbyport(port, protocol.word).encode())
        except UnicodeDecodeError as error:
            return _byte_by_byte(error.object)
        except OSError:
            return None

    def service_port(self, name: str, protocol: Protocol) -> int | None:
        """The port of a service."""
        try:
            return socket.getservbyname(name, protocol.word)
        except (OSError, ValueError):
            return None


def _byte_by_byte(name: bytes) -> str:
    return name.decode("ascii", "surrogateescape")
