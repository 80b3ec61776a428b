from __future__ import annotations

import pytest

from ipvsproxy.config.durations import parse_duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    "text,nanoseconds",
    [
        pytest.param("30s", 30 * SECOND, id="seconds"),
        pytest.param("1m30s", 90 * SECOND, id="parts add up"),
        pytest.param("1h", 3600 * SECOND, id="hours"),
        pytest.param("500ms", SECOND // 2, id="milliseconds are not minutes"),
        pytest.param("1.5s", 3 * SECOND // 2, id="fractions"),
        pytest.param(".5s", SECOND // 2, id="a fraction may stand alone"),
        pytest.param("5.s", 5 * SECOND, id="a dot may end a number"),
        pytest.param("7us", 7_000, id="microseconds in ASCII"),
        pytest.param("7\u00b5s", 7_000, id="microseconds with the micro sign"),
        pytest.param("7\u03bcs", 7_000, id="microseconds with the Greek letter"),
        pytest.param("3ns", 3, id="nanoseconds"),
        pytest.param("1.9ns", 1, id="what is below a nanosecond is cut off"),
        pytest.param("0", 0, id="a lone zero needs no unit"),
        pytest.param("+0", 0, id="a lone zero may have a sign"),
        pytest.param("-1m", -60 * SECOND, id="negative"),
        pytest.param("+2s", 2 * SECOND, id="an explicit plus"),
        pytest.param("30s1h", 3630 * SECOND, id="parts in any order"),
        pytest.param("9223372036854775807ns", 2**63 - 1, id="the longest that Go holds"),
        pytest.param(f"0.{'3' * 5000}s", SECOND // 3, id="a fraction of any length"),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text, nanoseconds):
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("30", id="a number without unit"),
        pytest.param("00", id="only a single zero needs no unit"),
        pytest.param("s", id="a unit without number"),
        pytest.param(".s", id="a dot without digit"),
        pytest.param("1d", id="Go has no days"),
        pytest.param("1M", id="units are lower case"),
        pytest.param("1 s", id="a blank inside"),
        pytest.param(" 1s", id="a blank before"),
        pytest.param("1s\n", id="a line end after"),
        pytest.param("--1s", id="two signs"),
        pytest.param("1m-30s", id="a sign inside"),
        pytest.param("1e3s", id="an exponent"),
        pytest.param("\u0663s", id="a digit that is not ASCII"),
        pytest.param("9223372036854775808ns", id="one nanosecond too long"),
        pytest.param(f"{'9' * 5000}s", id="thousands of digits"),
    ],
)
def test_what_go_refuses_is_no_duration(text):
    assert parse_duration(text) is None
