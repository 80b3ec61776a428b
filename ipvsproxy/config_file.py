"""The configuration file on disk: read and written whole."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from ipvsproxy.errors import ConfigError

_MAX_BYTES: Final = 4 << 20  # four times what a ConfigMap can hold
_MODE = 0o644  # of a new file, as upstream


def read_bytes(path: str) -> bytes:
    """What the file holds; it is read again and again, so it must be one that can be. Raises ConfigError."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"--config {path}", "it is no regular file", "Name a file that can be read again")
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--config {path}", error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character
        raise ConfigError("--config", str(error)) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"--config {path}", f"it has more than {_MAX_BYTES} bytes")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe would wait for somebody who writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


class FirstHandedOver:
    """Reads the file; the first time it is what the run before this one has handed over, if it has.

    That has been loaded, so a file that turns bad while the process restarts does not end it.
    """

    def __init__(self, handed_over: bytes | None) -> None:
        self._handed_over = handed_over

    def read(self, path: str) -> bytes:
        """What the file holds, or held. Raises ConfigError."""
        handed_over, self._handed_over = self._handed_over, None
        return read_bytes(path) if handed_over is None else handed_over


def write_text(path: str, text: str) -> None:
    """Put `text` into the file: whole, or not at all. Raises ConfigError."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # /dev/stdout
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--write-config-to {path}", getattr(error, "strerror", None) or str(error)) from error


def _replace(target: Path, text: str) -> None:
    """Whoever reads `target` meanwhile sees the old text or the new one."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _MODE
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    draft = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            os.fchmod(number, mode)
            file.write(text)
            file.flush()
            os.fsync(number)
        draft.replace(target)
    except BaseException:
        draft.unlink()
        raise
