"""IPVS as /proc/net/ip_vs shows it: all virtual and real servers in one read, at an eighth of what netlink costs.

    TCP  0A600014:0050 rr persistent 15000 FFFFFFFF
      -> 0AF40105:1F90      Masq    1      2          0

It shows neither scheduler flags nor thresholds, and persistence in jiffies, so it tells whether something is other than
believed; what it is then, netlink tells. What that leaves out is left out here too (see ipvs.py). Source:
net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_show.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from ipvsproxy.errors import KernelError
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import ForwardingMethod, Protocol
from ipvsproxy.model.kernel_objects import VirtualServerKey
from ipvsproxy.model.observed import SurveyedServer

PROC_NET_IP_VS = Path("/proc/net/ip_vs")
_PROTOCOLS = {protocol.name: protocol for protocol in Protocol}
_METHODS = {
    "Masq": ForwardingMethod.MASQ,
    "Local": ForwardingMethod.LOCAL,
    "Tunnel": ForwardingMethod.TUNNEL,
    "Route": ForwardingMethod.ROUTE,
}
_TITLE_LINES = 3
_IPV6_BYTES = 16
_ADDRESS_BYTES = frozenset({4, _IPV6_BYTES})

# The columns of a real server's line: "  -> %08X:%04X      %-7s %-6d …" or "  -> [%pI6]:%04X      %-7s %-6d …".
_ENDPOINT_AT = 5
_IPV4_ENDPOINT, _IPV4_TAIL = slice(5, 18), slice(24, 39)
_IPV6_ENDPOINT, _IPV6_TAIL = slice(5, 51), slice(57, 72)


def survey(path: Path = PROC_NET_IP_VS) -> dict[VirtualServerKey, SurveyedServer]:
    """Every virtual server that `read` tells. Raises KernelError where the file cannot be read or understood."""
    try:
        lines = path.read_bytes().decode("ascii", "replace").removesuffix("\n").split("\n")
    except OSError as error:
        raise KernelError(f"cannot read {path}", error.errno or errno.EIO) from error
    try:
        return _parse(lines[_TITLE_LINES:])
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise KernelError(f"cannot understand {path}", errno.EBADMSG, why=repr(error)) from error


def _parse(lines: Iterable[str]) -> dict[VirtualServerKey, SurveyedServer]:
    found: dict[VirtualServerKey, SurveyedServer] = {}
    key: VirtualServerKey | None = None
    scheduler, is_persistent = "", False
    takes_ipv6: bool | None = None  # neither family's real servers, where the virtual server is left out
    records: list[str] = []
    tails = _Tails()
    for line in lines:
        if line[0] == " ":
            # Ten thousand lines come by here: by columns a line costs half of what splitting it would.
            is_ipv6 = line[_ENDPOINT_AT] == "["
            if is_ipv6 is not takes_ipv6:
                continue
            if not is_ipv6:
                records.append(line[_IPV4_ENDPOINT] + tails[line[_IPV4_TAIL]])
            else:
                records.append(line[_IPV6_ENDPOINT] + tails[line[_IPV6_TAIL]])
            continue
        if key is not None:
            found[key] = SurveyedServer(scheduler, is_persistent, _join(records))
        words = line.split()
        key = _key(words) if words[0] in _PROTOCOLS else None  # FWM, a firewall mark's, or IP_50
        takes_ipv6 = None if key is None else len(key.address) == _IPV6_BYTES
        scheduler, is_persistent, records = words[2], "persistent" in words, []
    if key is not None:
        found[key] = SurveyedServer(scheduler, is_persistent, _join(records))
    return found


class _Tails(dict[str, str]):
    """The columns of forwarding method and weight → how a record ends, in hexadecimal. Nearly all lines end alike.

    A weight of eight digits has lost its last ones: it is beyond what a record holds in any case.
    """

    def __missing__(self, columns: str) -> str:
        method, weight = columns.split()
        tail = self[columns] = f"{min(int(weight), 0xFFFF):04X}{_METHODS[method]:02X}"
        return tail


def _key(words: list[str]) -> VirtualServerKey:
    endpoint = bytes.fromhex(_digits(words[1]))
    address = PackedAddr(endpoint[:-2])
    if len(address) not in _ADDRESS_BYTES:
        raise ValueError(words[1])
    return VirtualServerKey(_PROTOCOLS[words[0]], address, int.from_bytes(endpoint[-2:]))


def _join(records: list[str]) -> bytes:
    """The blob of these records, whose text sorts as the bytes that it stands for."""
    return bytes.fromhex(_digits("".join(sorted(records))))


def _digits(text: str) -> str:
    """`0A600014:0050` or `[fd00:0000:…:0001]:0050` with blanks for its punctuation, which `fromhex` passes over."""
    return text.replace(":", " ").replace("[", " ").replace("]", " ")
