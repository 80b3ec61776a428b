"""Figures as what rich draws: three lines, a table of as many rows as fit, a line of keys. It fits 80 columns.

In a smaller terminal the names stay: the lines above the table go, and columns of figures from the right.

Colours mean something that the words say too; rich leaves them out without a terminal, and where NO_COLOR is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ipvsproxy.top.figures import Figures, Order, Row, in_order

_LINES_FOR_A_HEAD = 10  # with fewer the rows have its place
_TABLE_HEAD_LINES = 1
_FOOT_LINES = 1
_NAME_WIDTH = 22  # of IPv4 address, port and protocol
_STATE_WIDTH = 8
_UNITS = ("", "k", "M", "G", "T", "P")
_STEP = 1000.0
_NUMBER_WIDTH = 5
_TENTH_BELOW = 100.0  # from here on a number shows no decimals
COLUMNS = ("up/all", "active", "inact", "conn/s", "pkt/s", "in B/s", "out B/s")
_SORTED_COLUMNS = {
    Order.ACTIVE: "active",
    Order.INACTIVE: "inact",
    Order.CONNECTIONS: "conn/s",
    Order.PACKETS: "pkt/s",
}


@dataclass(frozen=True, slots=True)
class View:
    """How it is shown: what rows are sorted by, and how large the terminal is."""

    order: Order
    is_reversed: bool
    lines: int
    columns: int


def screen(figures: Figures, view: View) -> RenderableType:
    """A whole screen."""
    head = [*heading(figures), Text("")] if view.lines >= _LINES_FOR_A_HEAD else []
    room = max(view.lines - len(head) - _TABLE_HEAD_LINES - _FOOT_LINES, 0)
    rows = in_order(figures.rows, view.order, reverse=view.is_reversed)[:room]
    padding = [Text("")] * (room - len(rows))
    return Group(*head, table(rows, view), *padding, _keys(view))


def heading(figures: Figures) -> list[Text]:
    """Three lines of sums."""
    total = figures.total
    tracking = [f"conntrack {figures.usage.entries}/{figures.usage.limit}"] if figures.usage else []
    tracking += [] if figures.insert_failed is None else [f"not inserted {number(figures.insert_failed)}/s"]
    tracking += [] if figures.dropped is None else [f"dropped {number(figures.dropped)}/s"]
    return [
        _line(f"{len(figures.rows)} virtual servers", f"{total.servers} real servers", f"{total.serving} serving"),
        _line(
            f"{total.active} active",
            f"{total.inactive} inactive",
            f"{number(total.connections)} conn/s",
            f"{number(total.packets)} pkt/s",
            f"{number(total.bytes_in)} B/s in",
            f"{number(total.bytes_out)} B/s out",
        ),
        _line(f"{figures.empty} empty", f"{total.draining} draining", *tracking),
    ]


def table(rows: Sequence[Row], view: View) -> Table:
    """A line for each row; the column that they are sorted by is underlined."""
    shown = _fitting(view.columns - _NAME_WIDTH - _STATE_WIDTH)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold")
    made.add_column("virtual server", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in COLUMNS[:shown]:
        style = "bold underline" if _SORTED_COLUMNS.get(view.order) == title else "bold"
        made.add_column(Text(title, style), justify="right", no_wrap=True, min_width=_NUMBER_WIDTH)
    made.add_column("", no_wrap=True, min_width=_STATE_WIDTH)
    for row in rows:
        made.add_row(
            Text(row.name), *islice(cells(row), shown), _state(row)
        )  # of a str rich would take [fd00::1] for markup
    return made


def _fitting(room: int) -> int:
    """How many columns of figures fit into so much room."""
    ends = accumulate(max(len(title), _NUMBER_WIDTH) + 1 for title in COLUMNS)
    return sum(end < room for end in ends)  # a blank parts them from the name


def cells(row: Row) -> Iterable[str]:
    """The figures of a row, in the order of the columns."""
    yield f"{row.serving}/{row.servers}"
    yield from map(number, (row.active, row.inactive, row.connections, row.packets, row.bytes_in, row.bytes_out))


def number(value: float) -> str:
    """At most five characters: `0`, `4.2`, `980`, `12.3k`, `1.5M`. Powers of 1,000."""
    unit = 0
    shown = float(value)
    while shown >= _STEP - 0.5 and unit < len(_UNITS) - 1:
        shown /= _STEP
        unit += 1
    decimals = 1 if shown < _TENTH_BELOW - 0.05 and shown != int(shown) else 0
    return f"{shown:.{decimals}f}{_UNITS[unit]}"


def words_of_state(row: Row) -> str:
    """What is to be known of a virtual server besides its figures."""
    if row.is_empty:
        return "empty"
    return f"{row.draining} drain" if row.draining else ""


def _state(row: Row) -> Text:
    return Text(words_of_state(row), "bold red" if row.is_empty else "yellow")


def _line(*parts: str) -> Text:
    return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")


def _keys(view: View) -> Text:
    line = Text("", no_wrap=True, overflow="ellipsis")
    for order in Order:
        name = _SORTED_COLUMNS.get(order, order.value)
        line.append(f"[{name[0]}]{name[1:]}", "reverse" if order is view.order else "")
        line.append(" ")
    line.append(" q quits")
    return line
