"""A Debian of its own, for those who have another distribution."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.documented import ROOT, documented

pytestmark = pytest.mark.timeout(600)

(ELSEWHERE,) = documented("CONTRIBUTING.md", program="sh")
CHART_JOB = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]["chart"]
(PACKAGES,) = (
    step["run"] for step in CHART_JOB["steps"] if "debian.sh" in (run := step.get("run", "")) and "apt" in run
)


def typed(command: str) -> str:
    """What it prints."""
    done = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Debian is made, by the first test that runs."""
    return tmp_path_factory.mktemp("debian")


def test_a_command_runs_on_a_copy_of_the_checkout_in_a_debian_that_is_made_once(folder: Path):
    command = ELSEWHERE.filled({"DIR": str(folder), "make test": "cat /etc/debian_version .ci/run"})
    for _ in range(2):
        release, _, script = typed(command).partition("\n")
        assert release.startswith("12.")
        assert script == (ROOT / ".ci" / "run").read_text()
        (folder / "src" / ".venv").mkdir(exist_ok=True)  # dear to make, so it stays
    assert (folder / "src" / ".venv").is_dir()
    assert str(folder) not in Path("/proc/self/mounts").read_text()


def test_the_workflow_finds_the_packages_that_the_chart_wants_in_a_debian_just_made(folder: Path):
    """Whose lists of packages are empty. Nothing is installed."""
    command = PACKAGES.replace("sudo ", "").replace("/srv/debian", str(folder)).replace("--yes", "--yes --simulate")
    said = typed(command)
    assert [name for name in ("buildah", "containerd", "mmdebstrap", "runc") if f"\nInst {name} " not in said] == []
