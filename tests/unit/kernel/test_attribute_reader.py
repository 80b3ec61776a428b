"""Many messages read in one go: only where all are alike."""

from __future__ import annotations

import struct

import pytest

from ipvsproxy.kernel.attribute_reader import AttributeReader, Wanted
from ipvsproxy.kernel.netlink import HEADER, attribute

OUTER, FIRST, SECOND, MISSING, OTHER = 1, 7, 8, 9, 10
WANTED = [Wanted(FIRST, "I", 0), Wanted(MISSING, "I", 77), Wanted(SECOND, "H", 0)]


def inner(number: int, value: int) -> bytes:
    return attribute(number, struct.pack("=H" if number == SECOND else "=I", value))


def message(*inside: bytes, sequence: int = 5, outer: int = OUTER) -> bytes:
    body = bytes(4) + attribute(outer, b"".join(inside))
    return HEADER.pack(HEADER.size + len(body), 33, 2, sequence, 0) + body


def both(first: int, second: int) -> bytes:
    return message(inner(FIRST, first), inner(SECOND, second))


@pytest.fixture
def reader() -> AttributeReader:
    return AttributeReader(OUTER, WANTED)


def test_messages_that_are_alike_are_read_in_one_go(reader):
    alike = [both(1, 2), both(3, 4), both(5, 6)]
    assert reader.read_run(b"".join(alike), len(alike[0])) == [(1, 77, 2), (3, 77, 4), (5, 77, 6)]
    assert [reader.read(each[HEADER.size :]) for each in alike] == [(1, 77, 2), (3, 77, 4), (5, 77, 6)]


@pytest.mark.parametrize(
    "another",
    [
        pytest.param(message(inner(SECOND, 4), inner(FIRST, 3)), id="the attributes in another order"),
        pytest.param(message(inner(OTHER, 3), inner(SECOND, 4)), id="another attribute in place of one"),
        pytest.param(message(inner(FIRST, 3), inner(SECOND, 4), sequence=6), id="the answer to another question"),
        pytest.param(message(inner(FIRST, 3), inner(SECOND, 4), outer=2), id="another outer attribute"),
        pytest.param(message(inner(FIRST, 3)), id="another length"),
    ],
)
def test_no_message_is_read_by_the_layout_of_another(reader, another):
    first = both(1, 2)
    assert reader.read_run(first + another, len(first)) is None


def test_the_layout_learned_last_is_no_hindrance(reader):
    swapped = message(inner(SECOND, 2), inner(FIRST, 1))
    assert reader.read(swapped[HEADER.size :]) == (1, 77, 2)
    alike = both(1, 2) + both(3, 4)
    assert reader.read_run(alike, len(alike) // 2) is None
    assert reader.read(alike[HEADER.size : len(alike) // 2]) == (1, 77, 2)
    assert reader.read_run(alike, len(alike) // 2) == [(1, 77, 2), (3, 77, 4)]


@pytest.mark.parametrize("length", [0, 16, 23])
def test_a_length_that_no_message_has_is_not_believed(reader, length):
    assert reader.read_run(both(1, 2), length) is None
