"""All that we know of the cluster, and which Services have changed since the sync thread last asked.

Objects are made compact when they arrive, so memory follows the fields we use; what the API no longer has leaves no
trace (K40). Every step costs the size of its change. For each touched Service the tracker remembers what stood there
at the last `take`: a change that was undone before the next one is compared away and never seen by the planner.
Differs from pkg/proxy/endpointslicecache.go: a slice whose service-name label is edited leaves its old Service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.cluster.node import NodeView, read_node
from ipvsproxy.cluster.services import ServiceView, read_service
from ipvsproxy.cluster.slices import CompactSlice, compact_slice
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.api_objects import EndpointSlice, Node, Service
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note

_Part: TypeAlias = ServiceView | CompactSlice | None
_SERVICE = ""  # the key of the Service itself beside its slices' names, which are never empty
_NEEDED = frozenset({"Service", "EndpointSlice"})


class Changes(msgspec.Struct, frozen=True):
    """What differs from the last `take`: Services (sorted), our node, and what there is to say about bad objects."""

    services: tuple[ServiceName, ...] = ()
    node_changed: bool = False
    notes: tuple[Note, ...] = ()


class Counts(NamedTuple):
    """Sizes of what is held; all zero when the API is empty and everything was taken."""

    services: int
    slices: int
    pending: int
    noted: int


class Tracker:
    """The cluster's state. Owned by the sync thread; nothing here locks."""

    def __init__(
        self,
        node_name: str,
        families: Collection[Family],
        node_addresses: tuple[PackedAddr, ...] = (),
        *,
        needs_node: bool = False,
    ) -> None:
        self._families = frozenset(families)
        self._given_node = NodeView(node_name, node_addresses)
        self._node = self._taken_node = self._given_node
        self._services: dict[ServiceName, ServiceView] = {}
        self._slices: dict[ServiceName, dict[str, CompactSlice]] = {}
        self._slice_owners: dict[tuple[str, str], ServiceName] = {}
        self._before: dict[ServiceName, dict[str, _Part]] = {}
        self._noted: dict[ObjectRef, tuple[Note, ...]] = {}
        self._new_notes: list[Note] = []
        self._listed: set[str] = set()
        self._needed = _NEEDED | {"Node"} if needs_node else _NEEDED

    @property
    def ready(self) -> bool:
        """Whether all that plans depend on was told in full: nothing may be removed from the kernel before."""
        return self._listed >= self._needed

    @property
    def node(self) -> NodeView:
        """Our node; addresses given on the command line hold against those of the Node object."""
        return self._node

    @property
    def counts(self) -> Counts:
        """What is held, for metrics."""
        return Counts(len(self._services), len(self._slice_owners), len(self._before), len(self._noted))

    def names(self) -> Iterator[ServiceName]:
        """Every Service that is ours, in no meaningful order."""
        return iter(self._services)

    def view(self, name: ServiceName) -> tuple[ServiceView | None, tuple[CompactSlice, ...]]:
        """What the cluster says of one Service now: None where it is not ours; its slices by name."""
        slices = self._slices.get(name, {})
        return self._services.get(name), tuple(slices[key] for key in sorted(slices))

    def note(self, event: ClusterEvent) -> None:
        """Merge one event. Raises nothing, whatever the object holds."""
        match event:
            case Changed(ref=ref, object=changed):
                self._change(ref, changed)
            case Removed(ref=ref):
                self._remove(ref)
            case Listed(kind=kind):
                self._listed.add(kind)
            case Rejected(notes=notes):
                self._new_notes.extend(notes)

    def take(self) -> Changes:
        """What has changed since the last call, which from now on counts as known."""
        touched = (
            name
            for name, parts in self._before.items()
            if any(self._part(name, key) != old for key, old in parts.items())
        )
        changes = Changes(tuple(sorted(touched)), self._node != self._taken_node, tuple(self._new_notes))
        self._before = {}
        self._taken_node = self._node
        self._new_notes = []
        return changes

    def _change(self, ref: ObjectRef, changed: ApiObject) -> None:
        match changed:
            case Service():
                view, notes = read_service(changed, self._families)
                self._say(ref, notes)
                self._set_service(ServiceName(ref.namespace, ref.name), view)
            case EndpointSlice():
                compact, notes = compact_slice(changed, self._given_node.name)
                self._say(ref, notes)
                self._set_slice(ref, compact)
            case Node():
                self._set_node(ref, changed)

    def _remove(self, ref: ObjectRef) -> None:
        self._say(ref, ())
        match ref.kind:
            case "Service":
                self._set_service(ServiceName(ref.namespace, ref.name), None)
            case "EndpointSlice":
                self._set_slice(ref, None)
            case "Node" if ref.name == self._given_node.name:
                self._node = self._given_node

    def _set_service(self, name: ServiceName, view: ServiceView | None) -> None:
        self._remember(name, _SERVICE)
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

    def _set_node(self, ref: ObjectRef, node: Node) -> None:
        if ref.name != self._given_node.name:
            return
        view, notes = read_node(node)
        self._say(ref, notes)
        given = self._given_node.addresses
        self._node = msgspec.structs.replace(view, addresses=given) if given else view

    def _remember(self, name: ServiceName, key: str) -> None:
        """Keep what stood there at the last `take`: the first change since then decides."""
        self._before.setdefault(name, {}).setdefault(key, self._part(name, key))

    def _part(self, name: ServiceName, key: str) -> _Part:
        if key == _SERVICE:
            return self._services.get(name)
        return self._slices.get(name, {}).get(key)

    def _say(self, ref: ObjectRef, notes: tuple[Note, ...]) -> None:
        """Tell an object's notes once, until they change: it may arrive again for other reasons."""
        if notes == self._noted.get(ref, ()):
            return
        self._new_notes.extend(notes)
        if notes:
            self._noted[ref] = notes
        else:
            del self._noted[ref]
