"""Samples of IPVS as figures a second: one row a virtual server, and their sums. Pure.

Rates are what the counters have gained between two samples; so they hold for just that time, and also where the kernel
does not estimate any (--ipvs-estimation=off). For what has no earlier sample the kernel's own estimate stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from ipvsproxy.model.addr import format_endpoint
from ipvsproxy.model.enums import PROTOCOL_NAMES
from ipvsproxy.model.figures import Undone
from ipvsproxy.model.flows import TableUsage, TrackingErrors
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer, Statistics


class ServerSample(msgspec.Struct, frozen=True, gc=False):
    """One virtual server: its counters, and its real servers counted.

    `serving`: those that get new connections; `draining`: those at weight 0 that still have some. `service`: the
    Service port behind it, empty where nobody knows one.
    """

    name: str
    statistics: Statistics
    servers: int = 0
    serving: int = 0
    draining: int = 0
    active: int = 0
    inactive: int = 0
    service: str = ""


class Sample(msgspec.Struct, frozen=True):
    """Everything at one moment (`at`: monotonic seconds); None: not told by connection tracking, or by a daemon."""

    at: float
    servers: tuple[ServerSample, ...]
    usage: TableUsage | None = None
    errors: TrackingErrors | None = None
    undone: Undone | None = None


class Row(msgspec.Struct, frozen=True, gc=False):
    """One virtual server's figures. Rates are a second; `packets` are both ways."""

    name: str
    servers: int = 0
    serving: int = 0
    draining: int = 0
    active: int = 0
    inactive: int = 0
    connections: float = 0.0
    packets: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    service: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether whoever comes new is refused."""
        return not self.serving


class Figures(msgspec.Struct, frozen=True):
    """All rows, their sums, how full connection tracking is and what it could not track, a second; as in Sample."""

    rows: tuple[Row, ...]
    total: Row
    empty: int
    usage: TableUsage | None = None
    insert_failed: float | None = None
    dropped: float | None = None
    undone: Undone | None = None

    @property
    def are_named(self) -> bool:
        """Whether anybody knows a Service."""
        return any(row.service for row in self.rows)


class Order(StrEnum):
    """What rows are sorted by; the first letter is its key."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    CONNECTIONS = "connections"
    PACKETS = "packets"
    BYTES = "bytes"
    DRAINING = "draining"
    EMPTY = "empty"
    NAME = "name"

    @property
    def letter(self) -> str:
        """The key that chooses it."""
        return self.value[0]


def sample_of(
    server: ObservedVirtualServer, real_servers: Iterable[ObservedRealServer], service: str = ""
) -> ServerSample:
    """A virtual server and its real servers, counted."""
    found = tuple(real_servers)
    return ServerSample(
        name=_name(server),
        statistics=server.statistics,
        servers=len(found),
        serving=sum(each.weight > 0 for each in found),
        draining=sum(each.weight == 0 and each.active + each.inactive > 0 for each in found),
        active=sum(each.active for each in found),
        inactive=sum(each.inactive for each in found),
        service=service,
    )


def figures(now: Sample, before: Sample | None = None) -> Figures:
    """What `now` says, with rates since `before` where there is one."""
    seconds = now.at - before.at if before else 0.0
    former = {each.name: each.statistics for each in before.servers} if before and seconds > 0 else {}
    rows = tuple(_row(each, former.get(each.name), seconds) for each in now.servers)
    failed, dropped = _tracking_rates(now, before, seconds)
    empty = sum(row.is_empty for row in rows)
    return Figures(rows, _total(rows), empty, now.usage, failed, dropped, now.undone)


def in_order(rows: Sequence[Row], order: Order, *, reverse: bool = False) -> list[Row]:
    """The most of it first, names from A to Z; `reverse`: the other way round. Equals stand by name.

    A name is that of the Service and then of the virtual server; what has no Service comes last.
    """
    by_name = sorted(rows, key=_names_of, reverse=reverse and order is Order.NAME)
    if order is Order.NAME:
        return by_name
    return sorted(by_name, key=_MEASURES[order], reverse=not reverse)


_MEASURES: dict[Order, Callable[[Row], float]] = {
    Order.ACTIVE: lambda row: row.active,
    Order.INACTIVE: lambda row: row.inactive,
    Order.CONNECTIONS: lambda row: row.connections,
    Order.PACKETS: lambda row: row.packets,
    Order.BYTES: lambda row: row.bytes_in + row.bytes_out,
    Order.DRAINING: lambda row: row.draining,
    Order.EMPTY: lambda row: row.is_empty,
}


def _names_of(row: Row) -> tuple[bool, str, str]:
    return not row.service, row.service, row.name


def _name(server: ObservedVirtualServer) -> str:
    if server.fwmark:
        return f"FWM {server.fwmark} {server.family.label}"
    protocol = PROTOCOL_NAMES.get(server.protocol, str(server.protocol))
    return f"{format_endpoint(server.address, server.port)}/{protocol}"


def _row(now: ServerSample, former: Statistics | None, seconds: float) -> Row:
    connections, packets, bytes_in, bytes_out = _rates(now.statistics, former, seconds)
    return Row(
        now.name, now.servers, now.serving, now.draining, now.active, now.inactive,
        connections, packets, bytes_in, bytes_out, now.service,
    )  # fmt: skip


def _rates(now: Statistics, former: Statistics | None, seconds: float) -> tuple[float, float, float, float]:
    """A counter that has lost was zeroed, or belongs to a virtual server that was made anew: the estimate is taken."""
    if former is None or now.connections < former.connections or now.packets_in < former.packets_in:
        packets = now.packets_in_per_s + now.packets_out_per_s
        return now.connections_per_s, packets, now.bytes_in_per_s, now.bytes_out_per_s
    gained = (
        now.connections - former.connections,
        now.packets_in + now.packets_out - former.packets_in - former.packets_out,
        now.bytes_in - former.bytes_in,
        now.bytes_out - former.bytes_out,
    )
    connections, packets_per_s, bytes_in, bytes_out = (max(each, 0) / seconds for each in gained)
    return connections, packets_per_s, bytes_in, bytes_out


def _total(rows: Iterable[Row]) -> Row:
    fields = msgspec.structs.fields(Row)[1:-1]
    found = tuple(rows)
    return Row("", *(sum(getattr(row, field.name) for row in found) for field in fields))


def _tracking_rates(now: Sample, before: Sample | None, seconds: float) -> tuple[float | None, float | None]:
    """Failed insertions and drops a second; None where nobody counts them, or there is nothing to compare with."""
    if now.errors is None or before is None or before.errors is None or seconds <= 0:
        return None, None
    failed = now.errors.insert_failed - before.errors.insert_failed
    return max(failed, 0) / seconds, max(now.errors.dropped - before.errors.dropped, 0) / seconds
