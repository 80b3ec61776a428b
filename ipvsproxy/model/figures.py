"""What is counted, as the sync thread publishes it: one immutable value after each pass.

Totals are since the start. Who reads them works nothing out anew and asks the kernel nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ipvsproxy.model.enums import Family
from ipvsproxy.model.flows import TableUsage
from ipvsproxy.model.kernel_objects import Kind

TrafficPolicy: TypeAlias = Literal["internal", "external"]

# One sort of operations: what kind of object, in which family (None: of none), and whether the kernel took it.
Sent: TypeAlias = tuple[Kind, Family | None, bool]

# One sort of objects: what kind, in which family (None: of none).
Sort: TypeAlias = tuple[Kind, Family | None]

_NONE: Mapping[Kind, int] = MappingProxyType({})


class Lacking(NamedTuple):
    """Services of which traffic shall stay on its node and finds nothing here, though there are endpoints elsewhere."""

    policy: TrafficPolicy
    family: Family


class PortName(NamedTuple):
    """A Service port, by its name or, where it has none, its number."""

    namespace: str
    service: str
    port: str
    protocol: str


class Counts(NamedTuple):
    """What passed through it."""

    connections: int = 0
    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Traffic(msgspec.Struct, frozen=True):
    """Of some Service ports what passed through them, total; `left_out`: how many others there are."""

    ports: Mapping[PortName, Counts] = MappingProxyType({})
    left_out: int = 0


class Figures(msgspec.Struct, frozen=True):
    """All counts at the end of a pass. Objects are ours, by kind; those in force are what we believe the kernel has."""

    in_force: Mapping[Kind, int] = _NONE
    refused: Mapping[Kind, int] = _NONE
    waiting: Mapping[Kind, int] = _NONE  # for something that is refused
    drift: Mapping[Sort, int] = MappingProxyType({})  # what somebody else has changed of ours, total
    sent: Mapping[Sent, int] = MappingProxyType({})
    flows_deleted: Mapping[Family, int] = MappingProxyType({})
    flow_failures: Mapping[Family, int] = MappingProxyType({})  # looks for stale flows, or deletions, that failed
    lacking: Mapping[Lacking, int] = MappingProxyType({})
    usage: TableUsage | None = None  # of connection tracking, at the last audit
    traffic: Traffic | None = None  # at the last audit; None where nobody asked for it
    draining: int = 0
    foreign: int = 0
    unread: int = 0
    services: int = 0
    slices: int = 0
    rejected: int = 0


class Undone(msgspec.Struct, frozen=True):
    """How many objects the kernel refuses, and how many wait for one of those: what is asked for and not in force."""

    refused: int = 0
    waiting: int = 0


class Asked(msgspec.Struct, frozen=True):
    """What the cluster has asked for. `at`: when something last was (Unix seconds), None before the first time."""

    services: int = 0
    slices: int = 0
    services_pending: int = 0
    slices_pending: int = 0
    at: float | None = None


class Audits(msgspec.Struct, frozen=True):
    """How many looks at the kernel there were, and when the last one ended (Unix seconds)."""

    quick: int = 0
    in_full: int = 0
    at: float | None = None

    def after(self, at: float, *, in_full: bool) -> Audits:
        """With one more."""
        return Audits(self.quick + (not in_full), self.in_full + in_full, at)


class Pass(msgspec.Struct, frozen=True):
    """What one pass was like; durations in seconds. `is_full`: all that the cluster wants was known.

    `batches`: operations in each message to the kernel. `latencies`: from the arrival of each piece of news until it is
    in the kernel. `programming`: the same from the change itself, as far as the cluster says when it was made. `looks`:
    at the table of connection tracking.
    """

    families: tuple[Family, ...]
    duration: float
    is_audit: bool = False
    is_full: bool = True
    batches: tuple[int, ...] = ()
    latencies: tuple[float, ...] = ()
    programming: tuple[tuple[Family, float], ...] = ()
    looks: tuple[tuple[Family, float], ...] = ()
