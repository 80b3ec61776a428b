"""EndpointSlices → the endpoints that a Service port uses on this node.

Two lists come out of one walk: those that any client may be sent to, narrowed by topology hints, and those on this
node. In each, endpoints that stop but still serve stand in where none is ready, so that a rolling update does not leave
a gap (KEP-1669).

What is decided for all endpoints together is a few flags that one must have to be used; so the reason why one is not is
the flag that it lacks, and to tell it takes no second opinion (`explain`).
Source: kubernetes v1.37.2 pkg/proxy/{endpointslicecache,topology}.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TypeAlias

from ipvsproxy.cluster.services import ServicePort
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, preferred_flags
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family, Protocol

Target: TypeAlias = tuple[PackedAddr, int]  # address and port
Targets: TypeAlias = tuple[Target, ...]

# Plain integers: an IntFlag's `&` costs ten times an int's.
_READY, _LOCAL = int(EndpointFlags.READY), int(EndpointFlags.LOCAL)
_SERVING, _TERMINATING = int(EndpointFlags.SERVING), int(EndpointFlags.TERMINATING)
_FOR_OUR_NODE, _FOR_OUR_ZONE = int(EndpointFlags.FOR_OUR_NODE), int(EndpointFlags.FOR_OUR_ZONE)
_STANDS_IN = _SERVING | _TERMINATING
_READY_HERE = _READY | _LOCAL
_HINTS = (  # what all ready endpoints must have for a level to hold, and what an endpoint is used by; nearest first
    (int(EndpointFlags.HINTS_NODE), _FOR_OUR_NODE),
    (int(EndpointFlags.HINTS_ZONE), _FOR_OUR_ZONE),
)


class Verdict(StrEnum):
    """Why an endpoint is used, or is not."""

    USED = "used"
    STANDS_IN = "used: terminating, but none is ready"
    NOT_READY = "not ready"
    TERMINATING = "terminating"
    STOPPED = "terminating, serves no more"
    OTHER_NODE = "on another node, policy Local"
    HINTED_NODE = "hinted to other nodes"
    HINTED_ZONE = "hinted to other zones"

    @property
    def is_used(self) -> bool:
        """Whether clients are sent there."""
        return self in {Verdict.USED, Verdict.STANDS_IN}


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


def needed(found: Mapping[Target, int]) -> int:
    """The EndpointFlags that an endpoint must all have for any client to be sent to it.

    Ready ones, those that hints leave; where none is ready, those that stop but still serve.
    """
    shared, some = ~0, 0  # what all ready endpoints have, and what some of them have
    for flags in found.values():
        if flags & _READY:
            shared &= flags
            some |= flags
    if not some:
        return _STANDS_IN
    for hinted, ours in _HINTS:
        if shared & hinted and some & ours:
            return _READY | ours
    return _READY


def needed_here(found: Mapping[Target, int]) -> int:
    """The same for clients that must stay on this node; hints never narrow them."""
    is_ready = any(flags & _READY_HERE == _READY_HERE for flags in found.values())
    return _READY_HERE if is_ready else _STANDS_IN | _LOCAL


def having(found: Mapping[Target, int], needed_flags: int) -> Targets:
    """Those that have all of these flags."""
    return tuple(target for target, flags in found.items() if flags & needed_flags == needed_flags)


def verdict(flags: int, needed_flags: int) -> Verdict:
    """Why an endpoint with these flags is used, or is not, where those are needed: by the first flag that it lacks."""
    lacks = needed_flags & ~flags
    if not lacks:
        return Verdict.STANDS_IN if needed_flags & _TERMINATING else Verdict.USED
    if lacks & _LOCAL:
        return Verdict.OTHER_NODE
    if lacks & (_READY | _STANDS_IN):
        return _not_ready(flags)
    return Verdict.HINTED_NODE if lacks & _FOR_OUR_NODE else Verdict.HINTED_ZONE


def _not_ready(flags: int) -> Verdict:
    if not flags & _TERMINATING:
        return Verdict.NOT_READY
    return Verdict.TERMINATING if flags & _SERVING else Verdict.STOPPED


def here(found: Mapping[Target, int]) -> Targets:
    """Those on this node, in whatever state."""
    return tuple(target for target, flags in found.items() if flags & _LOCAL)


def _numbers(piece: CompactSlice, name: str, protocol: Protocol) -> Iterator[int]:
    for port_name, port_protocol, number in piece.ports:
        if port_name == name and port_protocol == protocol:
            yield number
