"""JSON Schemas (draft 2020-12) of the documents that programs read.

They allow fields that they do not name: later versions have more.
"""

from __future__ import annotations

from typing import Any

import msgspec


def schema_text(document: type[msgspec.Struct]) -> str:
    """The schema of a document, laid out as the package has it."""
    (referring,), definitions = msgspec.json.schema_components((document,), ref_template="#/$defs/{name}")
    root: dict[str, Any] = definitions.pop(referring["$ref"].rpartition("/")[2])
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root | {"$defs": definitions}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
