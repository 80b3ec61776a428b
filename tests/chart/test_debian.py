"""A Debian of its own, for those who have another distribution."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.documented import ROOT, documented

(ELSEWHERE,) = documented("CONTRIBUTING.md", program="sh")


@pytest.mark.timeout(600)
def test_a_command_runs_on_a_copy_of_the_checkout_in_a_debian_that_is_made_once(tmp_path: Path):
    typed = ELSEWHERE.filled({"DIR": str(tmp_path), "make test": "cat /etc/debian_version .ci/run"})
    for _ in range(2):
        done = subprocess.run(["/bin/sh", "-c", typed], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        release, _, script = done.stdout.partition("\n")
        assert release.startswith("12.")
        assert script == (ROOT / ".ci" / "run").read_text()
        (tmp_path / "src" / ".venv").mkdir(exist_ok=True)  # dear to make, so it stays
    assert (tmp_path / "src" / ".venv").is_dir()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
