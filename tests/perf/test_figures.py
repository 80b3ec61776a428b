"""The counted figures against the checked-in ones: a run of minutes in a machine of its own.

Who means a change of them writes them anew: `python tests/lab/bench.py --update`.
"""

from __future__ import annotations

import pytest

from tests.lab import bench
from tests.perf import report

pytestmark = pytest.mark.long

ONE_IDLE_SECOND = 2_000_000
ONE_QUICK_AUDIT = 1_200_000_000 // 8  # an eighth of kube-proxy's periodic sync of the same state


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> report.Measured:
    return bench.measure(tmp_path_factory.mktemp("bench"))


def test_no_guarded_figure_has_changed_by_more_than_a_tenth(measured):
    assert report.changes(measured, report.Measured.load(report.CHECKED_IN)) == []


def test_one_endpoint_costs_the_same_whatever_the_number_of_services(measured):
    few, many = (
        measured.figures[f"endpoint.{services}.user_insn"] + measured.figures[f"endpoint.{services}.kernel_insn"]
        for services in (10, 1000)
    )
    assert many == pytest.approx(few, rel=report.TOLERANCE)


def test_a_quick_audit_costs_at_most_an_eighth_of_what_kube_proxy_spends(measured):
    assert measured.figures["audit_quick.1000.total_insn"] <= ONE_QUICK_AUDIT


def test_a_second_in_which_nothing_changes_costs_next_to_nothing(measured):
    assert measured.figures["idle.1000.second_insn"] <= ONE_IDLE_SECOND


def test_programming_costs_less_than_the_tools_need_for_the_same_state(measured):
    total = report.totals(measured.figures)
    assert total["cold.programming"] < total["tools.user"] + total["tools.kernel"]
