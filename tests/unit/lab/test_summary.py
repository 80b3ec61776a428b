from pathlib import Path

import pytest

from tests.lab.summary import AGAIN, Count, failed, main, problems, read

PASSED = "<testcase name='a'/>"
FAILED = "<testcase name='b'><failure message='no'/></testcase>"
PASSED_B, SKIPPED_B = "<testcase name='b'/>", "<testcase name='b'><skipped/></testcase>"
ERROR = "<testcase name='c'><error message='broke'/></testcase>"
SKIPPED = "<testcase name='d'><skipped type='pytest.skip'/></testcase>"


def junit(folder: Path, *cases: str, name: str = "junit.xml") -> Path:
    results = folder / name
    results.write_text(f"<?xml version='1.0'?><testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return results


@pytest.mark.parametrize(
    "cases,expected",
    [
        pytest.param((), Count(), id="an empty suite counts nothing"),
        pytest.param((PASSED, PASSED_B), Count(passed=2), id="a case without an outcome passed"),
        pytest.param((FAILED, ERROR), Count(failed=2), id="errors are failures"),
        pytest.param((PASSED, SKIPPED), Count(passed=1, skipped=1), id="skipped cases are counted apart"),
        pytest.param(
            ("<testcase name='e'><failure/><error/></testcase>",),
            Count(failed=1),
            id="a case that failed and then broke in teardown is one failure",
        ),
        pytest.param(
            ("<testcase name='f'><properties/><system-out>x</system-out></testcase>",),
            Count(passed=1),
            id="output and properties are no outcome",
        ),
    ],
)
def test_outcomes_of_a_results_file(tmp_path, cases, expected):
    assert read(junit(tmp_path, *cases)) == expected


def test_missing_and_broken_files_are_no_results(tmp_path):
    broken = tmp_path / "half.xml"
    broken.write_text("<testsuites><testsuite>")

    assert read(tmp_path / "absent.xml") is None
    assert read(broken) is None


@pytest.mark.parametrize(
    "again,expected",
    [
        pytest.param((PASSED_B, ERROR), Count(passed=2, failed=1, unsteady=1), id="one passes then, one fails again"),
        pytest.param((PASSED_B,), Count(passed=2, failed=1, unsteady=1), id="one did not get to run again"),
        pytest.param((SKIPPED_B,), Count(passed=1, failed=1, skipped=1), id="one is skipped then"),
        pytest.param((), Count(passed=1, failed=2), id="nothing ran again"),
    ],
)
def test_a_test_that_passes_only_when_run_again_is_told_apart(tmp_path, again, expected):
    results = junit(tmp_path, PASSED, FAILED, ERROR)
    junit(tmp_path, *again, name=AGAIN)

    assert read(results) == expected


def test_the_failed_tests_of_a_results_file_are_named_as_pytest_takes_them(tmp_path):
    results = junit(tmp_path, PASSED, "<testcase classname='tests.vm.test_a' name='test_b[IPv6]'><failure/></testcase>")

    assert failed(results) == ["tests/vm/test_a.py::test_b[IPv6]"]
    assert failed(tmp_path / "absent.xml") == []


@pytest.mark.parametrize(
    "count,expected",
    [
        pytest.param(Count(passed=3), "3 passed, 0 failed", id="nothing skipped"),
        pytest.param(Count(passed=3, failed=1, skipped=2), "3 passed, 1 failed, 2 skipped", id="some skipped"),
        pytest.param(
            Count(passed=3, unsteady=1), "3 passed, 0 failed, 1 of the passed only when run again", id="some unsteady"
        ),
    ],
)
def test_count_as_text(count, expected):
    assert str(count) == expected


@pytest.mark.parametrize(
    "counts,exit_codes,word",
    [
        pytest.param({}, {}, "no stage ran", id="no stage"),
        pytest.param({"vm": None}, {"vm": 125}, "no results (exit code 125)", id="no results"),
        pytest.param({"vm": Count(skipped=4)}, {}, "ran no test", id="all skipped"),
        pytest.param({"vm": Count(passed=1, failed=1)}, {"vm": 1}, "failed", id="a failure"),
        pytest.param({"vm": Count(passed=1)}, {"vm": 124}, "exit code 124", id="stopped at the time limit"),
    ],
)
def test_what_is_wrong_is_said(counts, exit_codes, word):
    (sentence,) = problems(counts, exit_codes)

    assert word in sentence


def test_nothing_is_wrong_when_every_stage_ran_and_passed():
    assert problems({"pure": Count(passed=2), "vm": Count(passed=1, skipped=1)}, {"pure": 0, "vm": 0}) == []


def test_closing_line_adds_up_all_stages(tmp_path, capsys):
    pure = junit(tmp_path, PASSED, PASSED_B, SKIPPED, name="pure.xml")
    vm = junit(tmp_path, PASSED, FAILED, name="vm.xml")

    assert main([f"pure={pure}", f"vm={vm}"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "total: 3 passed, 1 failed, 1 skipped"


def test_a_stage_without_results_fails_the_run_although_all_tests_passed(tmp_path, capsys):
    pure = junit(tmp_path, PASSED)

    assert main([f"pure={pure}", f"vm={tmp_path / 'absent.xml'}"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "total: 1 passed, 0 failed"
