"""Tables for people."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.model.observed import Statistics
from ipvsproxy.status import table
from ipvsproxy.status.rows import rows
from ipvsproxy.status.table import Columns, table_text
from tests.builders import addr
from tests.unit.status.test_rows import NAMES, TABLE, real, virtual

PLAIN = """\
SERVER              STATE     SCHEDULER  WEIGHT  ACTIVE  INACTIVE
TCP 10.96.0.20:80             rr                      0         0
  10.244.1.5:8080             Masq            1       0         0
  10.244.1.6:8080   draining  Masq            0       0         0
  10.244.1.7:8080             Masq            1       0         0
  10.244.1.8:8080             Masq            1       0         0
TCP 10.96.0.30:443            rr                      0         0
  10.244.1.9:8080   draining  Masq            0       0         0
TCP 10.99.0.9:80              rr                      0         0
  10.9.0.1:8080               Masq            1       0         0
FWM 7                         rr                      0         0
"""
NAMED = """\
SERVER              SERVICE/POD    NODE  ZONE  STATE          SCHEDULER  WEIGHT  ACTIVE  INACTIVE
TCP 10.96.0.20:80   shop/web:http                             rr                      0         0
  10.244.1.5:8080   web-5                      ready          Masq            1       0         0
  10.244.1.6:8080   web-6                      draining 1m1s  Masq            0       0         0
  10.244.1.7:8080   web-7                      terminating    Masq            1       0         0
  10.244.1.8:8080   -                          unknown        Masq            1       0         0
TCP 10.96.0.30:443  bank/api:443                              rr                      0         0
  10.244.1.9:8080   -                          draining       Masq            0       0         0
TCP 10.99.0.9:80    (not ours)                                rr                      0         0
  10.9.0.1:8080     -                                         Masq            1       0         0
FWM 7               (not ours)                                rr                      0         0
"""


def lines(servers=TABLE, names=None, *, in_colour=False, **columns) -> list[str]:
    return [*table_text(rows(servers, names), Columns(names=names is not None, **columns), in_colour=in_colour)]


def test_the_kernel_alone_gives_a_plain_table():
    assert lines() == PLAIN.splitlines()


def test_k53_names_stand_beside_what_they_are_of():
    assert lines(names=NAMES) == NAMED.splitlines()


def test_an_empty_kernel_gives_a_title():
    assert lines(()) == ["SERVER  STATE  SCHEDULER  WEIGHT  ACTIVE  INACTIVE"]


def test_a_virtual_server_has_the_sum_of_the_connections_of_those_shown():
    counted = [msgspec.structs.replace(real(f"10.244.1.{n}"), active=n, inactive=10 * n) for n in (1, 2)]
    assert lines((virtual("10.96.0.20", *counted),))[1].split()[-2:] == ["3", "30"]


def test_k53_totals_and_rates_are_columns():
    server = msgspec.structs.replace(virtual("10.96.0.20"), statistics=Statistics(*range(10)))
    assert lines((server,), totals=True)[0].split()[-5:] == ["CONNS", "INPKTS", "OUTPKTS", "INBYTES", "OUTBYTES"]
    assert lines((server,), totals=True)[1].split()[-5:] == ["0", "1", "2", "3", "4"]
    assert lines((server,), rates=True)[0].split()[-5:] == ["CPS", "INPPS", "OUTPPS", "INBPS", "OUTBPS"]
    assert lines((server,), rates=True)[1].split()[-5:] == ["5", "6", "7", "8", "9"]


def test_the_wide_table_tells_flags_thresholds_and_persistence():
    server = msgspec.structs.replace(virtual("10.96.0.20"), flags=0x01 | 0x04 | 0x10, timeout_s=10800)
    title, line = lines((server,), wide=True)
    assert {"FLAGS", "UPPER", "LOWER", "PERSISTENT"} <= set(title.split())
    assert "persistent 10800s, ops, flag-2" in line


@pytest.mark.parametrize(
    "left_s,text",
    [
        pytest.param(0.4, "0s", id="less than a second"),
        pytest.param(59.9, "59s", id="seconds"),
        pytest.param(850.0, "14m10s", id="minutes"),
        pytest.param(7500.0, "2h5m", id="hours"),
    ],
)
def test_the_time_left_is_told_as_people_say_it(left_s, text):
    assert table._duration(left_s) == text


def test_lines_come_before_all_rows_are_made():
    def endless():
        while True:
            yield from rows(TABLE)

    found = table_text(endless(), Columns())
    assert next(found).startswith("SERVER")


def test_a_late_long_name_moves_its_own_line_alone():
    many = [*rows(tuple(virtual(f"10.96.{n // 250}.{n % 250}") for n in range(1100)))]
    (late,) = rows((virtual("10.96.100.100", port=65535),))
    found = [*table_text([*many, late], Columns())]
    assert len({line.index("rr") for line in found[1:1000]}) == 1
    assert found[-1].split() == ["TCP", "10.96.100.100:65535", "rr", "0", "0"]


def test_colours_mark_what_drains_what_is_in_trouble_and_what_is_not_ours():
    painted = {
        line.removeprefix(paint).split()[0]: paint
        for line in lines(names=NAMES, in_colour=True)
        for paint in ("\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m")
        if line.startswith(paint) and line.endswith("\x1b[0m")
    }
    assert painted == {
        "SERVER": "\x1b[1m",
        "10.244.1.6:8080": "\x1b[33m",
        "10.244.1.8:8080": "\x1b[31m",
        "10.244.1.9:8080": "\x1b[33m",
        "TCP": "\x1b[2m",
        "10.9.0.1:8080": "\x1b[2m",
        "FWM": "\x1b[2m",
    }


def test_without_colours_there_is_no_escape():
    assert not any("\x1b" in line for line in lines(names=NAMES))


def test_what_a_name_could_do_to_a_terminal_is_not_done():
    server = msgspec.structs.replace(virtual("10.96.0.20"), scheduler="r\x1b[2Jr")
    assert "r?[2Jr" in lines((server,))[1]


def test_every_address_form_is_unmistakable():
    server = msgspec.structs.replace(virtual("10.96.0.20"), family=10, address=addr("fd00::20"))
    assert lines((server,))[1].startswith("TCP [fd00::20]:80 ")
