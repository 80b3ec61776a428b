"""One Service → its virtual servers, real servers, addresses and set entries.

Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go.

Each address that a Service is reached at is a *frontend*: it says which accept set it stands in and whether its address
is bound. A frontend and a port make one virtual server; its real servers are the port's usable endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, preferred_flags
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    RealServer,
    SetEntry,
    Settings,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.names import DEFAULT_SCHEDULER, set_name
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.plan.desired import OwnerPlan

_READY, _LOCAL = int(EndpointFlags.READY), int(EndpointFlags.LOCAL)  # an IntFlag's `&` costs ten times an int's
_NODE_PORT_SETS = {
    Protocol.TCP: sets.NODE_PORT_TCP,
    Protocol.UDP: sets.NODE_PORT_UDP,
    Protocol.SCTP: sets.NODE_PORT_SCTP,
}
# mh hashes the client's port too, so that one client's connections spread (upstream: pkg/proxy/ipvs/proxier.go).
_SCHEDULER_FLAGS = {"mh": VirtualServerFlags.SCHEDULER_2}


class ServiceOptions(msgspec.Struct, frozen=True):
    """What the plan of a Service depends on besides the Service and the host: this node's families, the scheduler."""

    families: frozenset[Family]
    scheduler: str = DEFAULT_SCHEDULER
    exclude: tuple[Cidr, ...] = ()  # nothing is planned for addresses in these networks: they are somebody else's


class Frontend(msgspec.Struct, frozen=True):
    """One way in: `entries` let its packets through or have them masqueraded, `is_bound` puts it on kube-ipvs0."""

    key: VirtualServerKey
    entries: tuple[ObjectId, ...]
    is_bound: bool


class PortEndpoints(msgspec.Struct, frozen=True):
    """The endpoints of one Service port in one family: usable ones, and those on this node in any state."""

    usable: tuple[tuple[PackedAddr, int], ...]
    local: tuple[tuple[PackedAddr, int], ...]


def depends_on_host(service: ServiceView) -> bool:
    """Whether the plan of `service` changes with the node's own addresses."""
    return bool(service.external_ips or service.load_balancer_ips) or any(port.node_port for port in service.ports)


def plan_service(
    service: ServiceView, slices: Sequence[CompactSlice], host: HostView, options: ServiceOptions
) -> OwnerPlan:
    """Everything that `service` wants in the kernel; both families in one plan, an address says its own."""
    objects: dict[ObjectId, Settings] = {}
    settings = _settings(service, options.scheduler)
    for port in service.ports:
        for family in sorted(options.families & {family_of(ip) for ip in service.cluster_ips}):
            endpoints = port_endpoints(port, slices, family)
            servers = real_servers.join(real_servers.pack(RealServer(*endpoint)) for endpoint in endpoints.usable)
            for frontend in _frontends(service, port, family, host):
                if any(frontend.key.address in cidr for cidr in options.exclude):
                    continue
                objects[Kind.VIRTUAL_SERVER, frontend.key] = settings
                objects[Kind.REAL_SERVER, frontend.key] = servers
                objects.update(dict.fromkeys(frontend.entries, True))
                if frontend.is_bound:
                    objects[Kind.BOUND_ENTRY, SetEntry(set_name(sets.IPVS_IPS, family), frontend.key.address)] = True
                    objects[Kind.ADDRESS, frontend.key.address] = True
            for address, number in endpoints.local:
                name = set_name(sets.LOOP_BACK, family)
                objects[Kind.SUPPORT_ENTRY, SetEntry(name, address, port.protocol, number, address)] = True
    return OwnerPlan(service.name, service.created, objects)


def _frontends(service: ServiceView, port: ServicePort, family: Family, host: HostView) -> Iterator[Frontend]:
    """Every way in. An address that another interface of this node has is served but never bound (K32)."""
    for addresses, base in (
        (service.cluster_ips, sets.CLUSTER_IP),
        (service.external_ips, sets.EXTERNAL_IP),
        (service.load_balancer_ips, sets.LOAD_BALANCER),
    ):
        for address in addresses:
            if family_of(address) is family:
                is_bound = base == sets.CLUSTER_IP or address not in host.addresses
                entry = (sets.ENTRY_KINDS[base], SetEntry(set_name(base, family), address, port.protocol, port.port))
                yield Frontend(VirtualServerKey(port.protocol, address, port.port), (entry,), is_bound)
    if port.node_port:
        for address in host.node_port_addresses:
            if family_of(address) is family:
                key = VirtualServerKey(port.protocol, address, port.node_port)
                yield Frontend(key, (_node_port_entry(key, family),), is_bound=False)


def _node_port_entry(key: VirtualServerKey, family: Family) -> ObjectId:
    """What makes traffic to a node port masqueraded. A bitmap cannot hold SCTP, so its set names each address (K30)."""
    name = set_name(_NODE_PORT_SETS[key.protocol], family)
    if key.protocol is Protocol.SCTP:
        return Kind.SUPPORT_ENTRY, SetEntry(name, key.address, key.protocol, key.port)
    return Kind.SUPPORT_ENTRY, SetEntry(name, port=key.port)


def _settings(service: ServiceView, scheduler: str) -> VirtualServer:
    flags = _SCHEDULER_FLAGS.get(scheduler, VirtualServerFlags.NONE)
    if service.affinity_s:
        flags |= VirtualServerFlags.PERSISTENT
    return VirtualServer(scheduler, flags, service.affinity_s)


def port_endpoints(port: ServicePort, slices: Iterable[CompactSlice], family: Family) -> PortEndpoints:
    """The endpoints behind `port`, matched by port name and protocol; the port number is the slice's.

    An address that stands in several slices counts once.
    Source: kubernetes v1.37.2 pkg/proxy/{endpointslicecache,topology}.go.
    """
    found: dict[tuple[PackedAddr, int], int] = {}
    for piece in slices:
        if piece.family is not family:
            continue
        for number in _numbers(piece, port.name, port.protocol):
            for address, flags in piece.records():
                before = found.get((address, number))
                found[address, number] = flags if before is None else preferred_flags(before, flags)
    return PortEndpoints(
        tuple(endpoint for endpoint, flags in found.items() if flags & _READY),
        tuple(endpoint for endpoint, flags in found.items() if flags & _LOCAL),
    )


def _numbers(piece: CompactSlice, name: str, protocol: Protocol) -> Iterator[int]:
    for port_name, port_protocol, number in piece.ports:
        if port_name == name and port_protocol == protocol:
            yield number
