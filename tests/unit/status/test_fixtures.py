"""Every case of tests/data/ipvsadm through the whole command, on a kernel that answers as the recorded one did."""

from __future__ import annotations

import pytest

from ipvsproxy import status_command
from tests.unit.status.fixture_cases import cases, surroundings

_CASES = dict(cases())
_READING = {name: case for name, case in _CASES.items() if case.state != "write-errors"}
_WRITING = {name: case for name, case in _CASES.items() if case.state == "write-errors"}


def test_all_cases_are_here():
    assert (len(_READING), len(_WRITING)) == (587, 20)


@pytest.mark.parametrize("run", [status_command.run, status_command.run_as_ipvsadm], ids=["status", "as ipvsadm"])
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _READING.items()])
def test_the_bytes_and_the_exit_code_are_the_real_programs(case, run, capsys):
    code = run(case.arguments, surroundings(case))
    assert (code, *capsys.readouterr()) == case.expected()


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _WRITING.items()])
def test_a_command_that_writes_is_refused_by_its_name_without_asking_the_kernel(case, capsys):
    def ask():
        raise AssertionError("the kernel was asked")

    around = status_command.Surroundings(open_kernel=ask)
    assert status_command.run(case.arguments, around) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    names = {
        "-A": "add-service", "-E": "edit-service", "-D": "delete-service", "-Z": "zero", "-a": "add-server",
        "-e": "edit-server", "-d": "delete-server", "--stop-daemon": "stop-daemon",
    }  # fmt: skip
    assert err.startswith(f"{names[case.arguments[0]]}: ")
