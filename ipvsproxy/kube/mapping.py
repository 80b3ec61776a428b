"""What the YAML and JSON readers hand on: plain values whose mappings know their place and what is wrong with them."""

from __future__ import annotations

from typing import NamedTuple

MAX_DEPTH = 100  # of nesting; real objects stay below 30, and readers recurse


class Malformed(Exception):  # noqa: N818 - it is about the text, and never leaves kube/
    """A text that cannot be read at all: the line it fails at, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


class Fault(NamedTuple):
    """Something that spoils the object it stands in, but not the file; line 0 where the reader does not know it."""

    line: int
    reason: str


class Mapping(dict[str, object]):
    """A mapping with its first line (0: unknown) and its first own fault."""

    __slots__ = ("fault", "line")

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.fault: Fault | None = None

    def put(self, key: str, value: object, line: int = 0) -> None:
        """Set a key; one that is there already is a fault, as for `kubectl --validate=strict`."""
        if key in self:
            self.blame(line, f'the key "{key}" stands twice in one mapping')
        self[key] = value

    def blame(self, line: int, reason: str) -> None:
        """Record a fault; the first one is kept."""
        if self.fault is None:
            self.fault = Fault(line, reason)

    def at(self, line: int) -> Mapping:
        """The same, as it stands at another line."""
        copy = Mapping(line)
        copy.update(self)
        copy.fault = self.fault
        return copy

    def close(self) -> None:
        """Drop the null values: null means absent, as the API server's own decoder has it."""
        if None in self.values():
            for key in [key for key, value in self.items() if value is None]:
                del self[key]


class Root(NamedTuple):
    """One document of a file and the line it starts at."""

    line: int
    value: object


def first_fault(value: object) -> Fault | None:
    """The first fault in `value`, in the order of the text."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            if node.fault is not None:
                return node.fault
            stack.extend(reversed(node.values()))
        elif isinstance(node, list):
            stack.extend(reversed(node))
    return None
