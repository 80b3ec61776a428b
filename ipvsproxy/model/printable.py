"""Text of anybody's that a terminal is to show and not to obey."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with a question mark for each character that has no shape of its own, such as control characters."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
