"""The options of `status` that ipvsadm does not have, and which of ipvsadm's may stand beside them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NoReturn

from ipvsproxy.config.field_errors import quoted
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import Cidr, PackedAddr, parse_addr, parse_cidr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.status.names_options import NamesFrom, add_names_options, names_from
from ipvsproxy.status.select import Frontend, Selection, WantedService

_MAX_PORT = 0xFFFF
_MAX_MARK = 0xFFFFFFFF
_EVERY_S: Final = 2.0  # as watch(1)


class View(StrEnum):
    """What to print."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """What was asked for. `every_s` None: once."""

    view: View
    every_s: float | None
    with_names: bool
    totals: bool
    rates: bool
    selection: Selection
    read_from: str  # a file instead of the kernel; empty: none
    names_from: NamesFrom


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError("ipvsproxy status", message, "ipvsproxy status --names --help lists what there is")


def parse(words: Sequence[str]) -> ViewOptions | str:
    """What the words ask for, or the help. Raises ConfigError."""
    parser = make_parser()
    given = parser.parse_args([*words])
    if given.help:
        return parser.format_help().rstrip("\n")
    source = names_from(given)
    selection = _selection(given)
    return ViewOptions(
        view=View(given.output),
        every_s=given.watch,
        with_names=given.names or source.is_named or selection.needs_names,
        totals=given.stats,
        rates=given.rate,
        selection=selection,
        read_from=given.read_from or "",
        names_from=source,
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser, which makes the help too."""
    parser = _Parser(prog="ipvsproxy status", allow_abbrev=False, add_help=False, usage="ipvsproxy status [options]")
    show = parser.add_argument_group("What to show")
    show.add_argument(
        "-o", "--output", choices=[view.value for view in View], default=View.TABLE.value, help="format (default table)"
    )
    show.add_argument("--names", action="store_true", help="Service, pod, node, zone and state beside each server")
    show.add_argument("--stats", action="store_true", help="connections, packets and bytes so far")
    show.add_argument("--rate", action="store_true", help="the same a second")
    show.add_argument(
        "--watch", type=_seconds, nargs="?", const=_EVERY_S, metavar="SECONDS", help="again and again (2)"
    )
    which = parser.add_argument_group("Which servers")
    which.add_argument("-N", "--namespace", default="", metavar="NS", help="of Services of this namespace")
    which.add_argument("--service", metavar="NS/NAME[:PORT]", help="of this Service; PORT: name or number")
    which.add_argument("--address", action="append", default=[], type=_network, metavar="IP|CIDR", help="at, or to, it")
    which.add_argument("--draining", action="store_true", help="real servers that get no new connections")
    which.add_argument("--empty", action="store_true", help="virtual servers without a real server that gets some")
    which.add_argument("--not-ours", action="store_true", help="virtual servers that no Service wants")
    where = parser.add_argument_group("Where from (default: the kernel, and names of the running daemon)")
    where.add_argument("--from", dest="read_from", type=_file, metavar="FILE", help="-o json or ipvsadm -S -n wrote it")
    add_names_options(where)
    theirs = parser.add_argument_group("As ipvsadm's")
    always = ("-L", "-l", "--list", "-n", "--numeric", "-X", "--exact", "--sort")
    theirs.add_argument(*always, action="store_true", help="always so here")
    one = theirs.add_mutually_exclusive_group()
    one.add_argument("-t", "--tcp-service", dest="tcp", type=_endpoint, metavar="IP:PORT", help="this virtual server")
    one.add_argument("-u", "--udp-service", dest="udp", type=_endpoint, metavar="IP:PORT", help="likewise")
    one.add_argument("--sctp-service", dest="sctp", type=_endpoint, metavar="IP:PORT", help="likewise")
    one.add_argument("-f", "--fwmark-service", dest="fwmark", type=_mark, metavar="MARK", help="likewise")
    parser.add_argument("-h", "--help", action="store_true", help="this help")
    return parser


def _selection(given: Any) -> Selection:  # noqa: ANN401  # argparse's namespace
    return Selection(
        namespace=given.namespace,
        service=_service(given.service, given.namespace) if given.service is not None else None,
        frontend=_frontend(given),
        networks=tuple(given.address),
        draining=given.draining,
        empty=given.empty,
        not_ours=given.not_ours,
    )


def _service(text: str, namespace: str) -> WantedService:
    head, _, port = text.partition(":")
    before, slash, name = head.rpartition("/")
    if not name or not (before if slash else namespace) or "/" in before:
        raise ConfigError("--service", f"{quoted(text)} is not NAMESPACE/NAME[:PORT]")
    return WantedService(before or namespace, name, port)


def _frontend(given: Any) -> Frontend | None:  # noqa: ANN401  # argparse's namespace
    if given.fwmark is not None:
        return Frontend(0, b"", 0, given.fwmark)
    for protocol, found in ((Protocol.TCP, given.tcp), (Protocol.UDP, given.udp), (Protocol.SCTP, given.sctp)):
        if found is not None:
            return Frontend(int(protocol), *found)
    return None


def _endpoint(text: str) -> tuple[PackedAddr, int]:
    address, _, port = text.rpartition(":")
    packed = parse_addr(address.removeprefix("[").removesuffix("]"))
    if packed is None or not port.isascii() or not port.isdecimal() or int(port) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not ADDRESS:PORT")
    return packed, int(port)


def _mark(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= _MAX_MARK:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no firewall mark")
    return int(text)


def _network(text: str) -> Cidr:
    address = parse_addr(text)
    network = parse_cidr(text) if address is None else Cidr(address, len(address) * 8)
    if network is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is neither an IP address nor a CIDR")
    return network


def _file(text: str) -> str:
    """Not the empty word that a script's unset variable leaves: it would mean the kernel."""
    if not text:
        raise argparse.ArgumentTypeError("it needs the name of a file")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:  # noqa: PLR2004  # a day; rules out nan too
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no number of seconds above 0")
    return seconds
