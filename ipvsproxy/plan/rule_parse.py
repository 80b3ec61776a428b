"""What `iptables-save` prints, read back: the inverse of rule_text, and our part of a table among everybody's.

Only the forms that our rules use are read; any other rule of ours comes back as one that holds its line, so that it
equals no rule we could want. iptables 1.8.9 prints our rules alike in both flavours, to the byte
(tests/contract/test_rules.py); older ones differ in one name, see `_PROTOCOL_NAMES`. Pure: knows nothing of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ipvsproxy.model.kernel_objects import Match, Option, Rule, RuleLayer
from ipvsproxy.plan.rule_text import canonical_layer

UNRECOGNISED = "unrecognised"  # names what our rules never contain, so that a rule with it equals none of ours

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r" -[jg] (\S+)")
_HEADER = frozenset({"-s", "-d", "-i", "-p"})
_NEGATABLE = frozenset({"-s", "-i"})
# iptables before 1.8.8 looks in /etc/protocols first, which slim images lack, and then finds this name of number 58.
_PROTOCOL_NAMES = {"icmpv6": "ipv6-icmp"}


class _Word(NamedTuple):
    text: str
    quoted: bool

    @property
    def is_flag(self) -> bool:
        return not self.quoted and (self.text == "!" or self.text.startswith("-"))


class _UnknownForm(ValueError):  # noqa: N818 - a finding, not a failure: it ends in an UNRECOGNISED rule
    """The line says something that our rules never say."""


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table as saved: its chains, and the `-A` lines of each chain, in the tool's order."""

    built_in: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)

    def leading_to(self, chains: Collection[str], places: Collection[str]) -> list[str]:
        """The lines of the chains `places` that lead into `chains`."""
        return [line for place in places for line in self.lines[place] if target_of(line) in chains]


def unrecognised(what: str) -> Match:
    """A match that stands for what our rules never contain."""
    return Match(UNRECOGNISED, (Option("--bytes", what),))


_FOREIGN = (unrecognised("foreign rule"),)


def _whole_lines(text: str) -> Iterator[str]:
    """The lines of the text; somebody's quoted comment may have line breaks, and anything behind them."""
    pending = ""
    for line in text.split("\n"):  # not splitlines: comments may hold what it splits at
        pending = f"{pending}\n{line}" if pending else line
        if _ESCAPED.sub("", pending).count('"') % 2 == 0:
            yield pending
            pending = ""
    if pending:
        yield pending


def parse_save(text: str) -> dict[str, SavedTable]:
    """The tables of an `iptables-save` text by name. Raises ValueError where a table has no end: the text was cut."""
    tables: dict[str, SavedTable] = {}
    open_name, table = "", SavedTable()
    for line in _whole_lines(text):
        if line.startswith("*"):
            open_name, table = line[1:], SavedTable()
        elif line == "COMMIT":
            tables[open_name], open_name = table, ""
        elif line.startswith(":"):
            chain, policy, *_ = line[1:].split(" ")
            (table.others if policy == "-" else table.built_in).append(chain)
            table.lines[chain] = []
        elif line.startswith("-A "):
            table.lines[line.split(" ", 2)[1]].append(line)
    if open_name:
        raise ValueError(f"the {open_name} table has no end")
    return tables


def own_layer(table: SavedTable, own_chains: Collection[str]) -> RuleLayer | None:
    """Our part of the table in canonical form; None where none of our chains is there.

    Jumps come with each foreign rule that stands above one of them, so that a jump in the wrong place makes a different
    layer.
    """
    present = own_present(table, own_chains)
    if not present:
        return None
    jumps = [rule for chain in table.built_in for rule in _down_to_last_jump(chain, table.lines[chain], own_chains)]
    rules = [parse_rule(line) for chain in present for line in table.lines[chain]]
    return canonical_layer(RuleLayer(tuple(present), tuple(jumps), tuple(rules)))


def own_present(table: SavedTable, own_chains: Collection[str]) -> list[str]:
    """Those of our chains that the table has."""
    return [chain for chain in table.others if chain in own_chains]


def _down_to_last_jump(chain: str, lines: Sequence[str], own_chains: Collection[str]) -> list[Rule]:
    rules = [parse_rule(line) if target_of(line) in own_chains else Rule(chain, "", _FOREIGN) for line in lines]
    while rules and rules[-1].matches == _FOREIGN:
        rules.pop()
    return rules


def target_of(line: str) -> str:
    """Where the rule of this line leads, by jump or goto; empty for a rule that only counts."""
    found = _TARGET.search(_QUOTED.sub("", line))
    return found[1] if found else ""


def parse_rule(line: str) -> Rule:
    """The rule of an `-A` line; with an UNRECOGNISED match that holds the line where our rules have no such form."""
    try:
        return _parse(_words(line))
    except _UnknownForm:
        return Rule(line.split(" ", 2)[1], target_of(line), (unrecognised(line),))


def _words(line: str) -> list[_Word]:
    return [
        _Word(_ESCAPE.sub(r"\1", found[1]), quoted=True) if found[2] is None else _Word(found[2], quoted=False)
        for found in _WORD.finditer(line)
    ]


def _parse(words: Sequence[_Word]) -> Rule:
    """Raises _UnknownForm."""
    (_, chain, *header), *parts = _split(words, {"-m", "-j"})
    if not parts or [part[0].text for part in parts] != ["-m"] * (len(parts) - 1) + ["-j"]:
        raise _UnknownForm(chain.text)
    known = _header(header)
    *matches, (target, target_options) = [_named_options(part) for part in parts]
    return Rule(
        chain.text,
        target,
        tuple(Match(name, options) for name, options in matches),
        target_options,
        source=known.get("-s", ""),
        destination=known.get("-d", ""),
        in_interface=known.get("-i", ""),
        protocol=_PROTOCOL_NAMES.get(known.get("-p", ""), known.get("-p", "")),
    )


def _split(words: Sequence[_Word], flags: Collection[str]) -> list[list[_Word]]:
    """The words in runs, a new one at each of the flags."""
    runs: list[list[_Word]] = [[]]
    for word in words:
        if word.is_flag and word.text in flags:
            runs.append([])
        runs[-1].append(word)
    return runs


def _header(words: Sequence[_Word]) -> Mapping[str, str]:
    """Source, destination, incoming interface and protocol by flag, a negation in front of the value."""
    values: dict[str, str] = {}
    for name, options, negated in _options(words):
        if name not in _HEADER or name in values or len(options) != 1 or (negated and name not in _NEGATABLE):
            raise _UnknownForm(name)
        values[name] = f"! {options[0]}" if negated else options[0]
    return values


def _named_options(words: Sequence[_Word]) -> tuple[str, tuple[Option, ...]]:
    """The name behind `-m` or `-j`, and the options behind the name."""
    _, *rest = words
    if not rest or rest[0].is_flag:
        raise _UnknownForm("no name")
    options = tuple(Option(name, " ".join(values), negated) for name, values, negated in _options(rest[1:]))
    if not all(option.name.startswith("--") for option in options):
        raise _UnknownForm("a flag that belongs to no extension")
    return rest[0].text, options


def _options(words: Sequence[_Word]) -> Iterator[tuple[str, list[str], bool]]:
    """Each flag with the words up to the next one, and whether a `!` stands before it."""
    left = iter(words)
    word = next(left, None)
    while word is not None:
        negated = word.is_flag and word.text == "!"
        name = next(left, None) if negated else word
        if name is None or not name.is_flag or name.text == "!":
            raise _UnknownForm("a value without a flag")
        values, word = _up_to_flag(left)
        yield name.text, values, negated


def _up_to_flag(words: Iterator[_Word]) -> tuple[list[str], _Word | None]:
    """The values that follow, and the flag behind them, which is taken too."""
    values: list[str] = []
    for word in words:
        if word.is_flag:
            return values, word
        values.append(word.text)
    return values, None
