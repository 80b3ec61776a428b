"""Log lines: an event with keys, as JSON for machines or as text for people. Set up once, by the command line.

    {"timestamp":"2026-11-30T05:25:00.123456Z","level":"info","event":"sync_finished","services":412,…}

Modules log through `structlog.get_logger()`. What libraries log through the standard library at warning and above comes
out in the same form, so that a log of JSON lines holds nothing else. A line is short enough for a pipe to take it
whole: of long values the beginning and the end are written, of long lists the first items.
"""

from __future__ import annotations

import io
import json
import logging
import select
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ipvsproxy.config.types import LogFormat, Remark

_DEBUG_VERBOSITY = 2
_LINE_BYTES = 4000  # below PIPE_BUF, also with some characters of several bytes
_LEAST_BYTES = 64  # of a value that is shortened
_FIRST_KEYS = ("timestamp", "level", "event")
_GAP = " … "


def configure(
    log_format: LogFormat, verbosity: int, stream: TextIO | None, *, cache: bool = True, least: int = logging.INFO
) -> None:
    """Write log lines to `stream`, if there is one; text where it is a terminal and no format is asked for.

    Verbosity 0 and 1 log `least` and above, 2 and more debug too. Without `cache` a later call changes loggers in use.
    """
    stream = stream or io.StringIO()  # the program was started with its standard error closed
    level = logging.DEBUG if verbosity >= _DEBUG_VERBOSITY else least
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
        render: Processor = structlog.processors.JSONRenderer(default=str)
        return [structlog.processors.format_exc_info, _put_event_first, _Bounded(render)]
    if is_terminal:
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, _put_event_first, _Bounded(structlog.processors.LogfmtRenderer())]


def _put_event_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The keys that every line has come first: lines of one event then look alike from their start."""
    return {key: event[key] for key in _FIRST_KEYS if key in event} | dict(event)


class _Bounded:
    """Renders a line of `_LINE_BYTES` at most, whose values are shortened as far as that takes: JSON stays JSON."""

    def __init__(self, render: Processor) -> None:
        self._render = render

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        line, room = self._line(logger, method, event), _LINE_BYTES
        while len(line) > _LINE_BYTES and room > _LEAST_BYTES:
            room = room * 3 // 4
            line = self._line(logger, method, {key: _shortened(value, room) for key, value in event.items()})
        if len(line) <= _LINE_BYTES:
            return line.decode()
        first = {key: _shortened(event[key], _LEAST_BYTES) for key in _FIRST_KEYS if key in event}
        return self._line(logger, method, first | {"keys_left_out": len(event) - len(first)}).decode()

    def _line(self, logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        return str(self._render(logger, method, dict(event))).encode(errors="backslashreplace")


def _shortened(value: object, room: int) -> object:
    """`value`, or as much of it as `room` bytes of JSON tell. Of a traceback the end says what happened."""
    if _size(value) <= room:
        return value
    if isinstance(value, list | tuple):
        return _first_items(value, room)
    text = value if isinstance(value, str) else _json(value)
    half = min(room, len(text)) // 2
    while half and _size(text[:half] + _GAP + text[len(text) - half :]) > room:
        half = half * 3 // 4
    return text[:half] + _GAP + text[len(text) - half :]


def _first_items(items: Sequence[object], room: int) -> list[object]:
    kept: list[object] = []
    for item in items:
        kept.append(_shortened(item, room // 4))
        if _size(kept) > room:
            kept.pop()
            break
    return [*kept, f"… and {len(items) - len(kept)} more"]


def _size(value: object) -> int:
    return len(_json(value))


def _json(value: object) -> str:
    return json.dumps(value, default=str, skipkeys=True)


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
