"""`ipvsproxy top`: what goes through IPVS now, as a screen that follows it or, with --once, as lines for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeAlias

from ipvsproxy.clock import Clock, SystemClock
from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.kernel.conntrack import NetlinkConntrack
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.tracking_errors import read_tracking_errors
from ipvsproxy.stdout import print_lines
from ipvsproxy.top.figures import Figures, Order, Row, Sample, figures, in_order, sample_of
from ipvsproxy.top.options import TopOptions, parse_options
from ipvsproxy.top.screen import COLUMNS, View, cells, screen, words_of_state
from ipvsproxy.top.terminal import Screen, open_terminal

DEFAULT_INTERVAL_S = 2.0
_TITLE = ("virtual server", *COLUMNS, "")
_ORDERS = {order.letter: order for order in Order}
_QUIT = frozenset({"q", "Q", "", "\x04"})  # the empty one: the terminal is gone

Look: TypeAlias = Callable[[], Sample]


def run(arguments: Sequence[str]) -> int:
    """Show what the arguments ask for; the exit code. Raises IpvsproxyError, BrokenPipeError."""
    options = parse_options(arguments)
    if options.help:
        print_lines([options.help])
        return ExitCode.OK
    with kernel_samples() as look:
        if options.once:
            print_lines(listing(_once(options, look), options.order))
        else:
            _show(options, look)
    return ExitCode.OK


@contextmanager
def kernel_samples() -> Iterator[Look]:
    """Looks at this network namespace. Each raises KernelError where IPVS cannot be read."""
    conntrack = NetlinkConntrack()
    with closing(NetlinkIpvs()) as ipvs:

        def look() -> Sample:
            servers = ipvs.virtual_servers(with_statistics=True)
            found = tuple(sample_of(server, ipvs.real_servers(server)) for server in servers)
            return Sample(time.monotonic(), found, conntrack.usage(), read_tracking_errors())

        yield look


def _once(options: TopOptions, look: Look) -> Figures:
    """One look; two, an interval apart, where one is given."""
    first = look()
    if options.interval_s is None:
        return figures(first)
    time.sleep(options.interval_s)
    return figures(look(), first)


def listing(found: Figures, order: Order) -> Iterator[str]:
    """Every row as a line, columns apart by two blanks at least, numbers as on the screen."""
    rows = [_TITLE, *(_words(row) for row in in_order(found.rows, order))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *others, state in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:-1], strict=True))
        yield "  ".join((name.ljust(widths[0]), *numbers, state)).rstrip()


def _words(row: Row) -> tuple[str, ...]:
    return (row.name, *cells(row), words_of_state(row))


def _show(options: TopOptions, look: Look) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise IpvsproxyError("top", "standard input and output are no terminal", "ipvsproxy top --once prints lines")
    try:
        with open_terminal(sys.stdin.fileno()) as terminal:
            follow(options, look, terminal, SystemClock())
    except KeyboardInterrupt:
        return  # as good an end as q


def follow(options: TopOptions, look: Look, terminal: Screen, clock: Clock) -> None:
    """Look, draw and wait for a key, until one that quits. One that sorts draws at once, without another look."""
    interval_s = options.interval_s or DEFAULT_INTERVAL_S
    order, is_reversed = options.order, False
    before, now = None, look()
    while True:
        columns, lines = terminal.size
        terminal.draw(screen(figures(now, before), View(order, is_reversed, lines, columns)))
        key = terminal.wait(max(0.0, now.at + interval_s - clock.monotonic()))
        if key in _QUIT:
            return
        if key is None:
            before, now = now, look()
        elif key in _ORDERS:
            is_reversed = not is_reversed if _ORDERS[key] is order else False
            order = _ORDERS[key]
