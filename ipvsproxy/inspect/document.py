"""What `diff -o json` writes, and its JSON Schema.

As of `status`: fields are added, but none is removed, renamed or given another meaning without another apiVersion, and
one that has nothing to say is absent. `python -m ipvsproxy.inspect.document` writes the schema to schema.json beside
this file, which is part of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ipvsproxy.inspect.operations import Change
from ipvsproxy.model.json_schema import schema_text

PATH = Path(__file__).with_name("schema.json")


class Flow(msgspec.Struct, frozen=True):
    """A client's UDP flow that leads where it should not any more, and would be ended; each end is address and port."""

    client: str
    destination: str
    server: str


class LeftAlone(msgspec.Struct, frozen=True):
    """How many virtual servers are no difference: they drain, or are not ours."""

    draining: int
    foreign: int


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """What a start would do, in its order; nothing where there is no difference."""

    api_version: Literal["ipvsproxy.io/v1"]
    kind: Literal["IpvsDiff"]
    operations: tuple[Change, ...]
    udp_flows: tuple[Flow, ...]
    left_alone: LeftAlone


def json_text(operations: tuple[Change, ...], flows: tuple[Flow, ...], left_alone: LeftAlone) -> str:
    """The document, without a line end."""
    document = Document("ipvsproxy.io/v1", "IpvsDiff", operations, flows, left_alone)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


if __name__ == "__main__":
    PATH.write_text(schema_text(Document), encoding="utf-8")
