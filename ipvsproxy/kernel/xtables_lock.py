"""The lock that every iptables program takes before it changes legacy tables.

python-iptables takes none, so we take it: without it a commit of ours and one of another program can undo each other.
The sync thread must not wait, so a lock that somebody holds is answered with EAGAIN at once.
Source: iptables 1.8.9 iptables/xshared.c `xtables_lock` (flock on /run/xtables.lock, created 0600).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipvsproxy.errors import KernelError

XTABLES_LOCK = Path("/run/xtables.lock")


@contextmanager
def xtables_lock(path: Path = XTABLES_LOCK) -> Iterator[None]:
    """Hold the lock inside the `with` block. KernelError: EAGAIN where it is held, else what opening the file said."""
    descriptor = _open(path)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise KernelError(
            f"cannot open the iptables lock {path}",
            error.errno or 0,
            hint="mount the host's lock file there (in a Pod: hostPath of type FileOrCreate)",
        ) from error


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise KernelError(
            f"cannot take the iptables lock {path}",
            error.errno or 0,
            hint="another program is changing iptables rules; the next attempt may find it free",
        ) from error
