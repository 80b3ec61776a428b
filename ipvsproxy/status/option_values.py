"""Values that ipvsadm refuses while it reads its options. Source: ipvsadm 1.31, ipvsadm.c parse_options."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from ipvsproxy.status.option_words import Refused
from ipvsproxy.status.selectors import number
from ipvsproxy.status.words import FLAG_BITS

_LARGEST_INT = (1 << 31) - 1
_LONGEST_S = 31 * 24 * 3600
_LARGEST_DATAGRAM = 65507
_TUNNEL_TYPES = frozenset({"ipip", "gue", "gre"})
_PREFIX_LENGTHS = range(1, 129)
# The first byte, RFC 1112 §4, RFC 4291 §2.7.
_MULTICAST = {socket.AF_INET: range(0xE0, 0xF0), socket.AF_INET6: range(0xFF, 0x100)}


class _Numbers(NamedTuple):
    allowed: range
    refusal: str


_NUMBERS = {
    # Debian's build takes this much; upstream's ends at 65535.
    "weight": _Numbers(range(_LARGEST_INT + 1), "illegal weight specified"),
    "u-threshold": _Numbers(range(_LARGEST_INT + 1), "illegal u_threshold specified"),
    "l-threshold": _Numbers(range(_LARGEST_INT + 1), "illegal l_threshold specified"),
    "persistent": _Numbers(range(1, _LONGEST_S + 1), "invalid timeout value `{}' specified"),
    "syncid": _Numbers(range(256), "illegal syncid specified"),
    "mcast-port": _Numbers(range(1, 1 << 16), "illegal mcast-port specified"),
    "mcast-ttl": _Numbers(range(1, 256), "illegal mcast-ttl specified"),
    "sync-maxlen": _Numbers(range(1, _LARGEST_DATAGRAM + 1), "illegal sync-maxlen specified"),
    "tun-port": _Numbers(range(1, 1 << 16), "illegal tunnel port specified"),
}


def check(name: str, text: str) -> None:
    """Raises Refused for a value that the option of this name cannot have."""
    if name in _NUMBERS:
        if number(text, _NUMBERS[name].allowed) is None:
            raise Refused(_NUMBERS[name].refusal.format(text))
    elif name == "tun-type" and text not in _TUNNEL_TYPES:
        raise Refused("illegal tunnel type specified")
    elif name == "mcast-group":
        _check_multicast(text)


def check_prefix_length(text: str) -> None:
    """An IPv6 netmask is its length, of which C's atoi reads what it can. Raises Refused."""
    digits = re.match(r"[ \t\n\v\f\r]*[+-]?[0-9]{1,99}", text, re.ASCII)
    if (int(digits[0]) if digits else 0) not in _PREFIX_LENGTHS:
        raise Refused("illegal ipv6 netmask specified")


def check_scheduler_flags(text: str | None, scheduler: str) -> None:
    """Raises Refused for a flag that nobody knows, or that another scheduler has."""
    for flag in filter(None, (text or "").split(",")):
        if flag not in FLAG_BITS:
            raise Refused(f"invalid scheduler flag `{flag}'")
        if FLAG_BITS[flag][1] not in {"", scheduler}:
            raise Refused(f"incompatible scheduler flag `{flag}'")


def _check_multicast(text: str) -> None:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        first = socket.inet_pton(family, text)[0]
    except (OSError, ValueError):
        first = 0
    if first not in _MULTICAST[family]:
        raise Refused(f"invalid {'IPv6' if family == socket.AF_INET6 else 'IPv4'} mcast-group `{text}'")
