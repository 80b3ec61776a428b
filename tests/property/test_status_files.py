"""Any file for `status --from` is a table or is refused in a sentence: nobody meets a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy import status_command
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.status import document
from ipvsproxy.status.endpoints import by_name
from ipvsproxy.status.listing import list_all
from ipvsproxy.status.requests import Columns, Table
from ipvsproxy.status.rows import rows
from ipvsproxy.status.rules import save
from ipvsproxy.status.source import TableSource
from tests.unit.status.fixture_cases import NAMES
from tests.unit.status.ipvs_states import observed_table

DATA = Path(__file__).parents[1] / "data" / "ipvsadm"
_STATE = observed_table(json.loads((DATA / "fwmark.state.json").read_text()))
DOCUMENT = json.loads("".join(document.json_line((_STATE.version, _STATE.conn_tab_size), rows(_STATE.virtual_servers))))
RULES = [line for name in ("dual", "persist", "fwmark", "forward", "sched")
         for line in (DATA / f"{name}.save-n.out").read_text().splitlines()]  # fmt: skip

_VALUES = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.text(max_size=20) | st.just([]) | st.just({})
    | st.sampled_from(["::1", "10.0.0.1", "255.255.255.0", "IPv6", "TCP", "256", "fe80::1%eth0", "\u0663"])
)  # fmt: skip
_WORDS = st.sampled_from([word for line in RULES for word in line.split()]) | st.text(max_size=8)


def shown(text: str) -> list[str]:
    """Every view of what the file tells; empty where it is refused."""
    try:
        table = status_command.table_of(text, NAMES)
    except IpvsproxyError:
        return []
    source, endpoint = TableSource(table), by_name(NAMES)
    lines = [line for columns in Columns for line in list_all(source, source.info(), Table(columns=columns), endpoint)]
    return [*lines, *save(source, endpoint), *document.json_text(source.info(), rows(table.virtual_servers))]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where anything stands in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in _places(each, (*path, key)))][not path :]


def _replaced(place: tuple[Any, ...], value: Any) -> str:
    changed = json.loads(json.dumps(DOCUMENT))
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return json.dumps(changed)


@given(st.sampled_from(_places(DOCUMENT)), _VALUES)
def test_a_document_with_any_value_in_any_place_is_shown_or_refused(place, value):
    assert all(line.isprintable() for text in shown(_replaced(place, value)) for line in text.split("\n"))


@given(st.lists(st.sampled_from(RULES) | st.lists(_WORDS, max_size=8).map(" ".join), max_size=6))
def test_rules_of_any_words_are_shown_or_refused(lines):
    assert all(line.isprintable() for text in shown("\n".join(lines)) for line in text.split("\n"))


@given(st.text() | st.binary().map(lambda content: content.decode(errors="surrogateescape")))
def test_any_other_text_is_shown_or_refused(text):
    shown(text)
    shown("{" + text)


def test_what_the_changes_are_made_to_is_shown():
    assert shown(json.dumps(DOCUMENT))
    assert shown("\n".join(RULES))
