"""The golden cases and the recordings of kube-proxy, brought about in the real kernel and read back by the real tools.

For a recording the tools must show what `plan` says; how far that is what kube-proxy did, tests/golden compares.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ipvsproxy import dry_run
from ipvsproxy.clock import SystemClock
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.status import wanted
from tests.golden.cases import CASES, FORMATS, Case, Daemon
from tests.golden.recording import RECORDINGS, Recording
from tests.lab.hosts import Namespace
from tests.vm.nodes import bound, chains, kernel_of, rules, sets, virtual_servers


def apply(given: Case | Recording, host: Namespace) -> None:
    """Bring the kernel of `host` to what the folder wants, as the daemon does."""
    with kernel_of(host) as kernel:
        result = Daemon(given.command(), kernel, SystemClock()).sync(given.events())
    assert (result.refused, result.waiting) == (0, 0)


def assert_shown(host: Namespace, texts: Mapping[PlanFormat, str]) -> None:
    """Each of the real tools shows its text."""
    assert virtual_servers(host) == sorted(texts[PlanFormat.IPVSADM].splitlines())
    assert bound(host) == set(texts[PlanFormat.ADDRESSES].splitlines())
    assert sets(host) == sorted(texts[PlanFormat.IPSET].splitlines())
    assert filled(rules(host, 4)) == chains(texts[PlanFormat.IPTABLES])
    assert filled(rules(host, 6)) == chains(texts[PlanFormat.IP6TABLES])
    for line in texts[PlanFormat.SYSCTL].splitlines():
        name, _, value = line.partition(" = ")
        assert (name, host.sysctl(name.replace(".", "/"))) == (name, value)


def filled(tables: dict) -> dict:
    """Tables in which something is ours; the empty host has nothing else."""
    return {name: table for name, table in tables.items() if table}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_the_real_tools_show_the_golden_state(case, empty_host):
    apply(case, empty_host)
    assert_shown(empty_host, {name: case.file(name).read_text() for name in FORMATS})


@pytest.mark.parametrize("recording", [pytest.param(recording, id=recording.folder.name) for recording in RECORDINGS])
def test_the_real_tools_show_the_plan_of_a_recorded_cluster(recording, empty_host):
    apply(recording, empty_host)
    command = recording.command()
    state, _ = dry_run.plan(command.config, command.options)
    assert_shown(empty_host, {name: "\n".join(wanted.FORMATS[name](state)) for name in FORMATS})
