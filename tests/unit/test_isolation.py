"""No test changes what the next one sees: the log configuration is the process's, and a program sets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TWO_TESTS = """
import structlog
from structlog.testing import capture_logs

from ipvsproxy import cli
from ipvsproxy.kernel import monitor


def seen():
    with capture_logs() as logs:
        monitor.log.debug("of a module")
        structlog.get_logger().debug("of a new logger")
    return len(logs)


def test_a_program_that_runs_in_the_process_of_the_tests(tmp_path):
    assert seen() == 2
    assert cli.run(["plan", "-o", "ipvsadm", "--manifests", str(tmp_path)], cli.Programs()) == 2
    assert seen() == 0


def test_another_one_behind_it():
    assert seen() == 2
"""


def test_a_program_that_a_test_calls_leaves_no_log_configuration_behind(tmp_path):
    (tmp_path / "test_two.py").write_text(TWO_TESTS)
    words = ("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    own = f"--basetemp={tmp_path / 'own'}"  # in the common one it first deletes what earlier runs left
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", own, *words, str(tmp_path / "test_two.py")],
        capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
