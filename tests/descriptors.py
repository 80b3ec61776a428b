"""Want of file descriptors, for tests of who must live with it."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """This process can open nothing more in the `with` block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest_free:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
