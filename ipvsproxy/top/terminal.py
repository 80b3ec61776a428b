"""A terminal as a screen with keys: what stood there before, and how it was set, comes back whatever happens."""

from __future__ import annotations

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

_KEY_BYTES = 32  # a key may send several; all that came together counts once


class Screen(Protocol):
    """What is drawn on, and where keys come from."""

    @property
    def size(self) -> tuple[int, int]:
        """How many columns and lines it has now."""

    def draw(self, screen: RenderableType) -> None:
        """Show this instead of what is there."""

    def wait(self, timeout_s: float) -> str | None:
        """The next key, None after so long; empty text where no more can come."""


class Keyboard:
    """A terminal's keys while it is open. `descriptor` must be a terminal's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[int | list[bytes | int]] = []

    def __enter__(self) -> Self:
        """Keys come one by one and are not echoed; Ctrl-C still interrupts."""
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, timeout_s: float) -> str | None:
        """The next key, None after so long; empty text where nobody is at the terminal any more."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return None
        try:
            return os.read(self._descriptor, _KEY_BYTES).decode(errors="replace")
        except OSError:  # EIO: the other side has hung up
            return ""


class Terminal:
    """A whole screen to draw on, and its keys."""

    def __init__(self, live: Live, keyboard: Keyboard) -> None:
        self._live = live
        self._keyboard = keyboard

    @property
    def size(self) -> tuple[int, int]:
        """How many columns and lines it has now: somebody may pull at its window."""
        return self._live.console.size

    def draw(self, screen: RenderableType) -> None:
        """Show this instead of what is there."""
        self._live.update(screen, refresh=True)

    def wait(self, timeout_s: float) -> str | None:
        """See Keyboard."""
        return self._keyboard.wait(timeout_s)


def is_dumb_terminal() -> bool:
    """Whether rich would draw nothing on the terminal of standard output, since that moves no cursor."""
    return Console().is_dumb_terminal


@contextmanager
def open_terminal(descriptor: int) -> Iterator[Terminal]:
    """The terminal of standard output, whose keys come by this descriptor."""
    with Keyboard(descriptor) as keyboard, Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield Terminal(live, keyboard)
