"""EndpointSlices → the endpoints that a Service port uses on this node.

Two lists come out of one walk: those that any client may be sent to, narrowed by topology hints, and those on this
node. In each, endpoints that stop but still serve stand in where none is ready, so that a rolling update does not leave
a gap (KEP-1669).
Source: kubernetes v1.37.2 pkg/proxy/{endpointslicecache,topology}.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from ipvsproxy.cluster.services import ServicePort
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, preferred_flags
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family, Protocol

Target: TypeAlias = tuple[PackedAddr, int]  # address and port
Targets: TypeAlias = tuple[Target, ...]

# Plain integers: an IntFlag's `&` costs ten times an int's.
_READY, _LOCAL = int(EndpointFlags.READY), int(EndpointFlags.LOCAL)
_STANDS_IN = int(EndpointFlags.SERVING | EndpointFlags.TERMINATING)
_HINTS = (  # what all ready endpoints must have for a level to hold, and what an endpoint is used by; nearest first
    (int(EndpointFlags.HINTS_NODE), int(EndpointFlags.FOR_OUR_NODE)),
    (int(EndpointFlags.HINTS_ZONE), int(EndpointFlags.FOR_OUR_ZONE)),
)


def port_endpoints(
    port: ServicePort, slices: Iterable[CompactSlice], family: Family, zone: str = ""
) -> dict[Target, int]:
    """All endpoints behind `port` with their EndpointFlags as numbers; `zone` is our node's.

    They are matched by port name and protocol; the port number is the slice's. An address that stands in several slices
    counts once.
    """
    found: dict[Target, int] = {}
    for piece in slices:
        if piece.family is not family:
            continue
        for number in _numbers(piece, port.name, port.protocol):
            for address, flags in piece.records(zone):
                before = found.get((address, number))
                found[address, number] = flags if before is None else preferred_flags(before, flags)
    return found


def usable(found: Mapping[Target, int]) -> Targets:
    """Those that any client may be sent to: the ready ones that hints leave, or those that stop but still serve."""
    ready = [(target, flags) for target, flags in found.items() if flags & _READY]
    for hinted, ours in _HINTS:
        if all(flags & hinted for _, flags in ready) and any(flags & ours for _, flags in ready):
            return tuple(target for target, flags in ready if flags & ours)
    return tuple(target for target, _ in ready) or _standing_in(found)


def usable_here(found: Mapping[Target, int]) -> Targets:
    """Those on this node that may be used; hints never narrow them."""
    local = {target: flags for target, flags in found.items() if flags & _LOCAL}
    return tuple(target for target, flags in local.items() if flags & _READY) or _standing_in(local)


def here(found: Mapping[Target, int]) -> Targets:
    """Those on this node, in whatever state."""
    return tuple(target for target, flags in found.items() if flags & _LOCAL)


def _standing_in(found: Mapping[Target, int]) -> Targets:
    """Those that stop and still serve; what neither is ready nor stops is never used."""
    return tuple(target for target, flags in found.items() if flags & _STANDS_IN == _STANDS_IN)


def _numbers(piece: CompactSlice, name: str, protocol: Protocol) -> Iterator[int]:
    for port_name, port_protocol, number in piece.ports:
        if port_name == name and port_protocol == protocol:
            yield number
