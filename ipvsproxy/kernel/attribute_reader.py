"""Reading generic netlink answers: the wanted attributes of each message, at a third of the cost of a walk.

All messages of one kind and shape have the same length and attribute order on one kernel, and two thirds of each are
statistics that mostly nobody asked for. So the first of a shape is walked attribute by attribute, which gives its
layout:

    message   generic header | SERVICE header | AF header | AF | PROTOCOL header | PROTOCOL | …
    mask      ff             | ff             | ff        | 00 | ff              | 00       | …
    values    (skip)         | (skip)         | (skip)    | H  | (skip)          | H        | …

Each next one of that length is read by `values` if all but the attributes' values is the same; otherwise it is walked
in its turn. A piece of a dump whose messages all have the same length is read in one go; there it is the header right
before each value, and the start of the message, that must be the same. Attributes that this program does not know, or
that the kernel does not send, do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ipvsproxy.kernel.netlink import ATTRIBUTE, HEADER, attributes

GENL_HEADER_BYTES: Final = 4
_START_BYTES = HEADER.size + GENL_HEADER_BYTES + ATTRIBUTE.size  # of a message, up to the first attribute inside


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
    run: _Run


class _Run(NamedTuple):
    """The layout of a whole message, netlink header included, with what stands before each value that is read."""

    values: struct.Struct
    headers: tuple[bytes, ...]
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

    def read_run(self, piece: bytes, length: int) -> list[tuple[Any, ...]] | None:
        """The same of each message of a piece, netlink headers included, if all are like the first; else None."""
        if length < _START_BYTES or len(piece) % length:
            return None
        layout = self._layouts.get(length - HEADER.size)
        if layout is None:
            layout = self._layouts[length - HEADER.size] = self._learn(piece[HEADER.size : length])
        _, headers, pick = layout.run
        expected = (piece[:_START_BYTES], *headers)
        found = []
        for values in layout.run.values.iter_unpack(piece):
            if values[::2] != expected:
                return None
            found.append(pick(values + self._defaults))
        return found

    def _learn(self, body: bytes) -> _Layout:
        mask = bytearray(b"\xff" * len(body))
        codes, run_codes, end_of_codes = "", "", 0
        headers: list[bytes] = []
        found: dict[int, int] = {}
        for place, start, end in self._walk(body):
            mask[start:end] = bytes(end - start)
            index, code = self._wanted.get(place, (-1, ""))
            code = f"{end - start}s" if code == "s" else code
            if code and index not in found and struct.calcsize(f"={code}") == end - start:
                found[index] = len(found)
                header = start - ATTRIBUTE.size
                headers.append(body[header:start])
                skipped = header - max(end_of_codes, _START_BYTES - HEADER.size)
                codes, run_codes = (
                    f"{codes}{start - end_of_codes}x{code}",
                    f"{run_codes}{skipped}x{ATTRIBUTE.size}s{code}",
                )
                end_of_codes = end
        rest = f"{len(body) - end_of_codes}x"
        bits = int.from_bytes(mask)
        run = _Run(struct.Struct(f"={_START_BYTES}s0s{run_codes}{rest}"), tuple(headers), self._pick(found, 2, 3))
        return _Layout(
            bits, int.from_bytes(body) & bits, struct.Struct(f"={codes}{rest}"), self._pick(found, 1, 0), run
        )

    def _pick(self, found: Mapping[int, int], step: int, first: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """Picks the values, each `step` apart from `first` on, of those that were found, else the defaults behind."""
        defaults = first + step * len(found) - (step - 1)
        places = [
            first + step * found[index] if index in found else defaults + index for index in range(len(self._defaults))
        ]
        return itemgetter(*places)

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
