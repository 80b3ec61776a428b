"""Templates against what was encoded for the same values in one go."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.kernel.template import Field, Template

NUMBER = Field("I", 0xA1A2A3A4)
WEIGHT = Field("i", 0x51525354)
ADDRESS = Field("4s", b"\xb1\xb2\xb3\xb4")


def encode(number: int, address: bytes, weight: int) -> bytes:
    """A message with constants before, between and behind its fields."""
    return struct.pack("=4sI4s4sxxxxi2xH", b"head", number, address, b"-mid", weight, 7)


TEMPLATE = Template(encode(NUMBER.sentinel, ADDRESS.sentinel, WEIGHT.sentinel), [NUMBER, ADDRESS, WEIGHT])


@given(st.integers(0, 2**32 - 1), st.binary(min_size=4, max_size=4), st.integers(-(2**31), 2**31 - 1))
def test_a_packed_template_equals_the_encoded_message(number, address, weight):
    assert TEMPLATE.pack(number, address, weight) == encode(number, address, weight)


def test_a_field_may_stand_first_and_last():
    assert Template(NUMBER.encoded + ADDRESS.encoded, [NUMBER, ADDRESS]).pack(0, b"last") == b"\0\0\0\0last"


@pytest.mark.parametrize(
    "encoded, fields, reason",
    [
        pytest.param(b"none", [NUMBER], "exactly once", id="a sentinel that is missing"),
        pytest.param(NUMBER.encoded * 2, [NUMBER], "exactly once", id="a sentinel that stands twice"),
        pytest.param(
            NUMBER.encoded + ADDRESS.encoded, [ADDRESS, NUMBER], "behind the one before", id="the wrong order"
        ),
        pytest.param(NUMBER.encoded + b"!", [NUMBER], "padded", id="a message that is not padded"),
    ],
)
def test_a_template_cannot_be_cut_wrongly(encoded, fields, reason):
    with pytest.raises(AssertionError, match=reason):
        Template(encoded, fields)


@pytest.mark.parametrize(
    "values", [pytest.param((1, b"addr"), id="too few"), pytest.param((1, b"addr", 2, 3), id="too many")]
)
def test_packing_takes_one_value_a_field(values):
    with pytest.raises((ValueError, struct.error)):
        TEMPLATE.pack(*values)
