"""What to do when a list or a watch did not go well: how soon to try again, from where, and asking for what.

Decisions only, so that each of them is a row in a table of tests: no socket, clock or logger is in this file. Statuses
and numbers decide, never the text of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

_BAD_REQUEST = 400
_FORBIDDEN = 403
_INVALID = 422
_CUT_STREAMS = 2
_MOST_SPREAD = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds, but for the page size. Bookmarks come each minute even when idle: 90 s of silence are too long (K16)."""

    silence_s: float = 90.0
    shortest_watch_s: float = 300.0
    longest_watch_s: float = 600.0
    overtime_s: float = 30.0
    """How much longer than it was asked for a watch may last. A proxy may hold it open for a server that is gone."""
    first_retry_s: float = 0.5
    longest_retry_s: float = 30.0
    longest_unreachable_s: float = 4.0
    """Where nobody answers, nobody is spared by waiting, and the tables are to be right soon after a server is back."""
    longest_retry_after_s: float = 120.0
    ask_again_s: float = 3600.0
    """What was refused may have been so by a server, or something before it, that is another one by now."""
    page_size: int = 500


class Cause(StrEnum):
    """Why a request or a stream ended. The texts are for the log."""

    ENDED = "ended after the time that was asked for"
    ENDED_EARLY = "ended by the server too soon"
    EXPIRED = "too old a resourceVersion"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CUT = "cut"
    SILENT = "silent"
    MALFORMED = "not understood"
    UNCONFIGURED = "no usable configuration"


class Interruption(Exception):  # noqa: N818 - mostly no error: watches end every few minutes
    """A list or watch is over. `reason` bears no secrets and is the same for the same trouble; `status` is HTTP's or 0.

    `retry_after_s` is what the server asked for. Raised by the edge, always handled by the watch.
    """

    def __init__(self, cause: Cause, reason: str = "", *, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(cause, reason)
        self.cause = cause
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        status = f" ({self.status})" if self.status else ""
        return f"{self.cause}{status}" + (f": {self.reason}" if self.reason else "")

    @property
    def is_routine(self) -> bool:
        """Whether it is nothing to tell of: the time that a watch was asked for is over."""
        return self.cause is Cause.ENDED

    @property
    def is_forbidden(self) -> bool:
        """Whether our account lacks the right: somebody has to grant it, waiting does not help."""
        return self.status == _FORBIDDEN

    @property
    def needs_list(self) -> bool:
        """Whether the server cannot go on from where we were."""
        return self.cause is Cause.EXPIRED


class Asks(NamedTuple):
    """What the server is asked to do for us. What it refuses is done here for an hour."""

    streaming: bool = True
    """Send the list as events of the watch, so that nobody holds all of it (Kubernetes 1.32 and later)."""
    fields: bool = True
    labels: bool = True


def without_refused(asks: Asks, status: int) -> Asks | None:
    """What is left to ask for after this status; None where the status is about something else.

    A server answers 422 to a parameter that it forbids and 400 to a selector that it does not know. Which one it means
    stands only in the text, so the likelier goes first; each costs one request an hour. Source: apimachinery v0.37.2
    pkg/apis/meta/internalversion/validation; apiserver v0.37.2 pkg/endpoints/handlers/get.go.
    """
    orders = {_INVALID: ("streaming", "fields", "labels"), _BAD_REQUEST: ("fields", "labels", "streaming")}
    for name in orders.get(status, ()):
        if getattr(asks, name):
            return asks._replace(**{name: False})
    return None


def without_cut_stream(asks: Asks, unfinished: int) -> Asks:
    """No streaming list after two that never ended in a row: a proxy, or a server too old to know it, eats the mark."""
    return asks._replace(streaming=False) if unfinished >= _CUT_STREAMS else asks


class Backoff:
    """Waits between tries: doubling, and spread by a factor of 0.5 to 1.5 so that a thousand nodes do not come at once.

    `random` gives numbers from 0 to 1.
    """

    def __init__(self, timing: Timing, random: Callable[[], float]) -> None:
        self._timing = timing
        self._random = random
        self.tries = 0

    def next_s(self, interruption: Interruption) -> float:
        """Seconds to wait now; counts the try. A watch that ended in good order is opened again at once."""
        if interruption.is_routine:
            return 0.0
        self.tries += 1
        timing = self._timing
        unreachable = interruption.cause is Cause.UNREACHABLE
        longest = timing.longest_unreachable_s if unreachable else timing.longest_retry_s
        middle = min(timing.first_retry_s * 2.0 ** min(self.tries - 1, 16), longest / _MOST_SPREAD)
        asked = min(max(interruption.retry_after_s or 0.0, 0.0), timing.longest_retry_after_s)
        return asked + middle * (_MOST_SPREAD - 1 + self._random())

    def reset(self) -> None:
        """The connection proved good: begin anew."""
        self.tries = 0


def parse_retry_after(text: str | None) -> float | None:
    """Seconds of a Retry-After header; None for none, or for a date, which no API server sends."""
    return float(text) if text and text.isascii() and text.isdigit() else None
