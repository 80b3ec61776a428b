"""What every rule of the configuration has at hand: a place for what is wrong, and readings that several share."""

from __future__ import annotations

from collections.abc import Mapping

from ipvsproxy.config.durations import NANOSECONDS_PER_SECOND, parse_duration
from ipvsproxy.config.field_errors import FieldError, FieldValue
from ipvsproxy.config.types import Duration

ROOT = "KubeProxyConfiguration"
MAX_INT32 = 2**31 - 1
NOT_NEGATIVE = "must be greater than or equal to 0"
POSITIVE = "must be greater than 0"


class Check:
    """Collects what is wrong. A checking function that refused a value returns any other: nobody will see it."""

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self.errors: list[FieldError] = []
        self._spellings = spellings

    def refuse(self, field: str, path: str, value: FieldValue, detail: str, problem: str = "Invalid value") -> None:
        """Note an error of `field`; `path` is what upstream's messages call it."""
        self.errors.append(FieldError(path, value, detail, problem, self._spellings.get(field, "")))

    def duration(self, field: str, path: str, text: Duration) -> int | None:
        """Nanoseconds, or None after a refusal. own: upstream's parsers say it in their own words."""
        nanoseconds = parse_duration(text)
        if nanoseconds is None:
            self.refuse(field, path, text, "must be a duration such as 1m30s, 500ms or 0, of less than 292 years")
        return nanoseconds

    def timeout_s(self, field: str, path: str, text: Duration, max_s: int) -> int:
        """Whole seconds, as upstream cuts them, and not negative. own: the upper bound."""
        nanoseconds = self.duration(field, path, text) or 0
        seconds = nanoseconds // NANOSECONDS_PER_SECOND
        if nanoseconds < 0:
            self.refuse(field, path, text, NOT_NEGATIVE)
        elif seconds > max_s:
            self.refuse(field, path, text, f"must be less than or equal to {max_s}s")
        return seconds

    def not_negative(self, field: str, path: str, value: int) -> int:
        """The number, refused below zero."""
        if value < 0:
            self.refuse(field, path, value, NOT_NEGATIVE)
        return value
