"""`ipvsproxy status` with options that ipvsadm does not have: names, selectors, other formats, again and again.

kernel or file ─→ observed servers ┐
daemon, folder or API server ─→ names ┴→ rows → selection → table, wide, JSON, YAML → standard output
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.errors import ConfigError, IpvsproxyError
from ipvsproxy.names_source import names_reader
from ipvsproxy.status import document
from ipvsproxy.status.names import Names
from ipvsproxy.status.own_options import View, ViewOptions, parse
from ipvsproxy.status.rows import VirtualRow, rows
from ipvsproxy.status.select import is_wanted, select
from ipvsproxy.status.source import Source
from ipvsproxy.status.table import Columns, table_text
from ipvsproxy.stdout import print_lines

_USAGE_ERROR = 2  # as ipvsadm's
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"  # home, the screen, what was scrolled away: as clear(1)

Show: TypeAlias = Callable[[Source], int]
WithSource: TypeAlias = Callable[[str, Show], int]


def run(words: Sequence[str], with_source: WithSource, wait: Callable[[float], None] = time.sleep) -> int:
    """Print what the words ask for; the exit code. Raises IpvsproxyError and BrokenPipeError.

    `with_source` calls back with what a file tells or, where its name is empty, with the kernel.
    """
    try:
        options = parse(words)
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201  # a usage error is ipvsadm's kind of message
        return _USAGE_ERROR
    if isinstance(options, str):
        print_lines([options])
        return ExitCode.OK
    return with_source(options.read_from, partial(_show, options, wait))


def _show(options: ViewOptions, wait: Callable[[float], None], source: Source) -> int:
    """Once, or until somebody has seen enough. Real servers are asked for as their lines are written."""
    real_servers = partial(source.real_servers, with_statistics=True)
    wanted = partial(is_wanted, selection=options.selection)
    read_names = names_reader(options.names_from) if options.with_names else lambda: None
    known = read_names()
    failure: IpvsproxyError | None = None
    while True:
        servers = source.virtual_servers(with_statistics=True)
        all_rows = rows(servers, Names(known) if known else None, real_servers, wanted)
        print_lines(_lines(source.info(), select(all_rows, options.selection), options))
        if failure is not None:
            print(f"names as they were: {failure}", file=sys.stderr, flush=True)  # noqa: T201  # below its table
        if options.every_s is None:
            return ExitCode.OK
        wait(options.every_s)
        try:
            known, failure = read_names(), None
        except IpvsproxyError as error:  # such as a daemon that starts anew
            failure = error


def _lines(info: document.Info, found: Iterable[VirtualRow], options: ViewOptions) -> Iterator[str]:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    again = options.every_s is not None
    match options.view:
        case View.JSON:
            yield from (document.json_line if again else document.json_text)(info, found)
        case View.YAML:
            yield from ("---",) if again else ()
            yield from document.yaml_text(info, found)
        case _:
            wide = options.view is View.WIDE
            columns = Columns(options.with_names, options.totals or wide, options.rates or wide, wide)
            lines = table_text(found, columns, in_colour=is_terminal and wants_colour(os.environ))
            yield from _again(lines, is_terminal=is_terminal) if again else lines


def _again(lines: Iterator[str], *, is_terminal: bool) -> Iterator[str]:
    """One of many tables: on a terminal it takes the place of the one before, elsewhere a blank line parts them."""
    if is_terminal:
        yield _CLEAR + next(lines)
        yield from lines
    else:
        yield from lines
        yield ""


def wants_colour(environ: Mapping[str, str]) -> bool:
    """Whether whoever runs this wants colours on a terminal. Source: https://no-color.org."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
