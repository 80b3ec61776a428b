"""Counters as ipvsadm writes them: nine columns, in thousands, millions and so on where that does not do.

Source: ipvsadm 1.31, ipvsadm.c print_largenum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Figures: TypeAlias = Callable[[tuple[int, ...]], str]
"""Text of the numbers of a line."""

# The first limit that is above a number says by what it is divided, cut off, and which letter tells so.
_SCALES = ((10**9, 10**3, "K"), (10**11, 10**6, "M"), (10**14, 10**9, "G"))
_BEYOND = (10**12, "T")
_UNSCALED = 10**8


def scaled(numbers: tuple[int, ...]) -> str:
    """Each in nine columns, by factors of 1000, never rounded."""
    if max(numbers) < _UNSCALED:  # most of a table
        return "%9d" * len(numbers) % numbers
    return "".join(map(_scaled, numbers))


def exact(numbers: tuple[int, ...]) -> str:
    """All digits, behind a blank where they fill the columns."""
    return " %8d" * len(numbers) % numbers


def _scaled(number: int) -> str:
    if number < _UNSCALED:
        return f"{number:9}"
    for limit, divisor, letter in _SCALES:
        if number < limit:
            return f"{number // divisor:8}{letter}"
    divisor, letter = _BEYOND
    return f"{number // divisor:8}{letter}"


def unsigned(number: int) -> int:
    """What of a number a C program sees that reads 32 bits of it."""
    return number & 0xFFFF_FFFF


def signed(number: int) -> int:
    """An unsigned 32-bit number as C's `%d` prints it."""
    return (number & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000
