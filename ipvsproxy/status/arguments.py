"""What a command line of ipvsadm asks for, or why ipvsadm refuses it, in its order of checks and its words.

    words → options in their order (bad values, options given twice) → words left over → scheduler flags
          → the table of what goes with which command, in the table's order → what excludes what

Options that only make sense where something is written are checked as well: they decide which message comes first.
Source: ipvsadm 1.31, ipvsadm.c parse_options, process_options, generic_opt_check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.observed import ServiceName
from ipvsproxy.status import help_text, option_values, selectors
from ipvsproxy.status.endpoints import Resolver
from ipvsproxy.status.option_words import BAD_OPTION, OptionWords, Refused, Token
from ipvsproxy.status.requests import Columns, Connections, Daemons, Request, Rules, Table, Text, Timeouts
from ipvsproxy.status.source import mark_name

_TRY_HELP = "Try `ipvsadm -h' or 'ipvsadm --help' for more information."

# In the order in which they are checked.
_OPTION_ORDER = (
    *("numeric", "connection", "service-address", "scheduler", "persistent", "netmask", "real-server"),
    *("forwarding-method", "weight", "u-threshold", "l-threshold", "mcast-interface", "timeout", "daemon", "stats"),
    *("rate", "thresholds", "persistent-conn", "nosort", "syncid", "exact", "ops", "pe", "sched-flags"),
    *("mcast-group", "mcast-port", "mcast-ttl", "sync-maxlen"),
    *("tun-info", "tun-type", "tun-port", "tun-nocsum", "tun-csum", "tun-remcsum"),
)
_ONE_OF = frozenset({"connection", "service-address", "timeout", "daemon"})
_FIGURES = frozenset({"stats", "rate", "thresholds"})
_ALLOWED = {
    "list": _ONE_OF | _FIGURES | {"numeric", "persistent-conn", "nosort", "syncid", "exact", "tun-info"},
    "save": frozenset({"numeric"}),
}
_READING = frozenset({*_ALLOWED, "help", "version"})
_COLUMNS = {
    "stats": Columns.STATISTICS,
    "rate": Columns.RATES,
    "thresholds": Columns.THRESHOLDS,
    "persistent-conn": Columns.PERSISTENCE,
    "tun-info": Columns.TUNNELS,
}
_UNRECORDED = frozenset({"sort", "ipv6"})


def written_by(words: Sequence[str]) -> str | None:
    """The command of this command line as ipvsadm calls it, if it is one that changes something."""
    try:
        first = next(iter(OptionWords(words)), None)
    except Refused:
        return None
    if first is None or not first.option.is_command or first.option.meaning in _READING:
        return None
    return first.option.meaning


def parse(words: Sequence[str], resolver: Resolver) -> Request:
    """What the words after the program's name ask for; they must not name a command that writes. Raises Refused."""
    if not words:
        return Table()
    given = OptionWords(words)
    tokens = iter(given)
    try:
        command = next(tokens, None)
    except Refused:
        command = None
    if command is None or not command.option.is_command:
        raise Refused(_TRY_HELP, BAD_OPTION)
    if command.option.meaning in {"help", "version"}:
        return Text(help_text.HELP if command.option.meaning == "help" else help_text.VERSION)
    options = _Options(resolver)
    for token in tokens:
        options.take(token)
    if given.left_over:
        raise Refused(f"unexpected argument {given.left_over[0]}")
    option_values.check_scheduler_flags(options.values.get("sched-flags"), options.values.get("scheduler") or "")
    _check_table(command.option.meaning, options.values)
    return _request(command.option.meaning, options)


class _Options:
    """The options seen so far: their values by meaning, and the virtual server that they name."""

    def __init__(self, resolver: Resolver) -> None:
        self.values: dict[str, str | None] = {}
        self.service: ServiceName | None = None
        self._resolver = resolver

    def take(self, token: Token) -> None:
        """Raises Refused."""
        option, value = token.option, token.value or ""
        if option.is_command:
            raise Refused(f"invalid option `{token.word}'")
        if option.meaning in self.values:
            raise Refused(f"multiple '{option.meaning}' options specified")
        if option.meaning not in _UNRECORDED:
            self.values[option.meaning] = token.value
        special = self._special().get(option.meaning)
        if special is not None:
            special(option.long, value)
        elif token.value is not None:
            option_values.check(option.meaning, value)

    def _special(self) -> dict[str, Callable[[str, str], None]]:
        """Options whose meaning hangs on others, or on names."""
        return {
            "service-address": self._name_service,
            "ipv6": self._make_ipv6,
            "netmask": self._check_netmask,
            "real-server": self._check_real_server,
        }

    def _name_service(self, long: str, text: str) -> None:
        if long == "fwmark-service":
            mark = selectors.firewall_mark(text)
            if mark is None:
                raise Refused(f"invalid fwmark value `{text}' specified")
            self.service = mark_name(mark, Family.IPV4)
            return
        found = selectors.service_address(text, selectors.PROTOCOLS[long], self._resolver)
        if found is None:
            raise Refused("illegal virtual server address[:port] specified")
        address, port = found
        self.service = ServiceName(family_of(address), selectors.PROTOCOLS[long], address, port)

    def _make_ipv6(self, _: str, __: str) -> None:
        if self.service is None or not self.service.fwmark:
            raise Refused("-6 used before -f\n")
        self.service = mark_name(self.service.fwmark, Family.IPV6)

    def _check_netmask(self, _: str, text: str) -> None:
        if self.service is not None and self.service.family is Family.IPV6:
            option_values.check_prefix_length(text)
        elif selectors.ipv4_address(text, self._resolver) is None:
            raise Refused("illegal virtual server persistent mask specified")

    def _check_real_server(self, _: str, text: str) -> None:
        protocol = Protocol(self.service.protocol) if self.service and not self.service.fwmark else Protocol.TCP
        if selectors.service_address(text, protocol, self._resolver) is None:
            raise Refused("illegal real server address[:port] specified")


def _check_table(command: str, given: dict[str, str | None]) -> None:
    """What does not go with the command, or not together: the first offence in the table's order."""
    chosen = ""
    for name in (name for name in _OPTION_ORDER if name in given):
        if name not in _ALLOWED[command]:
            raise Refused(f"Illegal '{name}' option with the '{command}' command")
        if name in _ONE_OF:
            if chosen:
                raise Refused(f"The option '{name}' conflicts with the '{chosen}' option in the '{command}' command")
            chosen = name
    has_no_figures = {"connection", "timeout", "daemon"} & given.keys()
    has_no_persistence = {"timeout", "daemon"} & given.keys()
    if (has_no_figures and _FIGURES & given.keys()) or (has_no_persistence and "persistent-conn" in given):
        raise Refused("options conflicts in the list command")


def _request(command: str, options: _Options) -> Request:
    given = options.values.keys()
    is_numeric = "numeric" in given
    if command == "save":
        return Rules(is_numeric=is_numeric)
    if "connection" in given:
        return Connections(is_numeric=is_numeric, with_engines="persistent-conn" in given)
    if "timeout" in given:
        return Timeouts()
    if "daemon" in given:
        return Daemons()
    return Table(
        only=options.service,
        columns=next((columns for name, columns in _COLUMNS.items() if name in given), Columns.PLAIN),
        is_numeric=is_numeric,
        is_exact="exact" in given,
        is_sorted="nosort" not in given,
    )
