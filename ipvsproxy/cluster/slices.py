"""EndpointSlices, made compact on arrival: one sorted `bytes` a slice instead of an object for each endpoint.

A record is the address (4 or 16 bytes, network order) and one byte of flags: 5 or 17 bytes an endpoint, against about
890 as decoded objects. All ports of a slice share its endpoints, so the blob is held once. Equal blobs mean equal
endpoints: an event that changes nothing we read costs one comparison. Hints for nodes shrink to two flags, for our
node's name is known when the slice arrives; its zone may change later, so hints for zones stay names. What people call
an endpoint, which only `status --names` reads, is a line of text.
Source: kubernetes v1.37.2 pkg/proxy/endpointslicecache.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

import msgspec

from ipvsproxy.model.addr import PackedAddr, is_bindable, parse_addr
from ipvsproxy.model.api_objects import Endpoint, EndpointSlice
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.names import LABEL_HEADLESS, LABEL_SERVICE_NAME, ServiceName
from ipvsproxy.model.notes import Note, gather

_MAX_PORT = 0xFFFF
_FAMILIES = {family.label: family for family in Family}
_HINT = "Correct the EndpointSlice; what is not named here is in force"


class EndpointFlags(IntFlag):
    """The last byte of a record. LOCAL: on our own node. The ZONE flags depend on our zone and are in no record."""

    NONE = 0
    READY = 0x01
    SERVING = 0x02
    TERMINATING = 0x04
    LOCAL = 0x08
    HINTS_NODE = 0x10  # meant for clients on certain nodes,
    FOR_OUR_NODE = 0x20  # and ours is one of them
    HINTS_ZONE = 0x40
    FOR_OUR_ZONE = 0x80


# Plain integers for the compaction: an IntFlag's `|` costs a microsecond, more than the rest of an endpoint.
_READY, _SERVING, _TERMINATING, _LOCAL, _HINTS_NODE, _FOR_OUR_NODE, _HINTS_ZONE, _FOR_OUR_ZONE = (
    flag.value for flag in EndpointFlags
)


class SlicePort(NamedTuple):
    """One port of a slice: matched to a service port by name and protocol, it brings the real servers' port number."""

    name: str
    protocol: Protocol
    port: int


class Whereabouts(NamedTuple):
    """What people call an endpoint, empty where the cluster does not say: its pod, its node and that one's zone."""

    pod: str
    node: str
    zone: str


class EndpointNames(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The whereabouts of a slice's endpoints as one text, a line each in the order of the records.

    No plan depends on them. So any two are equal: an event that brings nothing but another name is no change.
    """

    text: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EndpointNames)

    def __hash__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Whereabouts]:
        return (Whereabouts(*line.split("\t")) for line in self.text.split("\n")) if self.text else iter(())


class CompactSlice(msgspec.Struct, frozen=True, gc=False):
    """What we keep of one slice. `endpoints` holds each address once, sorted; see the module's first lines.

    `zones` has the names that each endpoint is meant for, in the same order; it is empty where no endpoint has any.
    """

    service: ServiceName
    family: Family
    ports: tuple[SlicePort, ...]
    endpoints: bytes
    zones: tuple[tuple[str, ...], ...] = ()
    names: EndpointNames = EndpointNames()

    def records(self, zone: str = "") -> Iterator[tuple[PackedAddr, int]]:
        """(address, EndpointFlags as a number) of each endpoint, sorted by address; `zone` is our node's."""
        size = self.family.host_prefix_len // 8
        for index, at in enumerate(range(0, len(self.endpoints), size + 1)):
            flags = self.endpoints[at + size]
            if self.zones and self.zones[index]:
                flags |= _HINTS_ZONE | (_FOR_OUR_ZONE if zone in self.zones[index] else 0)
            yield PackedAddr(self.endpoints[at : at + size]), flags


def compact_slice(endpoint_slice: EndpointSlice, node_name: str) -> tuple[CompactSlice | None, tuple[Note, ...]]:
    """The compact form, and at most one note on what was left out of it; `node_name` is ours.

    None without a note where the slice is of no use by intent: of a headless Service, or of names instead of addresses.
    """
    metadata = endpoint_slice.metadata
    faults: list[str] = []
    compact = _compact(endpoint_slice, node_name, faults)
    return compact, gather(f"EndpointSlice {metadata.namespace}/{metadata.name}", faults, _HINT)


def _compact(endpoint_slice: EndpointSlice, node_name: str, faults: list[str]) -> CompactSlice | None:
    metadata = endpoint_slice.metadata
    labels = metadata.labels or {}
    if LABEL_HEADLESS in labels or endpoint_slice.address_type == "FQDN":
        return None
    service = ServiceName(metadata.namespace, labels.get(LABEL_SERVICE_NAME, ""))
    if not service.name or not service.namespace or not metadata.name:
        faults.append(f"metadata.name, metadata.namespace or the label {LABEL_SERVICE_NAME} is missing")
        return None
    family = _FAMILIES.get(endpoint_slice.address_type)
    if family is None:
        faults.append(f'addressType: "{endpoint_slice.address_type}" is not IPv4, IPv6 or FQDN')
        return None
    ports = tuple(dict.fromkeys(_ports(endpoint_slice, faults)))
    return CompactSlice(service, family, ports, *_records(endpoint_slice.endpoints or (), family, node_name, faults))


def _ports(endpoint_slice: EndpointSlice, faults: list[str]) -> Iterator[SlicePort]:
    """The ports that are right. A missing name is empty, a missing protocol TCP: the API server's defaults."""
    for index, entry in enumerate(endpoint_slice.ports or ()):
        protocol = Protocol.__members__.get(entry.protocol or "TCP")
        if protocol is None:
            faults.append(f'ports[{index}].protocol: "{entry.protocol}" is not TCP, UDP or SCTP')
        elif entry.port is None:
            faults.append(f"ports[{index}].port is missing; a slice for all ports is not supported")
        elif not 0 < entry.port <= _MAX_PORT:
            faults.append(f"ports[{index}].port: {entry.port} is not in 1..65535")
        else:
            yield SlicePort(entry.name or "", protocol, entry.port)


def _records(
    endpoints: tuple[Endpoint, ...], family: Family, node_name: str, faults: list[str]
) -> tuple[bytes, tuple[tuple[str, ...], ...], EndpointNames]:
    """The records, sorted; the zones that their endpoints are meant for; and what people call them."""
    found: dict[PackedAddr, tuple[int, tuple[str, ...]]] = {}
    chosen: dict[PackedAddr, Endpoint] = {}
    for index, endpoint in enumerate(endpoints):
        addr = _address(endpoint, family, index, faults)
        if addr is None:
            continue
        hinted = tuple(sorted(hint.name for hint in endpoint.hints.for_zones or ())) if endpoint.hints else ()
        record = _flags(endpoint, node_name), hinted
        if addr not in found or _preference(record) > _preference(found[addr]):
            found[addr], chosen[addr] = record, endpoint
    addresses = sorted(found)
    blob = b"".join([addr + found[addr][0].to_bytes() for addr in addresses])
    zones = tuple(found[addr][1] for addr in addresses)
    return blob, zones if any(zones) else (), EndpointNames("\n".join([_name(chosen[addr]) for addr in addresses]))


def _name(endpoint: Endpoint) -> str:
    """A line of EndpointNames; who writes tabs or line ends into a name of a folder's object gets none shown."""
    pod = endpoint.target_ref.name if endpoint.target_ref else ""
    names = (pod, endpoint.node_name or "", endpoint.zone or "")
    return "\t".join(names) if all(map(str.isprintable, names)) else "\t\t"


def _address(endpoint: Endpoint, family: Family, index: int, faults: list[str]) -> PackedAddr | None:
    """The first address: the others have had no meaning since discovery/v1."""
    text = endpoint.addresses[0] if endpoint.addresses else ""
    addr = parse_addr(text)
    if addr is None or len(addr) * 8 != family.host_prefix_len:
        faults.append(f'endpoints[{index}].addresses[0]: "{text}" is not an {family.label} address')
        return None
    if not is_bindable(addr):
        faults.append(f"endpoints[{index}].addresses[0]: {text} is loopback, link-local, multicast or unspecified")
        return None
    return addr


def _flags(endpoint: Endpoint, node_name: str) -> int:
    """What the conditions say, missing ones meaning ready, serving and not terminating; and the hints for nodes."""
    conditions = endpoint.conditions
    flags = _LOCAL if node_name and endpoint.node_name == node_name else 0
    if endpoint.hints is not None and endpoint.hints.for_nodes:
        flags |= _HINTS_NODE
        if any(hint.name == node_name for hint in endpoint.hints.for_nodes):
            flags |= _FOR_OUR_NODE
    if conditions is None:
        return flags | _READY | _SERVING
    if conditions.ready is not False:
        flags |= _READY
    if conditions.serving is not False:
        flags |= _SERVING
    return flags | _TERMINATING if conditions.terminating else flags


def preferred_flags(one: int, other: int) -> int:
    """Of two records for one address and port the one that counts: not terminating first, then the readier one.

    Upstream lets the last of several non-terminating ones win, in no order; here every order gives the same answer.
    """
    return max((one, ()), (other, ()), key=_preference)[0]


def _preference(record: tuple[int, tuple[str, ...]]) -> tuple[object, ...]:
    """How much a record (flags, zones) counts; records that differ never count alike."""
    flags, zones = record
    return not flags & _TERMINATING, flags & _READY, flags & _SERVING, flags & _LOCAL, flags, zones
