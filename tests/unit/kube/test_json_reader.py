"""JSON as values with lines."""

from __future__ import annotations

import pytest

from ipvsproxy.kube.json_reader import read_json
from ipvsproxy.kube.mapping import Malformed, Mapping, first_fault


def test_documents_and_items_know_their_lines():
    roots = read_json('\n{"kind": "List",\n "items": [\n  {"a": {"b": 1}},\n\n  {"a": 2}]}\n{"c": 3}')
    assert [(root.line, root.value) for root in roots] == [
        (2, {"kind": "List", "items": [{"a": {"b": 1}}, {"a": 2}]}),
        (7, {"c": 3}),
    ]
    first = roots[0].value
    assert isinstance(first, Mapping)
    items = first["items"]
    assert isinstance(items, list)
    assert [item.line for item in items] == [4, 6]


def test_lists_in_lists_know_their_lines():
    (root,) = read_json('{"items": [\n{"items": [\n{"a": 1}]}]}')
    value = root.value
    for line in (1, 2, 3):
        assert isinstance(value, Mapping)
        assert value.line == line
        value = value["items"][0] if "items" in value else None  # type: ignore[index]


@pytest.mark.parametrize("text", ["", " \n\t\r\n"])
def test_nothing_is_no_document(text):
    assert read_json(text) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param("{}", {}, id="empty object"),
        pytest.param('{"items": []}', {"items": []}, id="no items"),
        pytest.param('{"items": null}', {}, id="null items"),
        pytest.param('{"items": {"a": null}}', {"items": {}}, id="items that are no list"),
        pytest.param('{ "a" : 1 , "b" : "\\u00e9" }', {"a": 1, "b": "é"}, id="blanks everywhere"),
        pytest.param("[1, 2]", [1, 2], id="an array"),
    ],
)
def test_values(text, expected):
    assert [root.value for root in read_json(text)] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a": 1, "a": 2}', id="at the top"),
        pytest.param('{"items": [], "items": []}', id="two lists of items"),
        pytest.param('{"a": [{"b": 1, "b": null}]}', id="inside"),
    ],
)
def test_a_key_that_stands_twice_is_a_fault(text):
    fault = first_fault(read_json(text)[0].value)
    assert fault is not None
    assert "stands twice" in fault.reason


@pytest.mark.parametrize(
    "text, line",
    [
        pytest.param('{"a": 1', 1, id="cut off"),
        pytest.param('{"a": 1\n,}', 2, id="comma too many"),
        pytest.param('{"items": [{}\n,]}', 2, id="comma too many in items"),
        pytest.param('{"items": [{}\n{}]}', 2, id="comma missing in items"),
        pytest.param('{"items": [', 1, id="cut off in items"),
        pytest.param("{1: 2}", 1, id="a number as key"),
        pytest.param('{"a"\n 1}', 2, id="colon missing"),
        pytest.param('\n\n{"a": tru}', 3, id="half a word"),
        pytest.param("{}\n}", 2, id="something behind"),
        pytest.param('{"a": "\x01"}', 1, id="control character"),
        pytest.param("\n" + "[" * 100_000, 2, id="bottomless array"),
        pytest.param('{"items":[' * 200 + "]}" * 200, 1, id="bottomless lists"),
        pytest.param("\n" + "9" * 5000, 2, id="a number of thousands of digits"),
        pytest.param("{'a': 1}", 1, id="single quotes"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text, line):
    with pytest.raises(Malformed) as caught:
        read_json(text)
    assert caught.value.line == line
    assert caught.value.reason
