"""What `explain` has to go by: the plan, what was read, and what a start would make of both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ipvsproxy.cluster.node import HostView
from ipvsproxy.model.flows import UdpFlow, pack_endpoint
from ipvsproxy.model.kernel_objects import ObjectId, Operation, State, VirtualServerKey
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.plan.desired import Desired


class Standing(StrEnum):
    """How an object is, against how it should be for now."""

    OK = "ok"
    MISSING = "missing"
    DIFFERENT = "differs"
    TOO_MUCH = "goes"  # nobody wants it: a start would delete it
    DRAINS = "drains"  # nobody wants it, and its connections may go on


@dataclass(frozen=True, slots=True)
class Evidence:
    """`remaining`: what of `observed` would be ours after `operations`: what is wanted, and what may stay for now.

    `connections`: of the real servers of each virtual server, by identity; those asked for alone.
    """

    observed: State
    remaining: State
    desired: Desired
    operations: tuple[Operation, ...]
    flows: tuple[UdpFlow, ...]
    host: HostView
    options: ServiceOptions
    connections: Mapping[VirtualServerKey, Mapping[bytes, int]] = field(default_factory=dict)

    def standing(self, ref: ObjectId) -> Standing | None:
        """How an object is; None where it neither is nor should be."""
        kind, key = ref
        have, shall = self.observed[kind].get(key), self.remaining[kind].get(key)
        if have == shall:
            return None if have is None else Standing.OK if self.desired.get(ref) is not None else Standing.DRAINS
        if have is None:
            return Standing.MISSING
        return Standing.TOO_MUCH if shall is None else Standing.DIFFERENT

    def changes_of(self, refs: Collection[ObjectId]) -> tuple[Operation, ...]:
        """What a start would do to these objects."""
        return tuple(operation for operation in self.operations if (operation.kind, operation.key) in refs)

    def flows_to(self, keys: Iterable[VirtualServerKey]) -> tuple[UdpFlow, ...]:
        """The stale UDP flows to these frontends."""
        ends = {pack_endpoint(key.address, key.port) for key in keys}
        return tuple(flow for flow in self.flows if flow.destination in ends)
