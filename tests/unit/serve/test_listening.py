"""How many sockets may listen."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import pytest

from ipvsproxy.serve.listening import listeners_allowed

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def limited(soft: int) -> Iterator[None]:
    """This process' soft limit of open files is lowered in the `with` block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, HARD))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one():
    with limited(HARD - 1):
        listeners_allowed()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (HARD, HARD)


@pytest.mark.skipif(HARD == resource.RLIM_INFINITY, reason="this machine has no limit")
def test_listeners_leave_512_files_for_all_else():
    with limited(HARD - 1):
        assert listeners_allowed() == max(0, HARD - 512)
