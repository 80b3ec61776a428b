"""The tables that pages and packet tests share are complete, and the pages show them as they are."""

from __future__ import annotations

from itertools import product

import pytest

from tests.tables.hooks import PASSES, Trip
from tests.tables.pages import PAGES, ROOT, page_with
from tests.tables.snat import CONFIGS, Cell, Policy, Source, Way, cells


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_table_that_the_packet_tests_read(name):
    """`make golden-update` writes it."""
    text = (ROOT / name).read_text()
    assert text == page_with(text, PAGES[name]())


def test_a_page_without_a_place_for_its_table_is_an_error():
    with pytest.raises(ValueError, match="0 places"):
        page_with("# No place\n", ["| a |"])


def test_k04_the_snat_table_has_every_combination_once():
    every = {Cell(*parts) for parts in product(CONFIGS, Source, Way, Policy)}
    spoken_of = [cell for cell, _ in cells()]
    assert len(spoken_of) == len(every)
    assert set(spoken_of) == every


def test_k54_every_trip_has_its_passes():
    assert set(PASSES) == set(Trip)
