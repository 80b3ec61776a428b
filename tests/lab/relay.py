"""Passes a guest's console on, up to the mark that ends it.

A serial console carries the command's output and, behind it, the kernel's own words. The guest prints a mark and the
exit code when the command has ended; what follows is nobody's output. Output is passed on byte by byte as it comes,
because progress dots end no line; only bytes that may be the start of the mark wait.
"""

import re
from collections.abc import Callable


class Relay:
    """Feeds console bytes to `write` and reads the exit code behind `mark`."""

    def __init__(self, mark: bytes, write: Callable[[bytes], None]) -> None:
        self._mark = mark
        self._write = write
        self._held = b""
        self._after: bytes | None = None

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, None until the guest has told it."""
        told = re.match(rb" (\d+)\n", self._after or b"")
        return int(told[1]) if told else None

    def feed(self, chunk: bytes) -> None:
        """Take what came in, in pieces of any size; carriage returns are the terminal's and are dropped."""
        chunk = chunk.replace(b"\r", b"")
        if self._after is not None:
            self._after += chunk
            return
        output, found, after = (self._held + chunk).partition(self._mark)
        if found:
            self._held, self._after = b"", after
        else:
            self._held = self._possible_start(output)
            output = output[: len(output) - len(self._held)]
        if output:
            self._write(output)

    def close(self) -> None:
        """Pass on what was held back: the console ended without the mark."""
        if self._held:
            self._write(self._held)
        self._held = b""

    def _possible_start(self, output: bytes) -> bytes:
        for length in range(min(len(output), len(self._mark) - 1), 0, -1):
            if output.endswith(self._mark[:length]):
                return output[-length:]
        return b""
