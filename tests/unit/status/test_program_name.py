"""The program under the name ipvsadm: a link to it, as an operator makes one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.data.ipvsadm_oracle.oracle import Oracle
from tests.unit.status.fixture_cases import DATA

ROOT = Path(__file__).parents[3]
STATE = json.loads((DATA / "dual.state.json").read_text())
LISTED = (DATA / "dual.L-n.out").read_bytes()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    """What an installer makes of the entry point in pyproject.toml."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "ipvsproxy"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom ipvsproxy.cli import main\nsys.exit(main())\n")
    path.chmod(0o755)
    return path


def link(program: Path, name: str) -> str:
    path = program.with_name(name)
    path.symlink_to(program)
    return str(path)


def test_a_link_named_ipvsadm_lists_as_ipvsadm(oracle, program):
    done = oracle.run(STATE, ["-L", "-n"], program=(link(program, "ipvsadm"),))
    assert (done.returncode, done.stdout, done.stderr) == (0, LISTED, b"")


def test_a_link_named_ipvsadm_knows_no_command_of_ours(oracle, program):
    done = oracle.run(STATE, ["status", "-L", "-n"], program=(link(program, "ipvsadm"),))
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"unexpected argument status\n")


def test_a_link_of_another_name_is_ipvsproxy(oracle, program):
    done = oracle.run(STATE, ["status", "-L", "-n"], program=(link(program, "ipvsproxy-1.0"),))
    assert (done.returncode, done.stdout, done.stderr) == (0, LISTED, b"")


def test_a_reader_that_goes_away_is_no_error(oracle, program):
    pipe = ("sh", "-c", '"$0" status -L -n "$@" | head -n 1; exit 0', str(program))
    done = oracle.run(STATE, [], program=pipe)
    assert (done.returncode, done.stdout, done.stderr) == (0, LISTED.splitlines(keepends=True)[0], b"")
