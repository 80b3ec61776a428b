"""ipvsadm's options, and how its words are taken apart: as the library popt does it.

Long options are spelled out, their value follows as the next word or behind `=`. Short ones may share a word (`-Ln`):
the first that takes a value has the rest of the word, a leading `=` dropped, or else the next word. `--` ends options.
Words that belong to no option may stand anywhere. Source: ipvsadm 1.31, ipvsadm.c parse_options; popt 1.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple


class Value(Enum):
    """Whether an option has one."""

    NONE = auto()
    NEEDED = auto()
    OPTIONAL = auto()


class Option(NamedTuple):
    """`meaning` is ipvsadm's own name, by which its messages call the option or command; several may share one."""

    meaning: str
    short: str
    long: str
    value: Value = Value.NONE
    is_command: bool = False


class Token(NamedTuple):
    """An option as it was given. `word` is what a message shows: where reading has got to."""

    option: Option
    value: str | None
    word: str


class Refused(Exception):  # noqa: N818  # a state, as in errors.py; it ends in ipvsadm's words, not in ours
    """What ipvsadm refuses to do, by its words and with its exit code."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


BAD_OPTION = 255  # what is left of -1

COMMANDS = (
    Option("add-service", "A", "add-service", is_command=True),
    Option("edit-service", "E", "edit-service", is_command=True),
    Option("delete-service", "D", "delete-service", is_command=True),
    Option("flush", "C", "clear", is_command=True),
    Option("list", "L", "list", is_command=True),
    Option("list", "l", "list", is_command=True),
    Option("zero", "Z", "zero", is_command=True),
    Option("add-server", "a", "add-server", is_command=True),
    Option("edit-server", "e", "edit-server", is_command=True),
    Option("delete-server", "d", "delete-server", is_command=True),
    Option("set", "", "set", is_command=True),
    Option("help", "h", "help", is_command=True),
    Option("version", "v", "version", is_command=True),
    Option("restore", "R", "restore", is_command=True),
    Option("save", "S", "save", is_command=True),
    Option("start-daemon", "", "start-daemon", Value.NEEDED, is_command=True),
    Option("stop-daemon", "", "stop-daemon", Value.NEEDED, is_command=True),
)
OPTIONS = (
    Option("service-address", "t", "tcp-service", Value.NEEDED),
    Option("service-address", "u", "udp-service", Value.NEEDED),
    Option("service-address", "", "sctp-service", Value.NEEDED),
    Option("service-address", "f", "fwmark-service", Value.NEEDED),
    Option("scheduler", "s", "scheduler", Value.NEEDED),
    Option("persistent", "p", "persistent", Value.OPTIONAL),
    Option("netmask", "M", "netmask", Value.NEEDED),
    Option("real-server", "r", "real-server", Value.NEEDED),
    Option("forwarding-method", "m", "masquerading"),
    Option("forwarding-method", "i", "ipip"),
    Option("forwarding-method", "g", "gatewaying"),
    Option("weight", "w", "weight", Value.NEEDED),
    Option("u-threshold", "x", "u-threshold", Value.NEEDED),
    Option("l-threshold", "y", "l-threshold", Value.NEEDED),
    Option("numeric", "n", "numeric"),
    Option("connection", "c", "connection"),
    Option("mcast-interface", "", "mcast-interface", Value.NEEDED),
    Option("syncid", "", "syncid", Value.NEEDED),
    Option("timeout", "", "timeout"),
    Option("daemon", "", "daemon"),
    Option("stats", "", "stats"),
    Option("rate", "", "rate"),
    Option("thresholds", "", "thresholds"),
    Option("persistent-conn", "", "persistent-conn"),
    Option("nosort", "", "nosort"),
    Option("sort", "", "sort"),
    Option("exact", "X", "exact"),
    Option("ipv6", "6", "ipv6"),
    Option("ops", "o", "ops"),
    Option("pe", "", "pe", Value.NEEDED),
    Option("sched-flags", "b", "sched-flags", Value.NEEDED),
    Option("mcast-group", "", "mcast-group", Value.NEEDED),
    Option("mcast-port", "", "mcast-port", Value.NEEDED),
    Option("mcast-ttl", "", "mcast-ttl", Value.NEEDED),
    Option("sync-maxlen", "", "sync-maxlen", Value.NEEDED),
    Option("tun-info", "", "tun-info"),
    Option("tun-type", "", "tun-type", Value.NEEDED),
    Option("tun-port", "", "tun-port", Value.NEEDED),
    Option("tun-nocsum", "", "tun-nocsum"),
    Option("tun-csum", "", "tun-csum"),
    Option("tun-remcsum", "", "tun-remcsum"),
)
_BY_LETTER = {option.short: option for option in (*COMMANDS, *OPTIONS) if option.short}
_BY_NAME = {option.long: option for option in (*COMMANDS, *OPTIONS)}


class OptionWords:
    """The words of a command line, taken from the front. Iterating raises Refused where popt reports a fault."""

    def __init__(self, words: Sequence[str]) -> None:
        self.left_over: list[str] = []
        """Words that belong to no option, as far as reading has got."""
        self._words = words
        self._next = 0

    def __iter__(self) -> Iterator[Token]:
        while self._next < len(self._words):
            word = self._words[self._next]
            self._next += 1
            if word == "--":
                self.left_over += self._words[self._next :]
                return
            if word == "-" or not word.startswith("-"):
                self.left_over.append(word)
            elif word.startswith("--"):
                yield self._long(word)
            else:
                yield from self._short(word)

    def _long(self, word: str) -> Token:
        name, equals, text = word[2:].partition("=")
        option = _BY_NAME.get(name)
        if option is None:
            raise _fault(word, "unknown option")
        if option.value is Value.NONE:
            if equals:
                raise _fault(word, "option does not take an argument")
            return Token(option, None, word)
        value = text if equals else self._following(option, word)
        return Token(option, value, self._words[self._next - 1])

    def _short(self, word: str) -> Iterator[Token]:
        for at, letter in enumerate(word[1:], start=2):
            option, rest = _BY_LETTER.get(letter), word[at:]
            if option is None:
                raise _fault(word, "unknown option")
            if option.value is not Value.NONE:
                value = rest.removeprefix("=") if rest else self._following(option, word)
                yield Token(option, value, self._words[self._next - 1])
                return
            if rest.startswith("="):
                raise _fault(word, "option does not take an argument")
            yield Token(option, None, word)

    def _following(self, option: Option, word: str) -> str | None:
        """The next word as the option's value."""
        is_there = self._next < len(self._words)
        if option.value is Value.OPTIONAL and (not is_there or self._words[self._next].startswith("-")):
            return None
        if not is_there:
            raise _fault(word, "missing argument")
        self._next += 1
        return self._words[self._next - 1]


def _fault(word: str, what: str) -> Refused:
    return Refused(f"{word}: {what}", BAD_OPTION)
