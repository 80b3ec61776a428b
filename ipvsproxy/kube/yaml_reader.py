"""YAML as kubectl writes it → values with line numbers, built from libyaml's events.

Not through PyYAML's loaders: they are three times slower, forget lines, keep the last of two equal keys, read `1:30`
as a number and a time stamp as an object. Here plain scalars follow YAML 1.2's core schema (null, true, false,
decimal numbers, text). Aliases are followed, but may not make a file larger than one object may be: no alias bombs.
Merge keys and tags are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

import yaml

from ipvsproxy.kube.mapping import MAX_DEPTH, Malformed, Mapping, Root

MAX_ALIASED = 1_500_000  # characters and nodes that aliases may add to a file
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({"!", _CORE + "str"})
_KNOWN_TAGS = frozenset({None, "!"} | {_CORE + name for name in ("str", "null", "bool", "int", "float", "map", "seq")})
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)


def read_yaml(data: bytes) -> list[Root]:
    """The documents of `data`, which is UTF-8 without a byte-order mark. Raises Malformed."""
    try:
        return _Builder(yaml.parse(data, Loader=_LOADER)).roots()
    except yaml.MarkedYAMLError as error:
        context = f"{error.context}: " if error.context else ""
        raise Malformed(_failing_line(data, error), f"{context}{error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = data.count(b"\n", 0, error.position) + 1
        raise Malformed(line, f"character #x{error.character:04x}: {error.reason}") from error


def _failing_line(data: bytes, error: yaml.MarkedYAMLError) -> int:
    """Where the text goes wrong; where it ends too early, where that which was left open began."""
    last = data.rstrip().count(b"\n")
    marks = [mark.line for mark in (error.problem_mark, error.context_mark) if mark is not None]
    return next((line for line in marks if line <= last), last) + 1


class _Builder:
    """Values from events, one document at a time."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._open: list[Mapping] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._weight = 0
        self._aliased = 0

    def roots(self) -> list[Root]:
        """Every document's root."""
        roots = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                first = next(self._events)
                roots.append(Root(_line(first), self._value(first, 0)))
        return roots

    def _value(self, event: yaml.Event, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise Malformed(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._weight
        self._weight += 1
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(event, depth)
        else:
            assert isinstance(event, yaml.SequenceStartEvent)  # noqa: S101 - libyaml's grammar leaves nothing else
            value = self._sequence(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = value, self._weight - before
        return value

    def _alias(self, event: yaml.AliasEvent) -> object:
        if event.anchor not in self._anchors:
            raise Malformed(_line(event), f"the alias *{event.anchor} stands before or inside its anchor")
        value, weight = self._anchors[event.anchor]
        self._weight += weight
        self._aliased += weight
        if self._aliased > MAX_ALIASED:
            raise Malformed(_line(event), "its aliases blow it up beyond any object's size")
        return value.at(_line(event)) if isinstance(value, Mapping) else value

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        self._weight += len(event.value)
        if event.tag is None:
            return _resolve(event.value) if event.implicit[0] else event.value
        self._check_tag(event)
        return event.value if event.tag in _TEXT_TAGS else _resolve(event.value)

    def _mapping(self, start: yaml.MappingStartEvent, depth: int) -> Mapping:
        mapping = Mapping(_line(start))
        self._open.append(mapping)
        self._check_tag(start)
        for event in self._until(yaml.MappingEndEvent):
            self._value(event, depth + 1)
            value = self._value(next(self._events), depth + 1)
            if not isinstance(event, yaml.ScalarEvent):
                mapping.blame(_line(event), "a key that is not a plain name")
            elif event.value == "<<" and event.implicit[0]:
                mapping.blame(_line(event), "merge keys (<<) are not read: write the fields out")
            else:
                mapping.put(event.value, value, _line(event))
        self._open.pop()
        mapping.close()
        return mapping

    def _sequence(self, start: yaml.SequenceStartEvent, depth: int) -> list[object]:
        self._check_tag(start)
        return [self._value(event, depth + 1) for event in self._until(yaml.SequenceEndEvent)]

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _check_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        """An unknown tag spoils the mapping it stands in; outside of any there is no object to spoil."""
        if event.tag not in _KNOWN_TAGS and self._open:
            self._open[-1].blame(_line(event), f'the tag "{event.tag}" is not read')


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _resolve(text: str) -> object:
    """What a plain scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else math.inf
    return text if math.isinf(number) else number  # kubectl leaves a hash like 123e4567 without quotes
