"""What `kernel/api.py` promises of Sysctls, on the fake and on the real kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing

import pytest

from ipvsproxy.kernel.api import Sysctls
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.sysctls import ProcSysctls, sysctl_path
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb
from ipvsproxy.modes.ipvs.sysctls import ALL_SYSCTLS

FORWARD = "net.ipv4.ip_forward"
MISSING = "net.ipv4.no_such_setting"


@pytest.fixture
def sysctls(pick: Callable, fake_kernel: FakeKernel) -> Sysctls:
    return pick(fake_kernel.kernel.sysctls, lambda: ProcSysctls(ALL_SYSCTLS))


@pytest.fixture
def real(sysctls: Sysctls, real_kernel: None) -> ProcSysctls:  # noqa: ARG001  # the fake has no files
    assert isinstance(sysctls, ProcSysctls)
    return sysctls


def write(name: str, value: str) -> Operation:
    return Operation(Verb.EDIT, Kind.SYSCTL, name, value)


def test_a_written_value_reads_back(sysctls):
    for value in ("1", "0", "1"):
        assert sysctls.apply([write(FORWARD, value)]) == [0]
        assert sysctls.read()[Kind.SYSCTL][FORWARD] == value


def test_a_setting_that_does_not_exist_answers_enoent_and_loses_only_itself(sysctls):
    assert sysctls.apply([write(MISSING, "1"), write(FORWARD, "1")]) == [errno.ENOENT, 0]
    found = sysctls.read()[Kind.SYSCTL]
    assert found[FORWARD] == "1"
    assert MISSING not in found


def test_settings_that_exist_are_read_and_no_others(sysctls):
    assert FORWARD in sysctls.read()[Kind.SYSCTL]
    assert set(sysctls.read()[Kind.SYSCTL]) <= ALL_SYSCTLS


def test_a_value_that_the_kernel_does_not_take_answers_einval(real):
    assert real.apply([write(FORWARD, "many")]) == [errno.EINVAL]


def test_every_setting_of_ipvs_mode_can_be_written_where_ipvs_is(real):
    with closing(NetlinkIpvs()) as ipvs:
        ipvs.read()  # loads ip_vs
    present = {name for name in ALL_SYSCTLS if sysctl_path(name).exists()}
    assert present == ALL_SYSCTLS
    assert real.apply([write(name, "1") for name in sorted(present)]) == [0] * len(present)
    assert real.read()[Kind.SYSCTL] == dict.fromkeys(present, "1")
