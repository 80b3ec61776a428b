"""The page of figures says what is checked in, and a change of a figure is told."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.documented import documented
from tests.lab import bench
from tests.perf import report

CHECKED_IN = report.Measured.load(report.CHECKED_IN)
(UPDATE,) = documented("docs/performance.md", program="python")


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


def test_the_command_of_the_page_makes_what_it_measures_the_checked_in_figures(monkeypatch, tmp_path):
    """The measurement is a stage of its own."""
    program, script, *words = shlex.split(UPDATE.text)
    assert (program, (report.ROOT / script).resolve()) == (".venv/bin/python", Path(bench.__file__).resolve())
    for name in ("CHECKED_IN", "PAGE"):
        copy = tmp_path / name
        copy.write_bytes(getattr(report, name).read_bytes())
        monkeypatch.setattr(report, name, copy)
    measured = changed("cold.1000.plan_insn", 2)
    monkeypatch.setattr(bench, "measure", lambda _out: measured)
    assert bench.main(words) == 0
    assert report.Measured.load(report.CHECKED_IN) == measured
    assert report.table(measured) in report.PAGE.read_text()
