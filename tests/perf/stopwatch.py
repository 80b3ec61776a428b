"""Where this thread's CPU time goes, by named parts that may lie inside each other: each moment counts for one part.

Under icount a nanosecond of CPU time is an instruction of the guest, so what this gives are instructions.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ipvsproxy.kernel.netlink import open_netlink

P = ParamSpec("P")
T = TypeVar("T")

OUTSIDE, KERNEL = "", "kernel"


class TimedSocket:
    """A netlink socket whose system calls count for the kernel."""

    def __init__(self, opened: socket.socket, stopwatch: Stopwatch) -> None:
        self.send = stopwatch.timed(KERNEL, opened.send)
        self.recv_into = stopwatch.timed(KERNEL, opened.recv_into)
        self.close = opened.close


class Stopwatch:
    """The time of each part since the last `take`; OUTSIDE is what belongs to none."""

    def __init__(self, now: Callable[[], int] = time.thread_time_ns) -> None:
        self._now = now
        self._parts: Counter[str] = Counter()
        self._part = OUTSIDE
        self._since = now()

    def switch(self, part: str) -> str:
        """From here on it is `part`; the part that it was."""
        now = self._now()
        self._parts[self._part] += now - self._since
        before, self._part, self._since = self._part, part, now
        return before

    def timed(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function with its time counted for `part`."""

        @wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            before = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(before)

        return counted

    def take(self) -> Counter[str]:
        """The times of all parts, which begin anew."""
        self.switch(self._part)
        taken, self._parts = self._parts, Counter()
        return taken

    def open_timed(self, protocol: int) -> TimedSocket:
        """A socket for a NetlinkSocket, its system calls timed."""
        return TimedSocket(open_netlink(protocol), self)
