"""The golden texts, brought about in the real kernel and read back by the real tools."""

from __future__ import annotations

import pytest

from ipvsproxy.clock import SystemClock
from ipvsproxy.config.types import PlanFormat
from tests.golden.cases import CASES, Case, Daemon
from tests.lab.hosts import Namespace
from tests.vm.nodes import bound, chains, kernel_of, rules, sets, virtual_servers


def apply(case: Case, host: Namespace) -> None:
    """Bring the kernel of `host` to what the case wants, as the daemon does."""
    with kernel_of(host) as kernel:
        result = Daemon(case.command(), kernel, SystemClock()).sync(case.events())
    assert (result.refused, result.waiting) == (0, 0)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_the_real_tools_show_the_golden_state(case, empty_host):
    apply(case, empty_host)

    def golden(plan_format: PlanFormat) -> str:
        return case.file(plan_format).read_text()

    assert virtual_servers(empty_host) == sorted(golden(PlanFormat.IPVSADM).splitlines())
    assert bound(empty_host) == set(golden(PlanFormat.ADDRESSES).splitlines())
    assert sets(empty_host) == sorted(golden(PlanFormat.IPSET).splitlines())
    assert filled(rules(empty_host, 4)) == chains(golden(PlanFormat.IPTABLES))
    assert filled(rules(empty_host, 6)) == chains(golden(PlanFormat.IP6TABLES))
    for line in golden(PlanFormat.SYSCTL).splitlines():
        name, _, value = line.partition(" = ")
        assert (name, empty_host.sysctl(name.replace(".", "/"))) == (name, value)


def filled(tables: dict) -> dict:
    """Tables in which something is ours; the empty host has nothing else."""
    return {name: table for name, table in tables.items() if table}
