"""All that we know of the cluster, and which Services have changed since the sync thread last asked.

Objects are made compact when they arrive, so memory follows the fields we use; what the API no longer has leaves no
trace (K40). Every step costs the size of its change. For each touched Service the tracker remembers what stood there
at the last `take`: a change that was undone before the next one is compared away and never seen by the planner.
Differs from pkg/proxy/endpointslicecache.go: a slice whose service-name label is edited leaves its old Service.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import (
    OTHER_NODE,
    ApiObject,
    Changed,
    ClusterEvent,
    Forbidden,
    Forgotten,
    Listed,
    NodeAddresses,
    ObjectRef,
    Rejected,
    Removed,
)
from ipvsproxy.cluster.known import ClusterSnapshot
from ipvsproxy.cluster.node import NodeView, addresses_of, read_node
from ipvsproxy.cluster.services import ServiceView, read_service
from ipvsproxy.cluster.slices import CompactSlice, compact_slice
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.api_objects import EndpointSlice, Node, OtherNode, Service
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note, gather
from ipvsproxy.model.notices import Notice, service_notices

_Part: TypeAlias = ServiceView | CompactSlice | None
_SERVICE = ""  # the key of the Service itself beside its slices' names, which are never empty
_NEEDED = frozenset({"Service", "EndpointSlice"})
_NODE = "Node"
_CLAIMS = "claimed addresses"  # beside the kinds of objects: what is said of a Service for other objects' sake
_ELSEWHERE_HINT = (
    "It is not served on this node, its packets go to whoever has it. Give the Service an address of its own"
)


class Changes(msgspec.Struct, frozen=True):
    """What differs from the last `take`: Services (sorted), our node, and what there is to say about bad objects.

    `notices` is what of it the objects' owners must know, who do not read our log.
    """

    services: tuple[ServiceName, ...] = ()
    node_changed: bool = False
    notes: tuple[Note, ...] = ()
    notices: tuple[Notice, ...] = ()


class Counts(NamedTuple):
    """Sizes of what is held; all zero when the API is empty and everything was taken."""

    services: int
    slices: int
    pending: int
    noted: int
    claims: int


class Tracker:
    """The cluster's state. Owned by the sync thread; nothing here locks.

    Without `external_ips` those of Services count as not given (the gate AllowServiceExternalIPs).
    """

    def __init__(  # noqa: PLR0913  # all but three by keyword
        self,
        node_name: str,
        families: Collection[Family],
        node_addresses: tuple[PackedAddr, ...] = (),
        *,
        external_ips: bool = True,
        node_ip: PackedAddr | None = None,
        claims: Claims | None = None,
    ) -> None:
        self.claims = Claims() if claims is None else claims
        self._families = frozenset(families)
        self._external_ips = external_ips
        self._given_node = NodeView(node_name, node_addresses, given_ip=node_ip)
        self._node_is_there = False
        self._node = self._taken_node = self._given_node
        self._services: dict[ServiceName, ServiceView] = {}
        self._slices: dict[ServiceName, dict[str, CompactSlice]] = {}
        self._slice_owners: dict[tuple[str, str], ServiceName] = {}
        self._before: dict[ServiceName, dict[str, _Part]] = {}
        self._noted: dict[ObjectRef, tuple[Note, ...]] = {}
        self._new_notes: list[Note] = []
        self._new_notices: list[Notice] = []
        self._listed: set[str] = set()
        self.claims.put_our_node(self._node)

    @property
    def ready(self) -> bool:
        """Whether Services and their endpoints were told in full: nothing may be removed from the kernel before."""
        return self._listed >= _NEEDED

    @property
    def node(self) -> NodeView:
        """Our node; addresses given on the command line hold against those of the Node object."""
        return self._node

    @property
    def knows_node(self) -> bool:
        """Whether our Node object is there; addresses may be given without it, or remembered from before it went."""
        return self._node_is_there

    @property
    def node_is_eligible(self) -> bool:
        """Whether load balancers may send to our node: it is known, and neither going nor about to go."""
        return self.knows_node and not self._node.is_leaving

    @property
    def families(self) -> frozenset[Family]:
        """Those that this node serves."""
        return self._families

    @property
    def has_heard_of_node(self) -> bool:
        """Whether our Node was told, or that there is none, or that we may not ask."""
        return self._node_is_there or _NODE in self._listed

    @property
    def counts(self) -> Counts:
        """What is held, for metrics."""
        return Counts(
            services=len(self._services),
            slices=len(self._slice_owners),
            pending=len(self._before),
            noted=len(self._noted),
            claims=len(self.claims),
        )

    @property
    def snapshot(self) -> ClusterSnapshot:
        """All of it as it is now; costs a reference for each object, whatever is in it."""
        slices = {name: tuple(pieces.values()) for name, pieces in self._slices.items()}
        return ClusterSnapshot(tuple(self._services.values()), slices)

    def names(self) -> Iterator[ServiceName]:
        """Every Service that is ours, in no meaningful order."""
        return iter(self._services)

    def view(self, name: ServiceName) -> tuple[ServiceView | None, tuple[CompactSlice, ...]]:
        """What the cluster says of one Service now: None where it is not ours; its slices by name."""
        slices = self._slices.get(name, {})
        return self._services.get(name), tuple(slices[key] for key in sorted(slices))

    def note(self, event: ClusterEvent) -> bool:
        """Merge one event; whether a sync may have something to do for it. Raises nothing, whatever the object holds.

        Most addresses of other Nodes, of which thousands come in a row, are nothing to any Service.
        """
        match event:
            case Changed(ref=ref, object=changed):
                self._change(ref, changed)
            case Removed(ref=ref):
                self._remove(ref)
            case Listed(kind=kind):
                self._list(kind)
            case Rejected(notes=notes):
                self._new_notes.extend(notes)
            case NodeAddresses(name=name, addresses=addresses):
                return self.claims.put_node(name, addresses)
            case Forgotten(kind=kind) if kind == OTHER_NODE:
                self.claims.forget_nodes()
            case Forbidden(kind=kind, reason=reason) if kind == OTHER_NODE:
                self._go_on_without_nodes(reason)
            case Forbidden(kind=kind, reason=reason) if kind == _NODE:
                self._go_on_without_our_node(reason)
        return True

    def take(self, bound: Container[object] = ()) -> Changes:
        """What has changed since the last call, which from now on counts as known. `bound`: see Claims.settle."""
        touched = {
            name
            for name, parts in self._before.items()
            if any(self._part(name, key) != old for key, old in parts.items())
        }
        touched |= self.claims.settle(bound)
        for name in sorted(touched):
            self._say_what_is_elsewhere(name)
        changes = Changes(
            tuple(sorted(touched)),
            self._node != self._taken_node,
            tuple(self._new_notes),
            tuple(self._new_notices),
        )
        self._before = {}
        self._taken_node = self._node
        self._new_notes, self._new_notices = [], []
        return changes

    def _change(self, ref: ObjectRef, changed: ApiObject) -> None:
        match changed:
            case Service():
                name = ServiceName(ref.namespace, ref.name)
                view, notes = read_service(changed, self._families)
                if self._say(ref, notes):
                    self._new_notices += service_notices(name, changed.metadata.uid, notes)
                if view is not None and not self._external_ips:
                    view = msgspec.structs.replace(view, external_ips=())
                self._set_service(name, view)
            case EndpointSlice():
                compact, notes = compact_slice(changed, self._given_node.name)
                self._say(ref, notes)
                self._set_slice(ref, compact)
            case Node() | OtherNode():
                self._set_node(ref, changed)

    def _remove(self, ref: ObjectRef) -> None:
        self._say(ref, ())
        match ref.kind:
            case "Service":
                self._set_service(ServiceName(ref.namespace, ref.name), None)
            case "EndpointSlice":
                self._set_slice(ref, None)
            case "Node" if ref.name == self._given_node.name:
                self._lose_node()
            case _:
                self.claims.put_node(ref.name, ())

    def _list(self, kind: str) -> None:
        self._listed.add(kind)
        if kind == OTHER_NODE:
            self.claims.know_nodes()

    def _set_service(self, name: ServiceName, view: ServiceView | None) -> None:
        self._remember(name, _SERVICE)
        self.claims.claim(self._services.get(name), view)
        if view is None:
            self._services.pop(name, None)
        else:
            self._services[name] = view

    def _set_slice(self, ref: ObjectRef, compact: CompactSlice | None) -> None:
        identity = (ref.namespace, ref.name)
        owner = self._slice_owners.pop(identity, None)
        if owner is not None and (compact is None or compact.service != owner):
            self._drop_slice(owner, ref.name)
        if compact is not None:
            self._remember(compact.service, ref.name)
            self._slices.setdefault(compact.service, {})[ref.name] = compact
            self._slice_owners[identity] = compact.service

    def _drop_slice(self, owner: ServiceName, slice_name: str) -> None:
        self._remember(owner, slice_name)
        del self._slices[owner][slice_name]
        if not self._slices[owner]:
            del self._slices[owner]

    def _set_node(self, ref: ObjectRef, node: Node | OtherNode) -> None:
        if isinstance(node, OtherNode) or ref.name != self._given_node.name:
            self.claims.put_node(ref.name, addresses_of(node))
            return
        view, notes = read_node(node)
        self._say(ref, notes)
        given = self._given_node
        self._node = msgspec.structs.replace(view, addresses=given.addresses or view.addresses, given_ip=given.given_ip)
        self._node_is_there = True
        self.claims.put_our_node(view)

    def _lose_node(self) -> None:
        """Our Node is gone: what it said last holds, for the machine and its pods are as they were.

        differs: upstream ends the program, and its next run does not begin before the Node is back.
        """
        if self._node_is_there:
            self._node_is_there = False
            hint = "Restart the kubelet if it does not come back by itself"
            self._new_notes.append(Note(f"Node {self._node.name}", "is gone; what it said last holds", hint))

    def _go_on_without_nodes(self, reason: str) -> None:
        """Serving external IPs unprotected, as kube-proxy does, harms fewer than not serving them at all."""
        if self.claims.knows_nodes:
            return  # what was told last holds
        self.claims.know_nodes()
        effect = "external and load-balancer IPs that another Node has are not left to it"
        hint = "Grant list and watch on nodes, without a list of names, to the account of ipvsproxy"
        self._new_notes.append(Note("other Nodes", f"{reason}: {effect}", hint))

    def _go_on_without_our_node(self, reason: str) -> None:
        if not self.has_heard_of_node:
            effect = "its zone, addresses and pod networks are not known"
            hint = (
                f"Grant list and watch on nodes, for the name {self._node.name} at least, to the account of ipvsproxy"
            )
            self._new_notes.append(Note(f"Node {self._node.name}", f"{reason}: {effect}", hint))
            self._listed.add(_NODE)

    def _say_what_is_elsewhere(self, name: ServiceName) -> None:
        view = self._services.get(name)
        faults = tuple(self.claims.faults(view)) if view else ()
        notes = gather(f"Service {name}", faults, _ELSEWHERE_HINT, "AddressElsewhere")
        if self._say(ObjectRef(_CLAIMS, *name), notes) and view:
            self._new_notices += service_notices(name, view.uid, notes)

    def _remember(self, name: ServiceName, key: str) -> None:
        """Keep what stood there at the last `take`: the first change since then decides."""
        self._before.setdefault(name, {}).setdefault(key, self._part(name, key))

    def _part(self, name: ServiceName, key: str) -> _Part:
        if key == _SERVICE:
            return self._services.get(name)
        return self._slices.get(name, {}).get(key)

    def _say(self, ref: ObjectRef, notes: tuple[Note, ...]) -> bool:
        """Tell an object's notes once, until they change: it may arrive again for other reasons. Whether they did."""
        if notes == self._noted.get(ref, ()):
            return False
        self._new_notes.extend(notes)
        if notes:
            self._noted[ref] = notes
        else:
            del self._noted[ref]
        return True
