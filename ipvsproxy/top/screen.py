"""Figures as what rich draws: three lines, a table of as many rows as fit, a line of keys. It fits 80 columns.

In a smaller terminal the names stay: the lines above the table go, and columns of figures from the right.

Colours mean something that the words say too; rich leaves them out without a terminal, and where NO_COLOR is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ipvsproxy.model.figures import Undone
from ipvsproxy.top.figures import Figures, Order, Row, in_order

_LINES_FOR_A_HEAD = 10  # with fewer the rows have its place
_TABLE_HEAD_LINES = 1
_FOOT_LINES = 1
_NAME_WIDTH = 22  # of IPv4 address, port and protocol
_SERVICE_WIDTH = 30  # what a column of its own for Services should have at least
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
    """How it is shown: what rows are sorted by, and how large the terminal is.

    `by_vip`: virtual servers, not Services, where there is room for only one of the two.
    """

    order: Order
    is_reversed: bool
    lines: int
    columns: int
    by_vip: bool = False

    @property
    def shows_both(self) -> bool:
        """Whether there is room for Services beside virtual servers and all columns of figures."""
        return _fitting(self.columns - _NAME_WIDTH - _SERVICE_WIDTH - _STATE_WIDTH) == len(COLUMNS)


def screen(figures: Figures, view: View) -> RenderableType:
    """A whole screen."""
    head = [*heading(figures), Text("")] if view.lines >= _LINES_FOR_A_HEAD else []
    room = max(view.lines - len(head) - _TABLE_HEAD_LINES - _FOOT_LINES, 0)
    rows = in_order(figures.rows, view.order, reverse=view.is_reversed)[:room]
    padding = [Text("")] * (room - len(rows))
    return Group(*head, table(rows, view, are_named=figures.are_named), *padding, _keys(view, figures))


def heading(figures: Figures) -> list[Text]:
    """Three lines of sums."""
    total = figures.total
    tracking = [f"conntrack {figures.usage.entries}/{figures.usage.limit}"] if figures.usage else []
    tracking += [] if figures.insert_failed is None else [f"not inserted {number(figures.insert_failed)}/s"]
    tracking += [] if figures.dropped is None else [f"dropped {number(figures.dropped)}/s"]
    return [
        _line(
            f"{len(figures.rows)} virtual servers",
            f"{total.servers} real servers",
            f"{total.serving} serving",
            *_undone(figures.undone),
        ),
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


def table(rows: Sequence[Row], view: View, *, are_named: bool) -> Table:
    """A line for each row; the column that they are sorted by is underlined."""
    shown = _fitting(view.columns - _NAME_WIDTH - _STATE_WIDTH)
    names = _names(view, are_named=are_named)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold")
    for title in names:
        made.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1)
    for title in COLUMNS[:shown]:
        style = "bold underline" if _SORTED_COLUMNS.get(view.order) == title else "bold"
        made.add_column(Text(title, style), justify="right", no_wrap=True, min_width=_NUMBER_WIDTH)
    made.add_column("", no_wrap=True, min_width=_STATE_WIDTH)
    for row in rows:
        named = (Text(name(row)) for name in names.values())  # of a str rich would take [fd00::1] for markup
        made.add_row(*named, *islice(cells(row), shown), _state(row))
    return made


def _names(view: View, *, are_named: bool) -> dict[str, Callable[[Row], str]]:
    """The columns that say what a row is about, by title."""
    by_vip: dict[str, Callable[[Row], str]] = {"virtual server": lambda row: row.name}
    if are_named and view.shows_both:
        return by_vip | {"service": lambda row: row.service}
    return by_vip if view.by_vip or not are_named else {"service": lambda row: row.service or row.name}


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


def _undone(counts: Undone | None) -> Iterator[Text]:
    """What the daemon has not brought about; nothing where none tells."""
    if counts is not None:
        yield Text(f"{counts.refused} objects refused", "bold red" if counts.refused else "")
        yield Text(f"{counts.waiting} waiting", "yellow" if counts.waiting else "")


def _line(*parts: str | Text) -> Text:
    line = Text("  ").join(Text(part) if isinstance(part, str) else part for part in parts)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _keys(view: View, figures: Figures) -> Text:
    keys = [(_SORTED_COLUMNS.get(order, order.value).removesuffix("/s"), order is view.order) for order in Order]
    if figures.are_named and not view.shows_both:
        keys.append(("vip", view.by_vip))
    line = Text("", no_wrap=True, overflow="ellipsis")
    for name, is_on in keys:
        line.append(f"[{name[0]}]{name[1:]}", "reverse" if is_on else "")
        line.append(" ")
    line.append(" q quits")
    return line
