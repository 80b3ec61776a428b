"""What is drawn, at which size."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from ipvsproxy.model.figures import Undone
from ipvsproxy.model.flows import TableUsage
from ipvsproxy.top.figures import Figures, Order, Row
from ipvsproxy.top.screen import View, number, screen
from tests.top_figures import FIGURES


def drawn(figures=FIGURES, order=Order.CONNECTIONS, lines=24, columns=80, *, by_vip=False, **console):
    out = io.StringIO()
    Console(file=out, width=columns, height=lines, **console).print(
        screen(figures, View(order, is_reversed=False, lines=lines, columns=columns, by_vip=by_vip)), end=""
    )
    return out.getvalue()


@pytest.mark.parametrize("lines", [3, 5, 9, 10, 24, 60])
@pytest.mark.parametrize("columns", [20, 40, 79, 80, 200])
def test_it_fits_the_terminal(lines, columns):
    rows = tuple(Row(f"10.96.0.{n}:80/TCP", 12, 12, 0, 99999, 99999, 1e9, 1e9, 1e12, 1e12) for n in range(100))
    shown = drawn(Figures(rows, rows[0], 0, TableUsage(262144, 262144), 1e6, 1e6), lines=lines, columns=columns)
    assert len(shown.splitlines()) == lines
    assert max(map(len, shown.splitlines())) <= columns
    assert sum(line.startswith("10.96.") for line in shown.splitlines()) == lines - (2 if lines < 10 else 6)


def test_as_many_rows_are_shown_as_fit_and_the_keys_stand_in_the_last_line():
    rows = tuple(Row(f"10.96.0.{n}:80/TCP", 1, 1) for n in range(100))
    lines = drawn(Figures(rows, rows[0], 0)).splitlines()
    assert len(lines) == 24
    assert sum(line.startswith("10.96.0.") for line in lines) == 18
    assert "q quits" in lines[-1]


def test_at_80_columns_ipv4_names_and_all_keys_are_whole():
    lines = drawn(by_vip=True).splitlines()
    assert any(line.startswith("10.102.199.132:80/TCP ") for line in lines)
    assert lines[-1].split() == [
        "[a]ctive", "[i]nact", "[c]onn", "[p]kt", "[b]ytes", "[d]raining", "[e]mpty", "[n]ame", "[v]ip", "q", "quits",
    ]  # fmt: skip


NOBODY_KNOWS = msgspec.structs.replace(
    FIGURES, rows=tuple(msgspec.structs.replace(row, service="") for row in FIGURES.rows), undone=None
)


@pytest.mark.parametrize(
    "figures,columns,by_vip,title,first",
    [
        pytest.param(FIGURES, 80, False, ["service"], ["shop/web:http"], id="Services where there is little room"),
        pytest.param(FIGURES, 80, True, ["virtual", "server"], ["10.102.199.132:80/TCP"], id="or virtual servers"),
        pytest.param(
            FIGURES, 120, False, ["virtual", "server", "service"], ["10.102.199.132:80/TCP", "shop/web:http"], id="both"
        ),
        pytest.param(NOBODY_KNOWS, 80, False, ["virtual", "server"], ["10.102.199.132:80/TCP"], id="no Services here"),
        pytest.param(NOBODY_KNOWS, 120, False, ["virtual", "server"], ["10.102.199.132:80/TCP"], id="nor here"),
    ],
)
def test_a_row_is_called_by(figures, columns, by_vip, title, first):
    lines = [line.split() for line in drawn(figures, Order.ACTIVE, columns=columns, by_vip=by_vip).splitlines()]
    (head,) = [at for at, line in enumerate(lines) if "up/all" in line]
    assert lines[head][: lines[head].index("up/all")] == title
    assert lines[head + 1][: lines[head + 1].index("2/3")] == first


def test_what_is_no_services_keeps_its_address():
    assert any(line.startswith("192.0.2.11:30080/TCP ") for line in drawn().splitlines())


@pytest.mark.parametrize("figures,columns", [(FIGURES, 120), (NOBODY_KNOWS, 80)])
def test_the_key_for_addresses_is_there_only_where_it_does_something(figures, columns):
    assert "[v]ip" not in drawn(figures, columns=columns)


@pytest.mark.parametrize(
    "undone,said",
    [
        pytest.param(Undone(2, 13), "5 serving  2 objects refused  13 waiting", id="what the daemon cannot do"),
        pytest.param(Undone(), "5 serving  0 objects refused  0 waiting", id="that it has done all"),
        pytest.param(None, "5 serving", id="nothing without a daemon"),
    ],
)
def test_of_what_is_not_in_force_it_says(undone, said):
    assert drawn(msgspec.structs.replace(FIGURES, undone=undone)).splitlines()[0].strip().endswith(said)


@pytest.mark.parametrize("name", ["[fd00::20]:443/TCP", "[::1]:80/TCP", "[bold]:80/TCP"])
def test_an_address_in_brackets_is_shown_whole(name):
    assert any(
        line.startswith(f"{name} ") for line in drawn(Figures((Row(name, 1, 1),), Row("", 1, 1), 0)).splitlines()
    )


def test_what_serves_nobody_and_what_drains_is_said_in_words():
    lines = {line.split()[0]: line.split()[-1] for line in drawn(by_vip=True).splitlines() if line[:1].isdigit()}
    assert (lines["192.0.2.11:30080/TCP"], lines["10.102.199.132:80/TCP"]) == ("empty", "drain")


def test_colours_are_for_terminals_and_no_color_leaves_them_out():
    assert "\x1b" not in drawn()
    assert "\x1b[1;31m" in drawn(force_terminal=True, color_system="standard")
    assert "31m" not in drawn(force_terminal=True, color_system="standard", no_color=True)


@pytest.mark.parametrize(
    "value,text",
    [
        (0, "0"), (0.04, "0.0"), (4.25, "4.2"), (42, "42"), (99.94, "99.9"), (99.96, "100"), (980.4, "980"),
        (999.4, "999"), (999.6, "1.0k"), (1000, "1k"), (12_340, "12.3k"), (999_600, "1.0M"),
        (1.5e9, "1.5G"), (3e15, "3P"),
    ],
)  # fmt: skip
def test_a_number_is_short(value, text):
    assert number(value) == text
    assert len(text) <= 5
