"""Rows as a table for people: a line for each virtual server, its real servers below it, one column a fact.

Columns are as wide as what the first lines hold; a later line that needs more only moves its own rest. So lines come as
they are made, and `| head` ends the work. Colours mark what someone should look at; nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice
from typing import NamedTuple

from ipvsproxy.model.addr import format_endpoint
from ipvsproxy.model.enums import PROTOCOL_NAMES, Family, ForwardingMethod, VirtualServerFlags
from ipvsproxy.model.observed import Statistics
from ipvsproxy.model.printable import printable
from ipvsproxy.status.rows import DRAINING, RealRow, VirtualRow
from ipvsproxy.status.words import FORWARD_MASK

_LOOKED_AT = 1000  # lines that decide about widths
_GAP = "  "
_METHODS: dict[int, str] = {method.value: method.name.capitalize() for method in ForwardingMethod}
_TROUBLED = frozenset({"not-ready", "unknown"})


class Paint(StrEnum):
    """SGR sequences (ECMA-48 §8.3.117)."""

    PLAIN = ""
    BOLD = "\x1b[1m"
    DIM = "\x1b[2m"
    RED = "\x1b[31m"
    YELLOW = "\x1b[33m"


_END = "\x1b[0m"


class Columns(NamedTuple):
    """What to show beside what is always shown."""

    names: bool = False
    totals: bool = False
    rates: bool = False
    wide: bool = False


class _Column(NamedTuple):
    title: str
    of_virtual: Callable[[VirtualRow], str]
    of_real: Callable[[RealRow], str]
    is_number: bool = False


class _Line(NamedTuple):
    cells: tuple[str, ...]
    paint: Paint = Paint.PLAIN


def table_text(rows: Iterable[VirtualRow], columns: Columns, *, in_colour: bool = False) -> Iterator[str]:
    """The lines of the table, without line ends. `in_colour`: with SGR sequences."""
    shown = tuple(_columns(columns))
    title = _Line(tuple(column.title for column in shown), Paint.BOLD)
    lines = chain((title,), _lines(rows, shown))
    first = [*islice(lines, _LOOKED_AT)]
    widths = [max(map(len, cells)) for cells in zip(*(line.cells for line in first), strict=True)]
    are_numbers = tuple(column.is_number for column in shown)
    for line in chain(first, lines):
        text = _text(line.cells, widths, are_numbers)
        yield f"{line.paint}{text}{_END}" if in_colour and line.paint else text


def _lines(rows: Iterable[VirtualRow], shown: Sequence[_Column]) -> Iterator[_Line]:
    for row in rows:
        yield _Line(tuple(printable(column.of_virtual(row)) for column in shown), _paint_of(row))
        for real in row.real_rows:
            yield _Line(tuple(printable(column.of_real(real)) for column in shown), _paint_of_real(real, row))


def _text(cells: Sequence[str], widths: Sequence[int], are_numbers: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(cells, widths, are_numbers, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _paint_of(row: VirtualRow) -> Paint:
    return Paint.DIM if row.is_ours is False else Paint.PLAIN


def _paint_of_real(real: RealRow, row: VirtualRow) -> Paint:
    if real.state == DRAINING:
        return Paint.YELLOW
    return Paint.RED if real.state in _TROUBLED else _paint_of(row)


# Columns


def _columns(columns: Columns) -> Iterator[_Column]:
    yield _Column("SERVER", _server, lambda real: f"  {format_endpoint(real.server.address, real.server.port)}")
    if columns.names:
        yield _Column("SERVICE/POD", _service, lambda real: (real.endpoint.pod if real.endpoint else "") or "-")
        yield _Column("NODE", _nothing, lambda real: real.endpoint.node if real.endpoint else "")
        yield _Column("ZONE", _nothing, lambda real: real.endpoint.zone if real.endpoint else "")
    yield _Column("STATE", _nothing, _state)
    yield _Column("SCHEDULER", lambda row: row.server.scheduler, _method)
    if columns.wide:
        yield _Column("FLAGS", _flags, _nothing)
    yield _Column("WEIGHT", _nothing, lambda real: str(real.server.weight), is_number=True)
    if columns.wide:
        yield _Column("UPPER", _nothing, lambda real: str(real.server.upper_threshold), is_number=True)
        yield _Column("LOWER", _nothing, lambda real: str(real.server.lower_threshold), is_number=True)
        yield _sum("PERSISTENT", lambda real: real.server.persistent)
    yield _sum("ACTIVE", lambda real: real.server.active)
    yield _sum("INACTIVE", lambda real: real.server.inactive)
    if columns.totals:
        yield from _TOTALS
    if columns.rates:
        yield from _RATES


def _sum(title: str, count: Callable[[RealRow], int]) -> _Column:
    """A count of real servers; their virtual server has the sum of those shown."""
    return _Column(
        title, lambda row: str(sum(map(count, row.real_rows))), lambda real: str(count(real)), is_number=True
    )


def _counted(title: str, count: Callable[[Statistics], int]) -> _Column:
    return _Column(
        title,
        lambda row: str(count(row.server.statistics)),
        lambda real: str(count(real.server.statistics)),
        is_number=True,
    )


_TOTALS = (
    _counted("CONNS", lambda found: found.connections),
    _counted("INPKTS", lambda found: found.packets_in),
    _counted("OUTPKTS", lambda found: found.packets_out),
    _counted("INBYTES", lambda found: found.bytes_in),
    _counted("OUTBYTES", lambda found: found.bytes_out),
)
_RATES = (
    _counted("CPS", lambda found: found.connections_per_s),
    _counted("INPPS", lambda found: found.packets_in_per_s),
    _counted("OUTPPS", lambda found: found.packets_out_per_s),
    _counted("INBPS", lambda found: found.bytes_in_per_s),
    _counted("OUTBPS", lambda found: found.bytes_out_per_s),
)


def _nothing(_: VirtualRow | RealRow) -> str:
    return ""


def _server(row: VirtualRow) -> str:
    server = row.server
    if server.fwmark:
        return f"FWM {server.fwmark}" + (" IPv6" if server.family is Family.IPV6 else "")
    return f"{PROTOCOL_NAMES.get(server.protocol, server.protocol)} {format_endpoint(server.address, server.port)}"


def _service(row: VirtualRow) -> str:
    if row.owner:
        return str(row.owner)
    return "(its Service is gone)" if row.is_ours else "(not ours)"


def _state(real: RealRow) -> str:
    return real.state if real.left_s is None else f"{real.state} {_duration(real.left_s)}"


def _duration(seconds: float) -> str:
    """`14m10s`, `42s`, `2h5m`: as long as it takes to see it go."""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004  # seconds of a minute
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60}m"  # noqa: PLR2004  # likewise


def _method(real: RealRow) -> str:
    return _METHODS.get(real.server.conn_flags & FORWARD_MASK, "?")


def _flags(row: VirtualRow) -> str:
    server = row.server
    words = [f"persistent {server.timeout_s}s"] if server.flags & VirtualServerFlags.PERSISTENT else []
    if server.flags & VirtualServerFlags.ONE_PACKET:
        words.append("ops")
    bits = (VirtualServerFlags.SCHEDULER_1, VirtualServerFlags.SCHEDULER_2, VirtualServerFlags.SCHEDULER_3)
    words += [f"flag-{number}" for number, bit in enumerate(bits, 1) if server.flags & bit]
    return ", ".join(words)
