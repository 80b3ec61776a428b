"""The real ipvsadm and ours on a kernel without IPVS, which is what a filter of their system calls makes of any."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from tests.lab import no_ipvs

OURS = (sys.executable, "-m", "ipvsproxy", "ipvsadm")


@pytest.fixture(scope="module")
def ipvsadm() -> str:
    found = shutil.which("ipvsadm", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert found, "ipvsadm is not installed; `make setup` installs it"
    return found


@pytest.mark.parametrize("words", [["-L", "-n"], ["--bogus"]], ids=" ".join)
def test_both_say_why_they_cannot_begin_whatever_they_are_asked(ipvsadm, words):
    theirs, ours = (no_ipvs.run([*program, *words]) for program in ((ipvsadm,), OURS))
    assert (ours.returncode, ours.stdout, ours.stderr) == (2, theirs.stdout, theirs.stderr)
    assert "Can't initialize ipvs: " in ours.stderr
