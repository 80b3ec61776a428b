"""The kernel that the contract suites run on: the shipped fake or, with --kernel=real, this machine's.

On the real one each test gets a network namespace of its own, which starts without virtual servers, links and rules.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyroute2 import IPRoute

from ipvsproxy.kernel.fake import FakeKernel

CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h


@pytest.fixture
def fake_kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def network_namespace(kernel_kind: str) -> Iterator[None]:
    """A network namespace of its own for the test's thread, where the kernel is real. /proc/sys/net follows."""
    if kernel_kind == "fake":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot make a network namespace; run as root")
        with IPRoute() as ip:  # without any routing table IPVS takes every IPv4 address for a broadcast
            ip.link("set", ifname="lo", state="up")
        yield
        if libc.setns(outside, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot return to the first network namespace")
    finally:
        os.close(outside)


@pytest.fixture
def pick(
    kernel_kind: str,
    network_namespace: None,  # noqa: ARG001  # for its effect
) -> Iterator[Callable[[Any, Callable[[], Any]], Any]]:
    """`pick(fake part, maker of the real one)` gives the one to test; sockets are closed behind it."""
    made: list[Any] = []

    def choose(fake: Any, make_real: Callable[[], Any]) -> Any:
        made.append(fake if kernel_kind == "fake" else make_real())
        return made[-1]

    yield choose
    for subsystem in made:
        if hasattr(subsystem, "close"):
            subsystem.close()
