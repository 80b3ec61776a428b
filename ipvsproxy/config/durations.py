"""Go's duration texts ("1m30s", "500ms", "0"), as every duration of kube-proxy is written.

Source: Go 1.26 time.ParseDuration: an optional sign, then numbers with a unit each, or a lone 0.
"""

from __future__ import annotations

import re

NANOSECONDS_PER_SECOND = 1_000_000_000

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek small letter mu
    "ms": 1_000_000,
    "s": NANOSECONDS_PER_SECOND,
    "m": 60 * NANOSECONDS_PER_SECOND,
    "h": 3600 * NANOSECONDS_PER_SECOND,
}
_PART = re.compile(rf"(?=\.?[0-9])([0-9]{{0,19}})(?:\.([0-9]*))?({'|'.join(_UNITS)})")
_WHOLE = re.compile(rf"[-+]?(?:(?:{_PART.pattern})+|0)")
_FRACTION_DIGITS = 18  # more cannot change a nanosecond
_MAX = 2**63 - 1  # Go's int64: 292 years


def parse_duration(text: str) -> int | None:
    """The duration in nanoseconds, or None where `text` is not one (or longer than 292 years)."""
    if not _WHOLE.fullmatch(text):
        return None
    nanoseconds = sum(_nanoseconds(*part.groups("")) for part in _PART.finditer(text))
    if nanoseconds > _MAX:
        return None
    return -nanoseconds if text.startswith("-") else nanoseconds


def _nanoseconds(whole: str, fraction: str, unit: str) -> int:
    digits = fraction[:_FRACTION_DIGITS]
    scale: int = 10 ** len(digits)
    return int(whole or "0") * _UNITS[unit] + int(digits or "0") * _UNITS[unit] // scale
