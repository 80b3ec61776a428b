"""Time as an argument: the real clock, and nothing else that knows what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in seconds."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""


class SystemClock:
    """The machine's own monotonic clock."""

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, in seconds."""
        return time.monotonic()
