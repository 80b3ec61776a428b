"""The page of reported cases promises a test for each: here it is held to that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "cases.md"
ROWS = re.findall(r"^\| (K\d\d) \|", PAGE.read_text(), re.MULTILINE)
NAMES = " ".join(
    name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
)


def test_the_page_has_a_row_for_each_case_that_is_dealt_with_in_its_order():
    assert [f"K{number:02}" for number in (*range(1, 37), 54, *range(39, 42), *range(44, 48))] == ROWS


@pytest.mark.parametrize("case", ROWS)
def test_a_case_has_a_test_that_names_it(case):
    assert re.search(rf"_{case.lower()}(_|\b)", NAMES)
