"""The words behind `ipvsproxy top`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ipvsproxy.errors import ConfigError
from ipvsproxy.status.names_options import DAEMON, NamesFrom, add_names_options, names_from
from ipvsproxy.top.figures import Order

_SHORTEST_S, _LONGEST_S = 0.1, 3600
_EPILOG = """\
Keys sort by the column that begins with them, and the other way round when
pressed again: a, i, c, p, b (bytes both ways), d (draining), e (empty first),
n (name). v shows addresses where Services' names have their place. q and Ctrl-C
end it.

Rates are what was counted since the last look; the first look, and --once
without --interval, show the kernel's own estimate."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What was asked for. `interval_s` is None where it was not given; `help` is the text to print instead of all."""

    once: bool = False
    interval_s: float | None = None
    order: Order = Order.CONNECTIONS
    names_from: NamesFrom = DAEMON
    help: str = ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError("top", message, "ipvsproxy top --help lists what there is")


def parse_options(words: Sequence[str]) -> TopOptions:
    """Raises ConfigError."""
    parser = make_parser()
    found = parser.parse_args(list(words))
    if found.help:
        return TopOptions(help=parser.format_help().rstrip("\n"))
    return TopOptions(found.once, found.interval, Order(found.sort), names_from(found))


def make_parser() -> argparse.ArgumentParser:
    """What makes the help, and completions."""
    parser = _Parser(
        prog="ipvsproxy top",
        description="Connections, rates and draining of every virtual server, as they change. Needs root, no daemon.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("--once", action="store_true", help="Print all virtual servers once, as plain lines.")
    parser.add_argument("--interval", type=_interval, metavar="SECONDS", help="How often to look; 2 if not given.")
    parser.add_argument(
        "--sort",
        choices=[order.value for order in Order],
        default=Order.CONNECTIONS.value,
        metavar="COLUMN",
        help=f"What to sort by at first: {', '.join(Order)}; {Order.CONNECTIONS} if not given.",
    )
    add_names_options(parser.add_argument_group("Names of Services (of the running daemon, if none is given)"))
    parser.add_argument("-h", "--help", action="store_true", help="Print this and exit.")
    return parser


def _interval(text: str) -> float:
    seconds = float(text)
    if not _SHORTEST_S <= seconds <= _LONGEST_S:  # which nan is not
        raise argparse.ArgumentTypeError(f"must be from {_SHORTEST_S} to {_LONGEST_S} seconds")
    return seconds
