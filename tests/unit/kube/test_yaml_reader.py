"""YAML as values with lines."""

from __future__ import annotations

import pytest
import yaml

from ipvsproxy.kube.mapping import MAX_DEPTH, Fault, Malformed, Mapping, first_fault
from ipvsproxy.kube.yaml_reader import MAX_ALIASED, _Builder, read_yaml

WRITTEN_TWICE = 'the key "b" stands twice in one mapping'


def only(text: str) -> object:
    (root,) = read_yaml(text.encode())
    return root.value


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param("80", 80, id="number"),
        pytest.param("-7", -7, id="negative number"),
        pytest.param("1.5e3", 1500.0, id="float"),
        pytest.param("true", True, id="true"),
        pytest.param("False", False, id="false"),
        pytest.param("~", None, id="null"),
        pytest.param("---", None, id="an empty document"),
        pytest.param("yes", "yes", id="yes is text"),
        pytest.param("on", "on", id="on is text"),
        pytest.param("1:30", "1:30", id="no sexagesimal numbers"),
        pytest.param("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", id="an IPv6 address without quotes"),
        pytest.param("10.96.0.1", "10.96.0.1", id="an IPv4 address without quotes"),
        pytest.param("10.0.0.0/8", "10.0.0.0/8", id="a CIDR without quotes"),
        pytest.param("2026-11-30T04:20:02Z", "2026-11-30T04:20:02Z", id="a time stamp is text"),
        pytest.param("0x50", "0x50", id="no hexadecimal"),
        pytest.param("1_000", "1_000", id="no underscores in numbers"),
        pytest.param("'80'", "80", id="quoted number"),
        pytest.param("!!str 80", "80", id="number tagged as text"),
        pytest.param("! 80", "80", id="non-specific tag"),
        pytest.param("!!int 80", 80, id="number tagged as number"),
        pytest.param("9" * 50, float("9" * 50), id="a number beyond 64 bits"),
        pytest.param("123e4567", "123e4567", id="a hash that no float can hold is text, as kubectl writes it"),
        pytest.param("- a\n- [b, {c: 1}]", ["a", ["b", {"c": 1}]], id="sequences"),
    ],
)
def test_scalars_mean_what_the_core_schema_says(text, expected):
    value = only(text)
    assert value == expected
    assert type(value) is type(expected)


def test_both_of_pyyaml_s_parsers_give_the_same():
    text = b"a: &x [1, 'b', {c: null}]\nd: *x\ne: |\n  text\n--- 7\n---\n? [k]\n: v\n"
    slow = _Builder(yaml.parse(text, Loader=yaml.SafeLoader)).roots()
    assert slow == read_yaml(text)
    assert [root.line for root in slow] == [1, 5, 7]


def test_every_document_and_mapping_knows_its_line():
    roots = read_yaml(b"# comment\n\na: 1\n---\n\nitems:\n- b: 2\n-\n  c: 3\n")
    assert [root.line for root in roots] == [3, 6]
    second = roots[1].value
    assert isinstance(second, Mapping)
    items = second["items"]
    assert isinstance(items, list)
    assert [item.line for item in items] == [7, 9]


def test_null_values_are_absent():
    assert only("a: null\nb:\nc: 1") == {"c": 1}


def test_keys_are_text_as_written():
    assert only("80: a\ntrue: b\non: c") == {"80": "a", "true": "b", "on": "c"}


@pytest.mark.parametrize(
    "text, line, reason",
    [
        pytest.param("a: 1\nb: 2\na: 3", 3, 'the key "a" stands twice', id="a key twice"),
        pytest.param("a: null\na: 3", 2, 'the key "a" stands twice', id="a null key twice"),
        pytest.param("x:\n  - y:\n      a: 1\n      a: 1", 4, 'the key "a" stands twice', id="deep inside"),
        pytest.param("a: &m {b: 1}\nc:\n  <<: *m", 3, "merge keys", id="merge key"),
        pytest.param("[a]: 1", 1, "a key that is not a plain name", id="a sequence as key"),
        pytest.param("a: !!binary aGk=", 1, 'the tag "tag:yaml.org,2002:binary"', id="binary"),
        pytest.param(
            "a: !!python/object:os.system {}", 1, 'the tag "tag:yaml.org,2002:python', id="an object of Python's"
        ),
        pytest.param("a:\n- !own [x]", 2, 'the tag "!own"', id="an own tag inside a sequence"),
    ],
)
def test_what_spoils_a_mapping_is_told_with_its_line(text, line, reason):
    fault = first_fault(only(text))
    assert fault is not None
    assert fault.line == line
    assert fault.reason.startswith(reason)


def test_a_clean_text_has_no_fault():
    assert first_fault(only('"<<": 1\na: [{b: 1}, {b: 1}]')) is None


@pytest.mark.parametrize(
    "data, line, reason",
    [
        pytest.param(b"a: 1\nb:\n\tc: 1", 3, "found character that cannot start any token", id="tab"),
        pytest.param(b"a: 1\nb: [1,\n2\n", 2, "flow sequence", id="open bracket: where it was opened"),
        pytest.param(b"a: 1\nb: [1,\n2\nc: 1", 4, "flow sequence", id="open bracket: where it went wrong"),
        pytest.param(b"a: 1\nb: 'x\n\n", 2, "quoted scalar", id="open quote"),
        pytest.param(b"a: 1\nb: \0", 2, "control characters are not allowed", id="NUL"),
        pytest.param(b"a: *b", 1, "the alias *b stands before or inside its anchor", id="unknown alias"),
        pytest.param(b"a: &b\n  c: *b", 2, "the alias *b stands before or inside its anchor", id="endless alias"),
        pytest.param(b"a: &x 1\n---\nb: *x\n", 3, "the alias *x", id="alias of another document"),
        pytest.param(b"[" * 200 + b"]" * 200, 1, f"nested deeper than {MAX_DEPTH} levels", id="deep"),
        pytest.param(b"[" * 100_000, 1, "", id="bottomless"),
        pytest.param(b"%YAML 9.9\n---\na: 1", 1, "incompatible YAML document", id="another YAML"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(data, line, reason):
    with pytest.raises(Malformed) as caught:
        read_yaml(data)
    assert caught.value.line == line
    assert reason in caught.value.reason


def test_an_alias_stands_where_it_is_written():
    first, second = only("- &a\n  b: 1\n- *a\n")
    assert (first.line, second.line) == (1, 3)
    assert first == second == {"b": 1}


def test_what_is_wrong_at_an_anchor_is_told_with_its_own_line_for_the_alias_too():
    first, second = only("- &a\n  b: 1\n  b: 2\n- *a\n")
    assert (first_fault(first), first_fault(second)) == (Fault(3, WRITTEN_TWICE), Fault(3, WRITTEN_TWICE))


def test_an_alias_bomb_is_refused_before_it_goes_off():
    levels = ["a0: &a0 [" + ",".join(["lol"] * 10) + "]"]
    levels += [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 12)]
    with pytest.raises(Malformed, match="aliases"):
        read_yaml("\n".join(levels).encode())


def test_aliases_of_long_text_count_by_its_length():
    long = "x" * (MAX_ALIASED // 3)
    assert only(f"a: &a {long}\nb: [*a, *a]") == {"a": long, "b": [long, long]}
    with pytest.raises(Malformed, match="aliases"):
        only(f"a: &a {long}\nb: [*a, *a, *a]")
