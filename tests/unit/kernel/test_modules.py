"""Loading modules with a modprobe that a test wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipvsproxy.kernel.modules import load


@pytest.fixture
def modprobe(tmp_path: Path) -> Path:
    """A modprobe that notes its arguments and fails for the module `absent`."""
    program = tmp_path / "modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nfor name; do :; done\n[ "$name" != absent ]\n')
    program.chmod(0o755)
    return program


def test_each_module_is_asked_for_and_only_failures_are_returned(modprobe):
    assert load(["ip_vs", "absent", "nf_conntrack"], str(modprobe.parent)) == ["absent"]
    calls = (modprobe.parent / "calls").read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["ip_vs", "absent", "nf_conntrack"]


def test_a_name_is_never_a_flag_or_a_command(modprobe):
    load(["-r", "ip_vs; touch pwned"], str(modprobe.parent))
    assert (modprobe.parent / "calls").read_text() == "--quiet -- -r\n--quiet -- ip_vs; touch pwned\n"


def test_k45_without_modprobe_nothing_is_loaded_and_nothing_raised(tmp_path):
    assert load(["ip_vs", "dummy"], str(tmp_path)) == ["ip_vs", "dummy"]


def test_a_modprobe_that_cannot_be_run_counts_as_a_failure(modprobe):
    modprobe.write_text("#!/no/such/interpreter\n")
    assert load(["ip_vs"], str(modprobe.parent)) == ["ip_vs"]
