"""The page of figures says what is checked in, and a change of a figure is told."""

from __future__ import annotations

import pytest

from tests.perf import report

CHECKED_IN = report.Measured.load(report.CHECKED_IN)


def changed(name: str, factor: float) -> report.Measured:
    figures = {**CHECKED_IN.figures, name: round(CHECKED_IN.figures[name] * factor)}
    return report.Measured(CHECKED_IN.environment, figures)


def test_the_page_holds_the_checked_in_figures():
    page = report.PAGE.read_text()

    assert report.with_table(page, CHECKED_IN) == page


def test_equal_figures_are_no_change():
    assert report.changes(CHECKED_IN, CHECKED_IN) == []


@pytest.mark.parametrize(
    "name, factor, is_told",
    [
        pytest.param("cold.1000.plan_insn", 1.09, False, id="nine percent more work"),
        pytest.param("cold.1000.plan_insn", 1.11, True, id="eleven percent more work"),
        pytest.param("cold.1000.plan_insn", 0.89, True, id="eleven percent less work, which the page should say"),
        pytest.param("memory.synced.1000.rss_bytes", 1.11, True, id="eleven percent more memory"),
        pytest.param("cold.1000.messages", 1.001, True, id="a few messages more"),
        pytest.param("tools.ip.user_insn", 2, False, id="the tools' own cost"),
    ],
)
def test_a_change_beyond_the_tolerance_is_told(name, factor, is_told):
    told = report.changes(changed(name, factor), CHECKED_IN)

    assert [sentence.split()[0] for sentence in told] == ([name] if is_told else [])
