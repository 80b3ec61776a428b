"""IPVS states as JSON, in the form of tests/data/ipvsadm/NAME.state.json, read as what a dump of the kernel gives."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import IpvsTable, ObservedRealServer, ObservedVirtualServer, full_netmask

_REAL_SERVER_FIELDS = {
    "fwd": "conn_flags",
    "weight": "weight",
    "u_thresh": "upper_threshold",
    "l_thresh": "lower_threshold",
    "active": "active",
    "inactive": "inactive",
    "persist": "persistent",
    "tun_type": "tun_type",
    "tun_port": "tun_port",
    "tun_flags": "tun_flags",
}


def observed_table(state: Mapping[str, Any]) -> IpvsTable:
    """The table that a dump of `state` would give."""
    servers = tuple(_virtual_server(service) for service in state["services"])
    return IpvsTable(state.get("version", 0x10201), state.get("conn_tab_size", 4096), servers)


def _virtual_server(service: Mapping[str, Any]) -> ObservedVirtualServer:
    family = Family(service["af"])
    mask = bytes.fromhex(service["netmask_hex"]) if "netmask_hex" in service else full_netmask(family)
    return ObservedVirtualServer(
        family=family,
        protocol=service.get("protocol", 0),
        address=_packed(family, service.get("addr", "0.0.0.0" if family is Family.IPV4 else "::")),
        port=service.get("port", 0),
        fwmark=service.get("fwmark", 0),
        scheduler=service.get("sched", "rr"),
        flags=service.get("flags", 2),
        timeout_s=service.get("timeout", 0),
        netmask=mask,
        pe_name=service.get("pe", ""),
        real_servers=tuple(_real_server(dest) for dest in service.get("dests", [])),
    )


def _real_server(dest: Mapping[str, Any]) -> ObservedRealServer:
    fields = {field: dest[name] for name, field in _REAL_SERVER_FIELDS.items() if name in dest}
    return ObservedRealServer(address=_packed(Family(dest["af"]), dest["addr"]), port=dest["port"], **fields)


def _packed(family: Family, text: str) -> PackedAddr:
    # Not parse_addr: it makes an IPv4 address of a mapped IPv6 one, while the kernel keeps the two apart.
    return PackedAddr(socket.inet_pton(family, text))
