"""The configuration file on disk: read and written whole."""

from __future__ import annotations

from pathlib import Path

from ipvsproxy.errors import ConfigError


def read_bytes(path: str) -> bytes:
    """What the file holds. Raises ConfigError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--config {path}", error.strerror or str(error)) from error
    except ValueError as error:  # a NUL character
        raise ConfigError("--config", str(error)) from error


def write_text(path: str, text: str) -> None:
    """Put `text` into the file. Raises ConfigError."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--write-config-to {path}", getattr(error, "strerror", None) or str(error)) from error
