"""What `status -o json` and `-o yaml` write, and its JSON Schema; `--from FILE` reads it back.

The schema is a promise: fields are added, but none is removed, renamed or given another meaning without another
apiVersion. A field that nobody asked for or nobody knows is absent. `python -m ipvsproxy.status.document` writes the
schema to schema.json beside this file, which is part of the package.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.addr import PackedAddr, family_of, format_addr
from ipvsproxy.model.enums import PROTOCOL_NAMES, Family, ForwardingMethod, TunnelType, VirtualServerFlags
from ipvsproxy.model.json_schema import schema_text
from ipvsproxy.model.observed import NO_STATISTICS, IpvsTable, ObservedRealServer, ObservedVirtualServer, Statistics
from ipvsproxy.status.rows import UNKNOWN, RealRow, VirtualRow
from ipvsproxy.status.words import FORWARD_MASK, KERNEL_NAME

Info: TypeAlias = tuple[int, int]  # the kernel's version word (0x010201), the size of its connection table

API_VERSION: Final = "ipvsproxy.io/v1"
KIND: Final = "IpvsStatus"
PATH = Path(__file__).with_name("schema.json")

# What the kernel can hold, and so all that a file may say.
Word: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Weight: TypeAlias = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
KernelName: TypeAlias = Annotated[str, Meta(pattern=f"^{KERNEL_NAME.pattern}$")]
Version: TypeAlias = Annotated[str, Meta(pattern="^([0-9]{1,3}[.]){2}[0-9]{1,3}$")]

_METHODS: dict[int, str] = {method.value: method.name.lower() for method in ForwardingMethod}
_TUNNELS: dict[int, str] = {kind.value: kind.name.lower() for kind in TunnelType}
_PROTOCOL_NUMBERS = {name: number for number, name in PROTOCOL_NAMES.items()}
_FLAGS = {
    VirtualServerFlags.PERSISTENT: "persistent",
    VirtualServerFlags.ONE_PACKET: "one-packet",
    VirtualServerFlags.SCHEDULER_1: "scheduler-1",
    VirtualServerFlags.SCHEDULER_2: "scheduler-2",
    VirtualServerFlags.SCHEDULER_3: "scheduler-3",
}
_FAMILIES = {family.label: family for family in Family}


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Counters(_Part, frozen=True):
    """What passed since the entry was made or zeroed, and the kernel's estimate of each a second."""

    connections: Count
    packets_in: Count
    packets_out: Count
    bytes_in: Count
    bytes_out: Count
    connections_per_second: Count
    packets_in_per_second: Count
    packets_out_per_second: Count
    bytes_in_per_second: Count
    bytes_out_per_second: Count


class Tunnel(_Part, frozen=True):
    """How a tunnel wraps packets; `flags` are the kernel's (IP_VS_TUNNEL_ENCAP_FLAG_*)."""

    type: str
    port: Port
    flags: Word


class RealServerPart(_Part, frozen=True):
    """A real server. `forwardingBits` is the kernel's own word.

    `state`: ready, terminating (it stops and still serves), not-ready, draining (weight 0), or unknown (its Service has
    no such endpoint).
    """

    address: str
    port: Port
    weight: Weight
    forwarding: str
    forwarding_bits: Word
    active_connections: Word
    inactive_connections: Word
    persistent_connections: Word
    upper_threshold: Word
    lower_threshold: Word
    tunnel: Tunnel | UnsetType = UNSET
    state: str | UnsetType = UNSET
    drain_seconds_left: float | UnsetType = UNSET
    pod: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    statistics: Counters | UnsetType = UNSET


class ServicePart(_Part, frozen=True):
    """The Service port behind a virtual server; `portName` is empty where it has none."""

    namespace: str
    name: str
    port: int
    port_name: str


class VirtualServerPart(_Part, frozen=True):
    """A virtual server. With a `firewallMark`, which is 0 otherwise, protocol is empty and port 0.

    `persistenceMask` groups clients: a dotted mask for IPv4, a prefix length for IPv6. `flagBits` is the kernel's own
    word, `flags` what is known of it. `ours`: whether a Service wants it, or connections keep it for one that is gone.
    """

    family: Literal["IPv4", "IPv6"]
    protocol: str
    address: str
    port: Port
    firewall_mark: Word
    scheduler: KernelName
    flags: tuple[str, ...]
    flag_bits: Word
    persistence_seconds: Word
    persistence_mask: str
    persistence_engine: KernelName
    real_servers: tuple[RealServerPart, ...]
    service: ServicePart | UnsetType = UNSET
    ours: bool | UnsetType = UNSET
    statistics: Counters | UnsetType = UNSET


class Head(_Part, frozen=True):
    """All but the virtual servers."""

    api_version: Literal["ipvsproxy.io/v1"]
    kind: Literal["IpvsStatus"]
    ipvs_version: Version
    connection_table_size: Word


class Document(Head, frozen=True):
    """What the kernel's IPVS holds, with what is known of it."""

    virtual_servers: tuple[VirtualServerPart, ...]


def head_of(info: Info) -> Head:
    """The document's head."""
    version, conn_tab_size = info
    return Head(API_VERSION, KIND, ".".join(str(version >> bits & 0xFF) for bits in (16, 8, 0)), conn_tab_size)


def part_of(row: VirtualRow) -> VirtualServerPart:
    """A row as a part of the document."""
    server, owner = row.server, row.owner
    return VirtualServerPart(
        family="IPv4" if server.family is Family.IPV4 else "IPv6",
        protocol="" if server.fwmark else PROTOCOL_NAMES.get(server.protocol, str(server.protocol)),
        address=format_addr(server.address),
        port=server.port,
        firewall_mark=server.fwmark,
        scheduler=server.scheduler,
        flags=tuple(name for bit, name in _FLAGS.items() if server.flags & bit),
        flag_bits=server.flags,
        persistence_seconds=server.timeout_s,
        persistence_mask=_mask_text(server),
        persistence_engine=server.pe_name,
        real_servers=tuple(map(_real_part, row.real_rows)),
        service=ServicePart(owner.namespace, owner.service, owner.port, owner.port_name) if owner else UNSET,
        ours=UNSET if row.is_ours is None else row.is_ours,
        statistics=_counters(server.statistics),
    )


def _real_part(row: RealRow) -> RealServerPart:
    server, endpoint = row.server, row.endpoint
    return RealServerPart(
        address=format_addr(server.address),
        port=server.port,
        weight=server.weight,
        forwarding=_METHODS.get(server.conn_flags & FORWARD_MASK, UNKNOWN),
        forwarding_bits=server.conn_flags,
        active_connections=server.active,
        inactive_connections=server.inactive,
        persistent_connections=server.persistent,
        upper_threshold=server.upper_threshold,
        lower_threshold=server.lower_threshold,
        tunnel=_tunnel(server),
        state=row.state or UNSET,
        drain_seconds_left=UNSET if row.left_s is None else row.left_s,
        pod=(endpoint and endpoint.pod) or UNSET,
        node=(endpoint and endpoint.node) or UNSET,
        zone=(endpoint and endpoint.zone) or UNSET,
        statistics=_counters(server.statistics),
    )


def _tunnel(server: ObservedRealServer) -> Tunnel | UnsetType:
    if server.tun_type or server.tun_port or server.tun_flags:
        return Tunnel(_TUNNELS.get(server.tun_type, str(server.tun_type)), server.tun_port, server.tun_flags)
    return UNSET


def _counters(statistics: Statistics) -> Counters | UnsetType:
    return UNSET if statistics is NO_STATISTICS else Counters(*msgspec.structs.astuple(statistics))


def _mask_text(server: ObservedVirtualServer) -> str:
    return format_addr(server.netmask) if server.family is Family.IPV4 else str(_prefix_len(server.netmask))


def _prefix_len(netmask: bytes) -> int:
    return int.from_bytes(netmask, sys.byteorder)


def json_text(info: Info, rows: Iterable[VirtualRow]) -> Iterator[str]:
    """The document in pieces that are to be joined by line ends."""
    head = msgspec.json.format(msgspec.json.encode(head_of(info)), indent=2).decode().removesuffix("\n}")
    before = f'{head},\n  "virtualServers": ['
    end = "]\n}"
    for row in rows:
        yield before
        text = msgspec.json.format(msgspec.json.encode(part_of(row)), indent=2).decode()
        before, end = "\n".join(f"    {line}" for line in text.split("\n")) + ",", "\n  ]\n}"
    yield before.removesuffix(",") + end


def json_line(info: Info, rows: Iterable[VirtualRow]) -> Iterator[str]:
    """The document as one line, for who reads one after the other."""
    head = msgspec.json.encode(head_of(info)).decode().removesuffix("}")
    parts = ",".join(msgspec.json.encode(part_of(row)).decode() for row in rows)
    yield f'{head},"virtualServers":[{parts}]}}'


def yaml_text(info: Info, rows: Iterable[VirtualRow]) -> Iterator[str]:
    """The document as YAML, in pieces that are to be joined by line ends."""
    yield _yaml(msgspec.to_builtins(head_of(info)))
    is_empty = True
    for row in rows:
        if is_empty:
            yield "virtualServers:"
        is_empty = False
        yield _yaml([msgspec.to_builtins(part_of(row))])
    if is_empty:
        yield "virtualServers: []"


def _yaml(value: object) -> str:
    import yaml  # noqa: PLC0415  # 10 ms that the other formats do without

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where PyYAML was built with it
    text: str = yaml.dump(_lists(value), Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n")


def _lists(value: object) -> object:
    """The same with lists for tuples, which YAML does not have."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def read_table(text: str) -> IpvsTable:
    """What a document in JSON says that the kernel held, its statistics included. Raises IpvsproxyError."""
    try:
        document = msgspec.json.decode(text, type=Document)
        major, minor, patch = (int(number) for number in document.ipvs_version.split("."))
        servers = tuple(map(_observed, document.virtual_servers))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise IpvsproxyError("cannot understand the file", str(error), "Give what `status -o json` wrote") from error
    return IpvsTable(major << 16 | minor << 8 | patch, document.connection_table_size, servers)


def _observed(part: VirtualServerPart) -> ObservedVirtualServer:
    family = _FAMILIES[part.family]
    return ObservedVirtualServer(
        family=family,
        protocol=_number(part.protocol, _PROTOCOL_NUMBERS),
        address=_packed_of(part.address, family),
        port=part.port,
        fwmark=part.firewall_mark,
        scheduler=part.scheduler,
        flags=part.flag_bits,
        timeout_s=part.persistence_seconds,
        netmask=_netmask(part.persistence_mask, family),
        pe_name=part.persistence_engine,
        real_servers=tuple(map(_observed_real, part.real_servers)),
        statistics=_statistics(part.statistics),
    )


def _observed_real(part: RealServerPart) -> ObservedRealServer:
    tunnel = part.tunnel or Tunnel("ipip", 0, 0)
    return ObservedRealServer(
        address=_packed(part.address),
        port=part.port,
        conn_flags=part.forwarding_bits,
        weight=part.weight,
        upper_threshold=part.upper_threshold,
        lower_threshold=part.lower_threshold,
        active=part.active_connections,
        inactive=part.inactive_connections,
        persistent=part.persistent_connections,
        tun_type=_number(tunnel.type, {name: number for number, name in _TUNNELS.items()}),
        tun_port=tunnel.port,
        tun_flags=tunnel.flags,
        statistics=_statistics(part.statistics),
    )


def _statistics(counters: Counters | UnsetType) -> Statistics:
    return Statistics(*msgspec.structs.astuple(counters)) if isinstance(counters, Counters) else NO_STATISTICS


def _number(word: str, numbers: dict[str, int]) -> int:
    """The number of a known word; of another its own value, empty meaning 0."""
    if word in numbers:
        return numbers[word]
    if word.isdecimal() or not word:
        return int(word or 0)
    raise ValueError(f"{word!r} is neither {', '.join(numbers)} nor a number")


def _packed(text: str) -> PackedAddr:
    """Not parse_addr: it makes an IPv4 address of a mapped IPv6 one, while the kernel keeps the two apart."""
    return PackedAddr(ipaddress.ip_address(text).packed)


def _packed_of(text: str, family: Family) -> PackedAddr:
    address = _packed(text)
    if family_of(address) is not family:
        raise ValueError(f"{text!r} is not an {family.label} address")
    return address


def _netmask(text: str, family: Family) -> bytes:
    if family is Family.IPV4:
        return _packed_of(text, family)
    return _number(text, {}).to_bytes(4, sys.byteorder)


if __name__ == "__main__":
    PATH.write_text(schema_text(Document), encoding="utf-8")
