"""What a source (API server, folder) tells the sync thread about the cluster."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec

from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.api_objects import EndpointSlice, Node, OtherNode, Service
from ipvsproxy.model.notes import Note

ApiObject: TypeAlias = Service | EndpointSlice | Node | OtherNode

OTHER_NODE: Final = "OtherNode"
"""The kind of the Nodes that are not ours, where they are followed for their addresses alone."""


class ObjectRef(NamedTuple):
    """An object's identity. Prints as `Kind namespace/name`.

    `kind` is "Service", "EndpointSlice", "Node" or OTHER_NODE.
    """

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


class NodeAddresses(msgspec.Struct, frozen=True):
    """Another Node has these addresses now; none: it is gone, or has none yet."""

    name: str
    addresses: tuple[PackedAddr, ...]


class Forgotten(msgspec.Struct, frozen=True):
    """Objects of this kind are not followed any more: what was told of them counts for nothing."""

    kind: str


class Forbidden(msgspec.Struct, frozen=True):
    """We may not list objects of this kind (HTTP 403). It is tried again; Listed tells when it worked."""

    kind: str
    reason: str


ClusterEvent: TypeAlias = Changed | Removed | Listed | Rejected | NodeAddresses | Forgotten | Forbidden
