"""Our fields, flags and schema against the tables of the reference, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from ipvsproxy.config.command_line import Serve, parse_command_line
from ipvsproxy.config.durations import parse_duration
from ipvsproxy.config.flags import FLAGS, Commands, Group, flags_of
from ipvsproxy.config.schema import PATH, json_schema, text

DATA = Path(__file__).parents[2] / "data/config"
OWN_SECTION = "ipvsproxy."
HELP = "--help"


class Row(NamedTuple):
    name: str
    kind: str
    default: str
    own: str


def table(name):
    lines = (DATA / name).read_text().splitlines()[2:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


FIELDS = {row.name: row for row in table("fields.md")}
UPSTREAM_FLAGS = {row.name: row for row in table("flags.md")}

JSON_TYPES = {
    "string": {"string"},
    "duration": {"string"},
    "quantity": {"string", "integer"},
    "bool": {"boolean"},
    "int32": {"integer"},
    "uint32": {"integer"},
    "float": {"number"},
    "list": {"array"},
    "map": {"object"},
}


def fields_of(schema, definitions, path=""):
    """Leaves of the schema by path; a section is what refers to a definition."""
    for name, field in schema["properties"].items():
        (reference, *_) = [option["$ref"] for option in field.get("anyOf", ()) if "$ref" in option] or [""]
        if reference:
            yield from fields_of(definitions[reference.rpartition("/")[2]], definitions, f"{path}{name}.")
        elif name not in {"apiVersion", "kind"}:
            yield path + name, field


def types_of(field):
    options = field.get("anyOf") or [field]
    types = [option["type"] for option in options]
    return {name for kind in types for name in (kind if isinstance(kind, list) else [kind])}


def same(kind, default, shown):
    """Whether two spellings of a value mean the same: 24h and 24h0m0s, 5 and 5.0."""
    if kind == "duration":
        return parse_duration(default) == parse_duration(shown)
    return float(default) == float(shown) if kind == "float" else default == shown


SCHEMA = json_schema()
SCHEMA_FIELDS = dict(fields_of(SCHEMA, SCHEMA["$defs"]))


def test_the_schema_has_the_fields_of_the_reference_and_our_own_section():
    assert {name for name in SCHEMA_FIELDS if not name.startswith(OWN_SECTION)} == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_the_references_type_and_may_be_null(name):
    allowed = JSON_TYPES[FIELDS[name].kind] | {"null"}
    if name == "logging.flushFrequency":
        allowed |= {"integer"}  # nanoseconds: kubeadm writes 0
    assert types_of(SCHEMA_FIELDS[name]) == allowed


@pytest.mark.parametrize("name", [row.name for row in FIELDS.values() if not row.own])
def test_a_field_has_the_references_default(name):
    shown = SCHEMA_FIELDS[name]["default"]
    shown = "" if shown in ([], {}) else str(shown).lower() if isinstance(shown, bool) else str(shown)
    assert same(FIELDS[name].kind, FIELDS[name].default, shown)


def test_the_schema_in_the_package_is_made_from_the_types_as_they_are():
    assert PATH.read_text(encoding="utf-8") == text()
    assert msgspec.json.decode(PATH.read_bytes()) == SCHEMA


def test_the_schema_refuses_unknown_fields_everywhere():
    for section in (SCHEMA, *SCHEMA["$defs"].values()):
        assert section["additionalProperties"] is False


def test_the_proxy_has_the_flags_of_the_reference_and_our_own():
    ours = {flag.name for flag in flags_of(Commands.PROXY) if flag.group is not Group.OWN}
    assert ours - {HELP} == UPSTREAM_FLAGS.keys()


@pytest.mark.parametrize("name", [row.name for row in UPSTREAM_FLAGS.values() if not row.own])
def test_a_flag_has_the_references_default(name):
    command = parse_command_line(["--manifests=x"])
    assert isinstance(command, Serve)
    shown = command.config.flag_values[name[2:]]
    shown = "" if shown == "[]" else shown
    kind = UPSTREAM_FLAGS[name].kind
    default = UPSTREAM_FLAGS[name].default or ("false" if kind == "bool" else "")
    assert same(kind, default, shown)


@pytest.mark.parametrize("name", UPSTREAM_FLAGS)
def test_a_flag_is_a_switch_where_the_reference_says_bool(name):
    (flag,) = (flag for flag in FLAGS if flag.name == name)
    assert flag.is_switch == (UPSTREAM_FLAGS[name].kind == "bool")
    assert flag.is_list == (UPSTREAM_FLAGS[name].kind in {"list", "k=bool,…"})


def test_every_flag_of_the_reference_can_be_given_at_once():
    values = {"list": "", "k=bool,…": "A=true", "duration": "1m", "int32": "1", "float": "1", "quantity": "1Ki"}
    special = {"--proxy-mode": "ipvs", "--detect-local-mode": "NodeCIDR", "--logging-format": "text", "--vmodule": ""}
    special["--show-hidden-metrics-for-version"] = "1.36"
    left_out = {"--config", "--write-config-to", "--cleanup", "--init-only", "--version", "--cluster-cidr"}
    words = [
        f"{row.name}={special.get(row.name, values.get(row.kind, row.default or 'x'))}"
        for row in UPSTREAM_FLAGS.values()
        if row.name not in left_out
    ]
    assert isinstance(parse_command_line(words), Serve)
