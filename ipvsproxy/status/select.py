"""Which rows to show: conditions that all must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ipvsproxy.model.addr import Cidr
from ipvsproxy.model.observed import ObservedVirtualServer
from ipvsproxy.status.names import Owner
from ipvsproxy.status.rows import DRAINING, VirtualRow


class WantedService(NamedTuple):
    """A Service by name, and one of its ports by name or number; empty: all of them."""

    namespace: str
    name: str
    port: str = ""


class Frontend(NamedTuple):
    """One virtual server by protocol, address and port, or by firewall mark, in which case the others are 0."""

    protocol: int
    address: bytes
    port: int
    fwmark: int = 0


class Selection(NamedTuple):
    """What was asked for; nothing selects everything.

    `networks`: where a virtual server's address or, if that is elsewhere, a real server's is: then those alone.
    `draining`: virtual servers with real servers at weight 0, and those alone. `empty`: none that gets connections.
    """

    namespace: str = ""
    service: WantedService | None = None
    frontend: Frontend | None = None
    networks: tuple[Cidr, ...] = ()
    draining: bool = False
    empty: bool = False
    not_ours: bool = False

    @property
    def needs_names(self) -> bool:
        """Whether the kernel alone cannot tell."""
        return bool(self.namespace or self.service or self.not_ours)


def select(rows: Iterable[VirtualRow], selection: Selection) -> Iterator[VirtualRow]:
    """The rows, or parts of rows, that were asked for."""
    for row in rows:
        if is_wanted(row, selection):
            narrowed = _narrow(row, selection)
            if narrowed is not None:
                yield narrowed


def is_wanted(row: VirtualRow, selection: Selection) -> bool:
    """Whether the virtual server alone fulfils the conditions that are about it; its real servers do not matter."""
    if selection.not_ours and row.is_ours:
        return False
    if selection.namespace and (row.owner is None or row.owner.namespace != selection.namespace):
        return False
    if selection.service and not _is_of(row.owner, selection.service):
        return False
    return selection.frontend is None or _frontend(row.server) == selection.frontend


def _is_of(owner: Owner | None, wanted: WantedService) -> bool:
    if owner is None or (owner.namespace, owner.service) != (wanted.namespace, wanted.name):
        return False
    return wanted.port in {"", owner.port_name, str(owner.port)}


def _frontend(server: ObservedVirtualServer) -> Frontend:
    if server.fwmark:
        return Frontend(0, b"", 0, server.fwmark)
    return Frontend(server.protocol, server.address, server.port)


def _narrow(row: VirtualRow, selection: Selection) -> VirtualRow | None:
    """The row with the real servers that were asked for; None where a condition on them leaves none."""
    kept = row.real_rows
    if selection.empty and any(real.server.weight for real in kept):
        return None
    if selection.networks and not _is_in(row.server.address, selection.networks):
        kept = tuple(real for real in kept if _is_in(real.server.address, selection.networks))
        if not kept:
            return None
    if selection.draining:
        kept = tuple(real for real in kept if real.state == DRAINING)
        if not kept:
            return None
    return row._replace(real_rows=kept)


def _is_in(address: bytes, networks: tuple[Cidr, ...]) -> bool:
    return any(address in network for network in networks)
