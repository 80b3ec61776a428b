"""docs/configuration.md tells of every setting of our own, of every one without effect, and of what beats a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ipvsproxy.config.flags import FLAGS, Commands, Group
from ipvsproxy.config.load import load
from ipvsproxy.config.remarks import FIELDS_WITHOUT_EFFECT
from ipvsproxy.config.types import OwnConfiguration

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
OWN_FLAGS = [flag for flag in FLAGS if flag.group is Group.OWN and flag.commands & Commands.PROXY]
OWN_FIELDS = [f"ipvsproxy.{name}" for name in OwnConfiguration.__struct_encode_fields__]


@pytest.mark.parametrize("flag", OWN_FLAGS, ids=lambda flag: flag.name)
def test_a_flag_of_our_own_stands_beside_its_field_and_default(flag):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{flag.field}`")]
    assert f"| `{flag.name}` |" in row


@pytest.mark.parametrize("field", OWN_FIELDS)
def test_a_field_of_our_own_stands_in_the_table(field):
    assert f"| `{field}` |" in PAGE


@pytest.mark.parametrize("field", FIELDS_WITHOUT_EFFECT)
def test_a_field_without_effect_is_listed_with_the_reason(field):
    assert f"`{field}`" in PAGE or f"`{field}.*`" in PAGE or f"`{field.rsplit('.', 2)[0]}.*`" in PAGE


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.group is Group.WITHOUT_EFFECT], ids=lambda f: f.name)
def test_a_flag_without_effect_is_listed_too(flag):
    assert f"`{flag.name}`" in PAGE


def test_the_example_file_is_one():
    text = PAGE.partition("```yaml\n")[2].partition("```")[0]
    assert load("the example", text.encode()).unknown == ()
    assert yaml.safe_load(text)["ipvsproxy"] == {"drainTimeout": "5m"}
