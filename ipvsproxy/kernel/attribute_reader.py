"""Reading generic netlink answers: the wanted attributes of each message, at a third of the cost of a walk.

All messages of one kind and shape have the same length and attribute order on one kernel, and two thirds of each are
statistics that mostly nobody asked for. So the first of a shape is walked attribute by attribute, which gives its
layout:

    message   generic header | SERVICE header | AF header | AF | PROTOCOL header | PROTOCOL | …
    mask      ff             | ff             | ff        | 00 | ff              | 00       | …
    values    (skip)         | (skip)         | (skip)    | H  | (skip)          | H        | …

Each next one of that length is read by `values` if all but the attributes' values is the same; otherwise it is walked
in its turn. Attributes that this program does not know, or that the kernel does not send, do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ipvsproxy.kernel.netlink import attributes

GENL_HEADER_BYTES: Final = 4


class Wanted(NamedTuple):
    """An attribute to read: its number, its `struct` code ("s" takes the whole value), the value where it is absent.

    `inside` is the number of the attribute that it is nested in, beyond the reader's outer one; 0 for none.
    """

    number: int
    code: str
    default: int | bytes
    inside: int = 0


class _Layout(NamedTuple):
    mask: int
    headers: int
    values: struct.Struct
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]


class AttributeReader:
    """Reads some of the attributes inside the attribute `outer` of a generic netlink message."""

    def __init__(self, outer: int, wanted: Sequence[Wanted]) -> None:
        self._outer = outer
        self._wanted = {(item.inside, item.number): (index, item.code) for index, item in enumerate(wanted)}
        self._nests = {item.inside for item in wanted if item.inside}
        self._defaults = tuple(attribute.default for attribute in wanted)
        self._layouts: dict[int, _Layout] = {}

    def read(self, body: bytes) -> tuple[Any, ...]:
        """The wanted attributes' values, in the order in which they were given."""
        layout = self._layouts.get(len(body))
        if layout is None or int.from_bytes(body) & layout.mask != layout.headers:
            layout = self._layouts[len(body)] = self._learn(body)
        return layout.pick(layout.values.unpack(body) + self._defaults)

    def _learn(self, body: bytes) -> _Layout:
        mask = bytearray(b"\xff" * len(body))
        codes, end_of_codes = "=", 0
        found: dict[int, int] = {}
        for place, start, end in self._walk(body):
            mask[start:end] = bytes(end - start)
            index, code = self._wanted.get(place, (-1, ""))
            code = f"{end - start}s" if code == "s" else code
            if code and index not in found and struct.calcsize(f"={code}") == end - start:
                found[index] = len(found)
                codes, end_of_codes = f"{codes}{start - end_of_codes}x{code}", end
        values = struct.Struct(f"{codes}{len(body) - end_of_codes}x")
        picked = [found.get(index, len(found) + index) for index in range(len(self._defaults))]
        bits = int.from_bytes(mask)
        return _Layout(bits, int.from_bytes(body) & bits, values, itemgetter(*picked))

    def _walk(self, body: bytes) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Place, start and end of each attribute inside the outer one; those beside that are in no wanted place."""
        for number, start, end in attributes(body, GENL_HEADER_BYTES, len(body)):
            if number == self._outer:
                yield from self._walk_nests(body, start, end)
            else:
                yield (-1, number), start, end

    def _walk_nests(self, body: bytes, start: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        for number, begin, stop in attributes(body, start, end):
            if number in self._nests:
                for inner, first, last in attributes(body, begin, stop):
                    yield (number, inner), first, last
            else:
                yield (0, number), begin, stop
