"""What is to be tried again, and when: each failing thing waits twice as long as the last time, up to a minute."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

from ipvsproxy.clock import Clock

FIRST_S = 0.5
LONGEST_S = 60.0
_DOUBLINGS = 10  # more than enough; what fails for days must not overflow a float

K = TypeVar("K", bound=Hashable)


class _Attempt(msgspec.Struct, frozen=True):
    tries: int
    due: float


class Retries(Generic[K]):
    """The things that fail, by key. Times are the clock's monotonic seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: dict[K, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[K]:
        return iter(self._attempts)

    def __contains__(self, key: K) -> bool:
        return key in self._attempts

    def failed(self, key: K) -> int:
        """It failed (again); how often by now."""
        tries = self._attempts[key].tries + 1 if key in self._attempts else 1
        wait_s = min(FIRST_S * 2 ** min(tries - 1, _DOUBLINGS), LONGEST_S)
        self._attempts[key] = _Attempt(tries, self._clock.monotonic() + wait_s)
        return tries

    def tries(self, key: K) -> int:
        """How often it has failed; 0 where it has not."""
        return self._attempts[key].tries if key in self._attempts else 0

    def hold(self, key: K) -> None:
        """It waits for something else: no time of its own wakes anybody, and its tries are kept."""
        if key in self._attempts:
            self._attempts[key] = _Attempt(self._attempts[key].tries, math.inf)

    def succeeded(self, key: K) -> int:
        """It works; how often it had failed before, 0 where it had not."""
        attempt = self._attempts.pop(key, None)
        return attempt.tries if attempt else 0

    def due_at(self, key: K) -> float:
        """When it is to be tried again; has always been due where it does not fail."""
        return self._attempts[key].due if key in self._attempts else -math.inf

    def due(self) -> list[K]:
        """What is to be tried now."""
        now = self._clock.monotonic()
        return [key for key, attempt in self._attempts.items() if attempt.due <= now]

    @property
    def next_due(self) -> float | None:
        """When the next one is due; None where nothing fails but what waits for something else."""
        due = min((attempt.due for attempt in self._attempts.values()), default=math.inf)
        return None if due == math.inf else due
