"""The chart's values are the program's configuration, and everything that is said of them is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import ipvsproxy
from ipvsproxy.config.schema import json_schema
from ipvsproxy.config.types import KubeProxyConfiguration
from tests.tables import chart

VALUES: dict[str, Any] = yaml.safe_load(chart.VALUES.read_text())
ROWS = list(chart.rows(chart.VALUES.read_text()))


def leaves(document: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Every field without fields of its own, by its path."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        inner = leaves(value, f"{above}{key}.") if isinstance(value, dict) and value else {above + key: value}
        found |= inner
    return found


PROGRAM = leaves(msgspec.json.decode(msgspec.json.encode(KubeProxyConfiguration())))


@pytest.mark.parametrize("path", chart.files(), ids=lambda path: path.name)
def test_a_file_says_what_the_code_says(path: Path):
    assert path.read_text() == chart.files()[path], "run `make golden-update` and review the difference"


def test_every_field_of_the_configuration_is_a_value_and_no_other():
    assert leaves(VALUES["config"]).keys() == PROGRAM.keys()


def test_only_these_fields_have_other_defaults_than_the_programs():
    found = {path for path, value in leaves(VALUES["config"]).items() if value != PROGRAM[path]}
    assert found == {"mode", "oomScoreAdj"}


def test_the_schema_takes_the_configuration_of_the_programs_own_schema():
    written = json.loads(chart.SCHEMA.read_text())
    own = json_schema()
    assert written["properties"]["config"]["properties"].keys() == own["properties"].keys() - {"apiVersion", "kind"}
    assert written["definitions"].keys() == own["$defs"].keys()


def objects_in(schema: Any) -> list[dict[str, Any]]:
    """Every part of a schema that lists fields."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects_in(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if isinstance(schema.get("properties"), dict) and "additionalProperties" in schema else []
    return own + [found for key, item in schema.items() if key != "default" for found in objects_in(item)]


def test_no_section_takes_keys_that_it_does_not_list():
    sections = objects_in(json.loads(chart.SCHEMA.read_text()))
    assert len(sections) > 20
    assert [section for section in sections if section["additionalProperties"] is not False] == []


def test_every_default_is_listed_in_the_schema():
    properties = json.loads(chart.SCHEMA.read_text())["properties"]
    assert properties.keys() == VALUES.keys() | {"global"}


@pytest.mark.parametrize("path, told", [(path, told) for path, _, told in ROWS], ids=[path for path, *_ in ROWS])
def test_a_value_is_told_what_it_is_for(path: str, told: str):
    assert told or chart.is_without_effect(path.removeprefix("config."))


def test_versions_are_the_packages():
    found = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert found["version"] == found["appVersion"] == ipvsproxy.__version__
