"""Every endpoint of a Service with the reason why it is used or not, as the planner decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ipvsproxy.cluster.endpoints import Verdict, verdict
from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice, Whereabouts
from ipvsproxy.inspect.evidence import Evidence
from ipvsproxy.model.addr import PackedAddr, format_endpoint
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.service import endpoints_of_ports, needed_flags

_UNKNOWN = Whereabouts("", "", "")
_TITLE = ("endpoint", "node", "behind cluster IPs", "behind other addresses")
_SHORT_TITLE = ("endpoint", "node", "", "")


def endpoint_lines(view: ServiceView, slices: Sequence[CompactSlice], evidence: Evidence) -> Iterator[str]:
    """A table for each port and family, without newlines. One column where both kinds of addresses agree."""
    where = _whereabouts(slices)
    for port, family, found in endpoints_of_ports(view, slices, evidence.host.zone, evidence.options.families):
        yield f"Port {port!s}, {family.label}"
        yield from _table(view, found, where) if found else [f"  {_no_endpoint(port, family, slices)}"]
        yield ""


def _table(
    view: ServiceView, found: Mapping[tuple[PackedAddr, int], int], where: Mapping[PackedAddr, Whereabouts]
) -> Iterator[str]:
    needs = needed_flags(view, found)
    rows = [_TITLE]
    for (address, number), flags in sorted(found.items()):
        place = where.get(address, _UNKNOWN)
        internal, external = (_reason(verdict(flags, needed), place) for needed in needs)
        rows.append((format_endpoint(address, number), place.node or "-", internal, external))
    if all(internal == external for _, _, internal, external in rows[1:]):
        yield from columns([row[:3] for row in (_SHORT_TITLE, *rows[1:])])
    else:
        yield from columns(rows)


def _reason(found: Verdict, place: Whereabouts) -> str:
    """The verdict; policy Local takes an endpoint whose node the cluster does not say for one that is elsewhere."""
    if found is Verdict.OTHER_NODE and not place.node:
        return "its node is not known, policy Local"
    if found is Verdict.HINTED_ZONE and place.zone:
        return f"{found}, is in {place.zone}"
    return found.value


def _whereabouts(slices: Sequence[CompactSlice]) -> dict[PackedAddr, Whereabouts]:
    return {
        address: place for piece in slices for (address, _), place in zip(piece.records(), piece.names, strict=False)
    }


def _no_endpoint(port: ServicePort, family: Family, slices: Sequence[CompactSlice]) -> str:
    if any(piece.family is family and piece.endpoints for piece in slices):
        name = f'"{port.name}"' if port.name else "none"
        return f"no endpoint: no EndpointSlice has a port of this name ({name}) and protocol"
    return "no endpoint: there is none in this family's EndpointSlices"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines whose cells stand below each other, two blanks in front."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
