"""The configuration file's JSON Schema, made from the types, for editors and for checks before a roll-out.

It describes what strict decoding takes: no unknown fields. `python -m ipvsproxy.config.schema` writes it to schema.json
beside this file, which is part of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ipvsproxy.config.load import API_VERSION, KIND
from ipvsproxy.config.types import KubeProxyConfiguration

Schema: TypeAlias = dict[str, Any]

PATH = Path(__file__).with_name("schema.json")


def json_schema() -> Schema:
    """The schema, draft 2020-12. A null means that nothing is said, in every field, as kubeadm writes it."""
    (referring,), definitions = msgspec.json.schema_components((KubeProxyConfiguration,), ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition["additionalProperties"] = False
        for name, field in definition["properties"].items():
            definition["properties"][name] = _or_null(field)
    root = definitions.pop(referring["$ref"].rpartition("/")[2])
    root["properties"] = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}} | root["properties"]
    root["required"] = ["apiVersion", "kind"]
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root | {"$defs": definitions}
    return msgspec.json.decode(msgspec.json.encode(schema), type=Schema)  # its own types alone: lists, no tuples


def _or_null(field: Schema) -> Schema:
    if "type" in field:
        return field | {"type": [field["type"], "null"]}
    default = {key: field.pop(key) for key in ("default",) if key in field}
    return {"anyOf": [*field.pop("anyOf", [field]), {"type": "null"}]} | default


def text() -> str:
    """The file's content."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
