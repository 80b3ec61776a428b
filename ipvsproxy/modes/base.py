"""What the sync thread and the dry run ask of a mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ipvsproxy.cluster.node import HostView, NodeView
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.plan.desired import OwnerPlan


class Mode(Protocol):
    """One --proxy-mode. Every call is pure: the same input gives the same plan."""

    name: str

    depends_on_node: bool  # not even the fixed layer may be planned before the Node object is known
    drain_s: float  # how long connections to what leaves may go on where its plan does not say
    guard_sets: dict[Family, tuple[str, ...]]  # names of the sets that close a (VIP, protocol, port) to some sources

    def lacks(self, node: NodeView) -> str:
        """What our Node does not say though plans depend on it, in words; empty where it says all."""

    def fixed(self, node: NodeView, host: HostView) -> OwnerPlan:
        """What stands whatever the Services are."""

    def families_that_cannot_tell_pods(self, node: NodeView) -> frozenset[Family]:
        """Those in which a packet from a local pod looks like any other's."""

    def host_view(self, addresses: frozenset[PackedAddr], node: NodeView) -> HostView:
        """The node's own addresses as this mode uses them; `addresses` are those of its interfaces but kube-ipvs0."""

    def depends_on_host(self, view: ServiceView, slices: Sequence[CompactSlice]) -> bool:
        """Whether the plan of this Service changes with the host view."""

    def plan(self, view: ServiceView, slices: Sequence[CompactSlice], host: HostView) -> OwnerPlan:
        """What one Service wants."""
