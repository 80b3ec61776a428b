"""What a source (API server, folder) tells the sync thread about the cluster."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from ipvsproxy.model.api_objects import EndpointSlice, Node, Service
from ipvsproxy.model.notes import Note

ApiObject: TypeAlias = Service | EndpointSlice | Node


class ObjectRef(NamedTuple):
    """An object's identity; `kind` is "Service", "EndpointSlice" or "Node". Prints as `Kind namespace/name`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Changed(msgspec.Struct, frozen=True):
    """The object is there, new or with another content."""

    ref: ObjectRef
    object: ApiObject


class Removed(msgspec.Struct, frozen=True):
    """The object is gone."""

    ref: ObjectRef


class Listed(msgspec.Struct, frozen=True):
    """Every object of this kind that exists has been told: what was not told does not exist."""

    kind: str


class Rejected(msgspec.Struct, frozen=True):
    """Objects or files that could not be read; what they last said stays in force."""

    notes: tuple[Note, ...]


ClusterEvent: TypeAlias = Changed | Removed | Listed | Rejected
