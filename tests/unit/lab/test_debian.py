"""What tests/lab/debian.sh refuses; that it works, the workflows show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "lab" / "debian.sh"


def run(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(SCRIPT), *words]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs: those that the script needs to look around, and an `id` of root."""
    for name in ("dirname", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "id").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "id").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("words", [(), ("root",)])
def test_without_a_command_it_says_how_it_is_called(words: tuple[str, ...], programs: Path):
    done = run(*words, path=str(programs))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "debian: usage: sh tests/lab/debian.sh ROOT COMMAND ARGUMENT…\n"


def test_whoever_is_not_root_is_told_so_before_anything_is_made(programs: Path, tmp_path: Path):
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    done = run(str(tmp_path / "root"), "true", path=str(programs))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Use sudo" in done.stderr
    assert not (tmp_path / "root").exists()


def test_a_missing_mmdebstrap_is_named_with_its_packages(programs: Path, tmp_path: Path):
    done = run(str(tmp_path / "root"), "true", path=str(programs))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Install the packages mmdebstrap and debian-archive-keyring" in done.stderr
    assert not (tmp_path / "root").exists()
