"""`ipvsproxy top`: what goes through IPVS now, as a screen that follows it or, with --once, as lines for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeAlias

import msgspec

from ipvsproxy.clock import Clock, SystemClock
from ipvsproxy.cluster.known import Known
from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.daemon_client import ask
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.kernel.conntrack import NetlinkConntrack
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.tracking_errors import read_tracking_errors
from ipvsproxy.model.figures import Undone
from ipvsproxy.model.observed import ObservedVirtualServer
from ipvsproxy.model.printable import printable
from ipvsproxy.names_source import names_of_daemon, names_reader
from ipvsproxy.serve.local_socket import UNDONE
from ipvsproxy.status.names import Names
from ipvsproxy.status.names_options import NamesFrom
from ipvsproxy.stdout import print_lines
from ipvsproxy.top.figures import Figures, Order, Row, Sample, figures, in_order, sample_of
from ipvsproxy.top.options import TopOptions, parse_options
from ipvsproxy.top.screen import COLUMNS, View, cells, screen, words_of_state
from ipvsproxy.top.terminal import Screen, is_dumb_terminal, open_terminal

DEFAULT_INTERVAL_S = 2.0
_NAMES_EVERY_S = 30.0  # at 10,000 Services they are a second's work for the daemon
_NAMES_PATIENCE_S, _UNDONE_PATIENCE_S = 5.0, 0.5  # a screen is waiting
_TITLE = ("virtual server", "service", *COLUMNS, "")
_ORDERS = {order.letter: order for order in Order}
_QUIT = frozenset({"q", "Q", "", "\x04"})  # the empty one: the terminal is gone

_BY_VIP = "v"
_NO_SERVICE = "-"
_ONCE = "ipvsproxy top --once prints lines"

Look: TypeAlias = Callable[[], Sample]
ReadNames: TypeAlias = Callable[[], Known | None]


def run(arguments: Sequence[str]) -> int:
    """Show what the arguments ask for; the exit code. Raises IpvsproxyError, BrokenPipeError."""
    options = parse_options(arguments)
    if options.help:
        print_lines([options.help])
        return ExitCode.OK
    with kernel_samples(Services(_names_reader(options.names_from), SystemClock())) as look:
        if options.once:
            print_lines(listing(_once(options, look), options.order))
        else:
            _show(options, look)
    return ExitCode.OK


@contextmanager
def kernel_samples(services: Services) -> Iterator[Look]:
    """Looks at this network namespace. Each raises KernelError where IPVS cannot be read, and what `services` does."""
    conntrack = NetlinkConntrack()
    with closing(NetlinkIpvs()) as ipvs:

        def look() -> Sample:
            servers = ipvs.virtual_servers(with_statistics=True)
            service_of = services.now()
            found = tuple(sample_of(server, ipvs.real_servers(server), service_of(server)) for server in servers)
            return Sample(time.monotonic(), found, conntrack.usage(), read_tracking_errors(), undone())

        yield look


class Services:
    """Which Service port is behind a virtual server, as its source last told; it is asked anew only now and then."""

    def __init__(self, read: ReadNames, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._names: Names | None = None
        self._due_at = 0.0

    def now(self) -> Callable[[ObservedVirtualServer], str]:
        """What gives the name; empty where there is none to give. Raises IpvsproxyError where the source fails."""
        if self._clock.monotonic() >= self._due_at:
            known = self._read()
            self._names = Names(known) if known else self._names
            self._due_at = self._clock.monotonic() + _NAMES_EVERY_S
        names = self._names
        return lambda server: printable(str((names and names.owner(server)) or ""))


def _names_reader(source: NamesFrom) -> ReadNames:
    """A source that was named has to answer; a daemon need not be there."""
    return names_reader(source) if source.is_named else _names_of_any_daemon


def _names_of_any_daemon() -> Known | None:
    try:
        return names_of_daemon(patience_s=_NAMES_PATIENCE_S)
    except IpvsproxyError:
        return None


def undone(path: str = "") -> Undone | None:
    """What the daemon has not brought about; None without one. `path`: as for daemon_client.ask."""
    try:
        return msgspec.json.decode(ask(UNDONE, patience_s=_UNDONE_PATIENCE_S, path=path), type=Undone)
    except (IpvsproxyError, msgspec.DecodeError):
        return None


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
    for name, service, *others, state in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[2:-1], strict=True))
        yield "  ".join((name.ljust(widths[0]), service.ljust(widths[1]), *numbers, state)).rstrip()


def _words(row: Row) -> tuple[str, ...]:
    return (row.name, row.service or _NO_SERVICE, *cells(row), words_of_state(row))


def _show(options: TopOptions, look: Look) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise IpvsproxyError("top", "standard input and output are no terminal", _ONCE)
    if is_dumb_terminal():
        raise IpvsproxyError("top", "a terminal like this (TERM) takes lines only", _ONCE)
    try:
        with open_terminal(sys.stdin.fileno()) as terminal:
            follow(options, look, terminal, SystemClock())
    except KeyboardInterrupt:
        return  # as good an end as q


def follow(options: TopOptions, look: Look, terminal: Screen, clock: Clock) -> None:
    """Look, draw and wait for a key, until one that quits. One that sorts draws at once, without another look."""
    interval_s = options.interval_s or DEFAULT_INTERVAL_S
    order, is_reversed, by_vip = options.order, False, False
    before, now = None, look()
    while True:
        columns, lines = terminal.size
        terminal.draw(screen(figures(now, before), View(order, is_reversed, lines, columns, by_vip)))
        key = terminal.wait(max(0.0, now.at + interval_s - clock.monotonic()))
        if key in _QUIT:
            return
        if key is None:
            before, now = now, look()
        elif key == _BY_VIP:
            by_vip = not by_vip
        elif key in _ORDERS:
            is_reversed = not is_reversed if _ORDERS[key] is order else False
            order = _ORDERS[key]
