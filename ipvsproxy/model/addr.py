"""Addresses as packed bytes: 4 or 16 of them, network order, so that the length is the family.

Text is parsed here and nowhere else. Kubernetes' lenient reading holds (k8s.io/utils/net "sloppy" parsers): decimal
octets may have leading zeros, an IPv4-mapped IPv6 address counts as IPv4. What leaves this module is canonical.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import NewType

import msgspec

from ipvsproxy.model.enums import Family

PackedAddr = NewType("PackedAddr", bytes)

_MAPPED = bytes(10) + b"\xff\xff"
_DOTTED = re.compile(r"[0-9]+(?:\.[0-9]+){3}", re.ASCII)
_IPV4_BYTES = 4
_MAX_OCTET = 255


def parse_addr(text: str) -> PackedAddr | None:
    """The address that `text` means, or None where it is not one. No blanks, zones or brackets are accepted."""
    try:
        return PackedAddr(socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError, UnicodeEncodeError):
        pass
    if _DOTTED.fullmatch(text):
        return _parse_with_leading_zeros(text)
    try:
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError, UnicodeEncodeError):
        return None
    return PackedAddr(packed[12:] if packed.startswith(_MAPPED) else packed)


def _parse_with_leading_zeros(text: str) -> PackedAddr | None:
    octets = [part.lstrip("0") or "0" for part in text.split(".")]
    if any(len(octet) > len("255") or int(octet) > _MAX_OCTET for octet in octets):
        return None
    return PackedAddr(bytes(int(octet) for octet in octets))


def format_addr(addr: bytes) -> str:
    """Canonical compressed text without brackets."""
    return socket.inet_ntop(family_of(addr), addr)


def format_endpoint(addr: bytes, port: int) -> str:
    """`A.B.C.D:port` or `[v6]:port`."""
    return f"{format_addr(addr)}:{port}" if len(addr) == _IPV4_BYTES else f"[{format_addr(addr)}]:{port}"


def format_host_prefix(addr: bytes) -> str:
    """The address with its full prefix length, as it stands on kube-ipvs0."""
    return f"{format_addr(addr)}/{len(addr) * 8}"


def family_of(addr: bytes) -> Family:
    """The family that the length says."""
    return Family.IPV4 if len(addr) == _IPV4_BYTES else Family.IPV6


class Cidr(msgspec.Struct, frozen=True, order=True):
    """A network: its first address (host bits zero) and its prefix length in bits."""

    network: PackedAddr
    prefix_len: int

    def __contains__(self, addr: bytes) -> bool:
        """Whether `addr` is of this family and inside."""
        if len(addr) != len(self.network):
            return False
        return masked(addr, self.prefix_len) == self.network

    def __str__(self) -> str:
        return f"{format_addr(self.network)}/{self.prefix_len}"


def parse_cidr(text: str) -> Cidr | None:
    """The network that `text` ("10.244.0.0/16") means, host bits cleared; None where it is not one."""
    head, slash, tail = text.partition("/")
    addr = parse_addr(head)
    if addr is None or not slash or not re.fullmatch(r"[0-9]{1,3}", tail, re.ASCII):
        return None
    prefix_len = int(tail)
    if ":" in head and len(addr) == _IPV4_BYTES:  # ::ffff:a.b.c.d/n: the mapped form's length counts 96 more bits
        prefix_len -= 96
    if not 0 <= prefix_len <= len(addr) * 8:
        return None
    return Cidr(PackedAddr(masked(addr, prefix_len)), prefix_len)


def masked(addr: bytes, prefix_len: int) -> bytes:
    """The first address of the network of this prefix length (bits) that `addr` is in."""
    bits = len(addr) * 8
    return (int.from_bytes(addr) >> (bits - prefix_len) << (bits - prefix_len)).to_bytes(len(addr))


def is_loopback(addr: bytes) -> bool:
    """127.0.0.0/8 or ::1 (RFC 1122 §3.2.1.3, RFC 4291 §2.5.3)."""
    return any(addr in network for network in _LOOPBACK)


def is_bindable(addr: bytes) -> bool:
    """Whether a Service may own this address: not unspecified, loopback, link-local, multicast or broadcast."""
    number = int.from_bytes(addr)
    return all(number & mask != network for mask, network in _NEVER_BOUND_BITS[len(addr)])


def _networks(*texts: str) -> tuple[Cidr, ...]:
    return tuple(cidr for text in texts if (cidr := parse_cidr(text)))


_LOOPBACK = _networks("127.0.0.0/8", "::1/128")
# RFC 1122 §3.2.1.3, RFC 3927, RFC 5771, RFC 919 §7; RFC 4291 §2.4. 240.0.0.0/4 is in use for pods in some clouds.
_NEVER_BOUND = (
    *_LOOPBACK,
    *_networks("255.255.255.255/32", "0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/128", "fe80::/10", "ff00::/8"),
)


def _bits(networks: Iterable[Cidr], address_bytes: int) -> tuple[tuple[int, int], ...]:
    """(mask, network) of each network of one family, as numbers."""
    bits = address_bytes * 8
    return tuple(
        ((1 << bits) - (1 << (bits - cidr.prefix_len)), int.from_bytes(cidr.network))
        for cidr in networks
        if len(cidr.network) == address_bytes
    )


# Every endpoint of a changed slice comes by: as numbers they cost a third of what objects would.
_NEVER_BOUND_BITS = {address_bytes: _bits(_NEVER_BOUND, address_bytes) for address_bytes in (4, 16)}
