"""JSON as kubectl and the API server write it → values with the lines of documents and of the items of lists.

The standard library's scanner does the work, one member or list item at a time, so that each item's place is known
and equal keys are seen; msgspec would be faster, but tells neither. Several documents may follow each other, as in a
stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ipvsproxy.kube.mapping import MAX_DEPTH, Malformed, Mapping, Root

_BLANK = re.compile(r"[ \t\r\n]*")


def read_json(text: str) -> list[Root]:
    """The documents of `text`. Raises Malformed."""
    reader = _Reader(text)
    try:
        return list(reader.roots())
    except json.JSONDecodeError as error:
        raise Malformed(error.lineno, error.msg) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets without end
        raise Malformed(reader.line, f"{error}") from error


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder(object_pairs_hook=_mapping)
        self._counted = 0
        self.line = 1

    def roots(self) -> Iterator[Root]:
        """Every document's root."""
        at = self._skip(0)
        while at < len(self._text):
            line = self._line_of(at)
            value, at = self._value(at, 0)
            yield Root(line, value)
            at = self._skip(at)

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        if depth > MAX_DEPTH:
            raise Malformed(self.line, f"nested deeper than {MAX_DEPTH} levels")
        if self._text.startswith("{", at):
            return self._object(at, depth)
        return self._decoder.raw_decode(self._text, at)

    def _object(self, start: int, depth: int) -> tuple[Mapping, int]:
        mapping = Mapping(self._line_of(start))
        at = self._skip(start + 1)
        while not self._text.startswith("}", at):
            if mapping:
                at = self._expect(",", at)
            key, at = self._decoder.raw_decode(self._text, at)
            if not isinstance(key, str):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self._text, at)
            at = self._expect(":", at)
            if key == "items" and self._text.startswith("[", at):
                value, at = self._items(at, depth)
            else:
                value, at = self._decoder.raw_decode(self._text, at)
            mapping.put(key, value)
            at = self._skip(at)
        mapping.close()
        return mapping, at + 1

    def _items(self, start: int, depth: int) -> tuple[list[object], int]:
        items: list[object] = []
        at = self._skip(start + 1)
        while not self._text.startswith("]", at):
            if items:
                at = self._expect(",", at)
            item, at = self._value(at, depth + 1)
            items.append(item)
            at = self._skip(at)
        return items, at + 1

    def _expect(self, delimiter: str, at: int) -> int:
        at = self._skip(at)
        if not self._text.startswith(delimiter, at):
            raise json.JSONDecodeError(f"Expecting '{delimiter}' delimiter", self._text, at)
        return self._skip(at + 1)

    def _skip(self, at: int) -> int:
        match = _BLANK.match(self._text, at)
        return match.end() if match else at

    def _line_of(self, at: int) -> int:
        """The line of a place; asked for in rising order, so that every line is counted once."""
        self.line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self.line


def _mapping(pairs: list[tuple[str, object]]) -> Mapping:
    mapping = Mapping()
    for key, value in pairs:
        mapping.put(key, value)
    mapping.close()
    return mapping
