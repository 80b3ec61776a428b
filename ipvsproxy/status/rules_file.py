"""A table from the rules that `ipvsadm -S` wrote: what `ipvsadm -R` would make of an empty kernel.

Lines may begin with the word ipvsadm, empty ones and comments do not count. Rules do not tell everything: version and
connection table are those of any current kernel, connections and counters are 0. Source: ipvsadm 1.31, ipvsadm.c
process_options, config_stream.c.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, TunnelFlags, TunnelType, VirtualServerFlags
from ipvsproxy.model.observed import (
    IpvsTable,
    ObservedRealServer,
    ObservedVirtualServer,
    ServiceName,
    full_netmask,
)
from ipvsproxy.status import option_values, selectors
from ipvsproxy.status.endpoints import Resolver
from ipvsproxy.status.figures import signed, unsigned
from ipvsproxy.status.option_words import OptionWords, Refused, Token
from ipvsproxy.status.source import mark_name
from ipvsproxy.status.words import FLAG_BITS, KERNEL_NAME

VERSION: Final = 0x010201
CONN_TAB_SIZE: Final = 4096  # CONFIG_IP_VS_TAB_BITS=12

_SCHEDULER = "wlc"
_PERSISTENCE_S = "300"
_METHODS = {"m": ForwardingMethod.MASQ, "i": ForwardingMethod.TUNNEL, "g": ForwardingMethod.ROUTE}
_TUNNELS = {"ipip": TunnelType.IPIP, "gue": TunnelType.GUE, "gre": TunnelType.GRE}
_CHECKSUMS = {"tun-csum": TunnelFlags.CHECKSUM, "tun-remcsum": TunnelFlags.REMOTE_CHECKSUM}

_PORTS = range(1 << 16)
_NUMBERS = range(-(1 << 31), 1 << 32)  # 32 bits as ipvsadm writes them, some of them with a sign

_REASON_CHARS = 200  # a file that is no table may be one line

_Given = Mapping[str, Token]


def read_rules(text: str, resolver: Resolver) -> IpvsTable:
    """The table, in the file's order; `resolver` for rules with names. Raises IpvsproxyError, naming the line."""
    reader = _Reader(resolver)
    for number, line in enumerate(text.splitlines(), start=1):
        words = [word for word in line.split() if word != "ipvsadm"]
        if words and not words[0].startswith("#"):
            try:
                reader.take(words)
            except (Refused, ValueError) as error:
                hint = "Give what `ipvsadm -S -n` wrote"
                raise IpvsproxyError(f"cannot understand line {number}", str(error)[:_REASON_CHARS], hint) from error
    return reader.table()


class _Reader:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._servers: dict[ServiceName, ObservedVirtualServer] = {}
        self._real_servers: dict[ServiceName, list[ObservedRealServer]] = {}

    def take(self, words: list[str]) -> None:
        """One rule. Raises Refused, ValueError."""
        if words[-1] == "-b":  # the flags of sh or mh that have no name
            words.append("")
        given = _given(words)
        name = self._name(given)
        if "add-service" in given:
            self._servers[name] = _virtual_server(name, given, self._resolver)
            self._real_servers.setdefault(name, [])
        elif "add-server" in given:
            if name not in self._servers:
                raise ValueError("no line above adds this virtual server")
            self._real_servers[name].append(self._real_server(name, given))
        else:
            raise ValueError("a rule begins with -A or -a")

    def table(self) -> IpvsTable:
        """What was taken."""
        servers = (
            msgspec.structs.replace(server, real_servers=tuple(self._real_servers[name]))
            for name, server in self._servers.items()
        )
        return IpvsTable(VERSION, CONN_TAB_SIZE, tuple(servers))

    def _name(self, given: _Given) -> ServiceName:
        selector = given.get("service-address")
        if selector is None:
            raise ValueError("it names no virtual server")
        if selector.option.short == "f":
            mark = unsigned(_number(given, "service-address"))
            if not mark:
                raise ValueError("0 is no firewall mark")
            return mark_name(mark, Family.IPV6 if "ipv6" in given else Family.IPV4)
        protocol = selectors.PROTOCOLS[selector.option.long]
        address, port = self._address(selector.value or "", protocol)
        return ServiceName(family_of(address), protocol, address, port)

    def _real_server(self, name: ServiceName, given: _Given) -> ObservedRealServer:
        address, port = self._address(_text(given, "real-server", ""), name.protocol or Protocol.TCP)
        forward = given.get("forwarding-method")
        return ObservedRealServer(
            address,
            port,
            conn_flags=_METHODS[forward.option.short] if forward else ForwardingMethod.ROUTE,
            weight=signed(_number(given, "weight", "1")),
            upper_threshold=unsigned(_number(given, "u-threshold")),
            lower_threshold=unsigned(_number(given, "l-threshold")),
            tun_type=_TUNNELS[_text(given, "tun-type", "ipip")],
            tun_port=_number(given, "tun-port", allowed=_PORTS),
            tun_flags=sum(bit for option, bit in _CHECKSUMS.items() if option in given),
        )

    def _address(self, text: str, protocol: int) -> tuple[PackedAddr, int]:
        found = selectors.service_address(text, Protocol(protocol), self._resolver)
        if found is None:
            raise ValueError(f"{text!r} is no address and port")
        return found


def _virtual_server(name: ServiceName, given: _Given, resolver: Resolver) -> ObservedVirtualServer:
    return ObservedVirtualServer(
        family=name.family,
        protocol=name.protocol,
        address=name.address,
        port=name.port,
        fwmark=name.fwmark,
        scheduler=_word(given, "scheduler", _SCHEDULER),
        flags=_flags(given),
        timeout_s=unsigned(_number(given, "persistent", _PERSISTENCE_S)) if "persistent" in given else 0,
        netmask=_netmask(name.family, given, resolver),
        pe_name=_word(given, "pe", ""),
    )


def _flags(given: _Given) -> int:
    flags = int(VirtualServerFlags.HASHED)
    if "persistent" in given:
        flags |= VirtualServerFlags.PERSISTENT
    if "ops" in given:
        flags |= VirtualServerFlags.ONE_PACKET
    if "sched-flags" not in given:
        return flags
    text = _text(given, "sched-flags", "")
    option_values.check_scheduler_flags(text, _text(given, "scheduler", _SCHEDULER))
    named = [FLAG_BITS[name][0] for name in filter(None, text.split(","))]
    return flags | (sum(named) or int(VirtualServerFlags.SCHEDULER_3))


def _netmask(family: Family, given: _Given, resolver: Resolver) -> bytes:
    if "netmask" not in given:
        return full_netmask(family)
    if family is Family.IPV6:
        return unsigned(_number(given, "netmask")).to_bytes(4, sys.byteorder)
    text = _text(given, "netmask", "")
    mask = selectors.ipv4_address(text, resolver)
    if mask is None:
        raise ValueError(f"{text!r} is no netmask")
    return mask


def _given(words: list[str]) -> _Given:
    """The options of a rule by their meaning. Raises Refused, ValueError for what -R would refuse as well."""
    options = OptionWords(words)
    given: dict[str, Token] = {}
    for token in options:
        if token.option.meaning in given:
            raise ValueError(f"multiple '{token.option.meaning}' options")
        if token.option.meaning == "tun-type":
            option_values.check("tun-type", token.value or "")
        given[token.option.meaning] = token
    if options.left_over:
        raise ValueError(f"unexpected argument {options.left_over[0]!r}")
    return given


def _number(given: _Given, name: str, default: str = "0", allowed: range = _NUMBERS) -> int:
    text = _text(given, name, default)
    found = selectors.number(text, allowed)
    if found is None:
        raise ValueError(f"{text!r} is no {name}")
    return found


def _word(given: _Given, name: str, default: str) -> str:
    """The name of a part of the kernel."""
    text = _text(given, name, default)
    if not KERNEL_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no {name}")
    return text


def _text(given: _Given, name: str, default: str) -> str:
    token = given.get(name)
    return default if token is None or token.value is None else token.value
