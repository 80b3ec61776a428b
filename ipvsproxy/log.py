"""Log lines: an event with keys, as JSON for machines or as text for people. Set up once, by the command line.

    {"timestamp":"2026-11-30T05:25:00.123456Z","level":"info","event":"sync_finished","services":412,…}

Modules log through `structlog.get_logger()`. What libraries log through the standard library at warning and above comes
out in the same form, so that a log of JSON lines holds nothing else.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ipvsproxy.config.types import LogFormat

_DEBUG_VERBOSITY = 2


def configure(log_format: LogFormat, verbosity: int, stream: TextIO, *, cache: bool = True) -> None:
    """Write log lines to `stream`; text where it is a terminal and no format is asked for.

    Verbosity 0 and 1 log info and above, 2 and more debug too. Without `cache` a later call changes loggers in use.
    """
    level = logging.DEBUG if verbosity >= _DEBUG_VERBOSITY else logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(log_format, is_terminal=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_LineLoggerFactory(stream),
        cache_logger_on_first_use=cache,
    )
    logging.basicConfig(handlers=[LibraryHandler()], level=logging.WARNING)


def _rendering(log_format: LogFormat, *, is_terminal: bool) -> list[Processor]:
    if log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not is_terminal):
        return [structlog.processors.format_exc_info, _put_event_first, structlog.processors.JSONRenderer(default=str)]
    if is_terminal:
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, _put_event_first, structlog.processors.LogfmtRenderer()]


def _put_event_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The keys that every line has come first: lines of one event then look alike from their start."""
    return {key: event[key] for key in ("timestamp", "level", "event") if key in event} | dict(event)


class LibraryHandler(logging.Handler):
    """Turns records of the standard library's logging into events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        log = structlog.get_logger()
        log.log(
            record.levelno, "library_message", logger=record.name, message=record.getMessage(), exc_info=record.exc_info
        )


class _LineLogger:
    """Writes whole lines. A reader that went away, or a full disk, must not stop traffic: the line is lost."""

    def __init__(self, stream: TextIO, lock: threading.Lock) -> None:
        self._stream = stream
        self._lock = lock

    def msg(self, line: str) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


class _LineLoggerFactory:
    """What structlog asks for a logger; all of them share one lock, so lines of two threads never mix."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, *_arguments: object) -> _LineLogger:
        return _LineLogger(self._stream, self._lock)
