"""A configuration that was written loads to the same values, whatever was written; and any file is read or refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.config.document import decode
from ipvsproxy.config.load import API_VERSION, KIND, load, render
from ipvsproxy.config.schema import json_schema
from ipvsproxy.config.types import KubeProxyConfiguration
from ipvsproxy.errors import ConfigError

SCHEMA = json_schema()
HEAD = {"apiVersion": API_VERSION, "kind": KIND}
# Texts that YAML might take for something else, beside any text.
TRICKY = [
    "",
    "yes",
    "no",
    "null",
    "~",
    "1e3",
    "0x10",
    "010",
    "1:30",
    "2026-11-30",
    "a: b",
    "- a",
    "#",
    "*a",
    "&a",
    "%",
    "\u0085",
]
TEXT = st.sampled_from(TRICKY) | st.text(st.characters(codec="utf-8"), max_size=8)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "number": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "object": st.dictionaries(TEXT, st.booleans(), max_size=3),
}
DURATION = st.sampled_from(["0", "0s", "1s", "1m30s", "15m0s", "24h", "250ms", "-1s", "no duration"])


def values(schema: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Values that the schema takes; durations now and then."""
    if "$ref" in schema:
        return documents(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    kinds = schema.get("type")
    options = [schema | {"type": kind} for kind in kinds] if isinstance(kinds, list) else schema.get("anyOf")
    if options:
        return st.one_of([values(option, name) for option in options])
    if schema["type"] == "string":
        return DURATION if name.endswith(("Timeout", "Period", "Frequency")) else TEXT
    if schema["type"] == "integer":
        return st.integers(schema.get("minimum", -(2**31)), schema.get("maximum", 2**31 - 1))
    if schema["type"] == "array":
        return st.lists(values(schema["items"]), max_size=3)
    return PLAIN[schema["type"]]


def documents(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {
        name: values(field, name) for name, field in schema["properties"].items() if name not in {"apiVersion", "kind"}
    }
    return st.fixed_dictionaries({}, optional=fields)


def read(data: bytes) -> KubeProxyConfiguration:
    return decode("c.yaml", load("c.yaml", data).document)


def outcome(data: bytes) -> bool:
    """Whether it is read, or refused with the file's name; anything else is raised."""
    try:
        read(data)
    except ConfigError as error:
        return str(error).startswith("failed to decode: c.yaml: ")
    return True


@given(documents(SCHEMA))
def test_what_is_written_loads_to_the_same_values(document):
    read_once = read(json.dumps(HEAD | document).encode())
    written = render(read_once)
    again = read(written.encode())
    named = msgspec.structs.replace(
        read_once, mode=read_once.mode or "ipvs", detect_local_mode=read_once.detect_local_mode or "ClusterCIDR"
    )
    assert again == named
    assert render(again) == written


@given(documents(SCHEMA))
def test_what_the_schema_takes_has_no_unknown_fields(document):
    loaded = load("c.yaml", json.dumps(HEAD | document).encode())
    assert loaded.unknown == ()
    assert loaded.duplicate == ()


FRAGMENTS = st.sampled_from(
    [
        "ipvs",
        ":",
        " ",
        "\n",
        "  ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        '"',
        "&a ",
        "*a",
        "!!map ",
        "<<",
        "\t",
        "1",
        "~",
        "\0",
        "\ufeff",
    ]
)


@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.booleans())
def test_any_text_is_read_or_refused_by_name(text, has_head):
    head = f"apiVersion: {API_VERSION}\nkind: {KIND}\n" if has_head else ""
    assert outcome((head + text).encode())


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_by_name(data):
    assert outcome(f"apiVersion: {API_VERSION}\nkind: {KIND}\n".encode() + data)
