"""Log lines: an event with keys, as JSON for machines or as text for people. Set up once, by the command line.

    {"timestamp":"2026-11-30T05:25:00.123456Z","level":"info","event":"sync_finished","services":412,…}

Modules log through `structlog.get_logger()`. What libraries log through the standard library at warning and above comes
out in the same form, so that a log of JSON lines holds nothing else.
"""

from __future__ import annotations

import io
import logging
import select
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ipvsproxy.config.types import LogFormat, Remark

_DEBUG_VERBOSITY = 2
_LINE_BYTES = 4000  # below PIPE_BUF, also with some characters of several bytes


def configure(log_format: LogFormat, verbosity: int, stream: TextIO | None, *, cache: bool = True) -> None:
    """Write log lines to `stream`, if there is one; text where it is a terminal and no format is asked for.

    Verbosity 0 and 1 log info and above, 2 and more debug too. Without `cache` a later call changes loggers in use.
    """
    stream = stream or io.StringIO()  # the program was started with its standard error closed
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


def tell_remarks(remarks: Iterable[Remark]) -> None:
    """Log what there is to say of a configuration."""
    log = structlog.get_logger()
    for remark in remarks:
        tell = log.warning if remark.is_warning else log.info
        tell(remark.event, **remark.keys)


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
    """Writes whole lines; loses them where a reader is gone or does not read, for that must not stop traffic."""

    def __init__(self, stream: TextIO, lock: threading.Lock) -> None:
        self._stream = stream
        self._lock = lock

    def msg(self, line: str) -> None:
        with self._lock, suppress(OSError, ValueError):
            if _takes_a_line(self._stream):
                self._stream.write(line[:_LINE_BYTES] + "\n")
                self._stream.flush()

    debug = info = warning = error = critical = msg


def _takes_a_line(stream: TextIO) -> bool:
    """Whether a line can be written without waiting; a pipe that polls as writable has room for PIPE_BUF bytes."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not a file of the system
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & (select.POLLOUT | select.POLLERR) for _, event in poll.poll(0))


class _LineLoggerFactory:
    """What structlog asks for a logger; all of them share one lock, so lines of two threads never mix."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, *_arguments: object) -> _LineLogger:
        return _LineLogger(self._stream, self._lock)
