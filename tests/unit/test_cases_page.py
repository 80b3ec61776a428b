"""The page of reported cases has a row for each case that a test shows, and a test for each row."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "cases.md"
SECTIONS = [re.findall(r"^\| (K\d\d) \|", text, re.MULTILINE) for text in PAGE.read_text().split("\n## ")[1:]]
ROWS = [case for section in SECTIONS for case in section]
NAMES = " ".join(
    name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
)
SHOWN = {f"K{number}" for number in re.findall(r"_k(\d\d)(?=_|\b)", NAMES)}
KNOWN = {f"K{number:02}" for number in range(1, 56)}  # the reports that this was built against are numbered so
# Not dealt with yet, or not shown by a test of that name. Whoever writes the first one takes it out here.
TO_COME = {"K42", "K49", "K50", "K51"}


def test_every_known_case_is_a_row_of_the_page_or_to_come():
    assert set(ROWS) == KNOWN - TO_COME


def test_no_case_stands_twice_and_each_section_is_in_order():
    assert len(ROWS) == len(set(ROWS))
    assert [sorted(section) for section in SECTIONS] == SECTIONS


def test_a_case_is_on_the_page_if_and_only_if_a_test_names_it():
    assert set(ROWS) == SHOWN
