"""One Service → its virtual servers, real servers, addresses and set entries.

Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go.

Each address that a Service is reached at is a *frontend*: it says which accept set it stands in and whether its address
is bound. A frontend and a port make one virtual server; its real servers are the port's usable endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, preferred_flags
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, family_of
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

# mh hashes the client's port too, so that one client's connections spread (upstream: pkg/proxy/ipvs/proxier.go).
_SCHEDULER_FLAGS = {"mh": VirtualServerFlags.SCHEDULER_2}


class ServiceOptions(msgspec.Struct, frozen=True):
    """What the plan of a Service depends on besides the Service: the families this node serves, and the scheduler."""

    families: frozenset[Family]
    scheduler: str = DEFAULT_SCHEDULER


class Frontend(msgspec.Struct, frozen=True):
    """One address that a Service is reached at."""

    address: PackedAddr
    accept_set: str


class PortEndpoints(msgspec.Struct, frozen=True):
    """The endpoints of one Service port in one family: usable ones, and those on this node in any state."""

    usable: tuple[tuple[PackedAddr, int], ...]
    local: tuple[tuple[PackedAddr, int], ...]


def plan_service(service: ServiceView, slices: Sequence[CompactSlice], options: ServiceOptions) -> OwnerPlan:
    """Everything that `service` wants in the kernel; both families in one plan, an address says its own."""
    objects: dict[ObjectId, Settings] = {}
    for port in service.ports:
        for family in sorted(options.families):
            frontends = tuple(_frontends(service, family))
            if not frontends:
                continue
            endpoints = port_endpoints(port, slices, family)
            for frontend in frontends:
                key = VirtualServerKey(port.protocol, frontend.address, port.port)
                objects[Kind.VIRTUAL_SERVER, key] = _settings(service, options.scheduler)
                objects[Kind.REAL_SERVER, key] = _real_servers(endpoints)
                objects |= _reachable(key, frontend)
            for address, number in endpoints.local:
                name = set_name(sets.LOOP_BACK, family)
                objects[Kind.SUPPORT_ENTRY, SetEntry(name, address, port.protocol, number, address)] = True
    return OwnerPlan(service.name, service.created, objects)


def _frontends(service: ServiceView, family: Family) -> Iterator[Frontend]:
    for address in service.cluster_ips:
        if family_of(address) is family:
            yield Frontend(address, set_name(sets.CLUSTER_IP, family))


def _reachable(key: VirtualServerKey, frontend: Frontend) -> dict[ObjectId, Settings]:
    """What lets packets reach the virtual server, and nothing else on its address."""
    address = frontend.address
    return {
        (Kind.ACCEPT_ENTRY, SetEntry(frontend.accept_set, address, key.protocol, key.port)): True,
        (Kind.BOUND_ENTRY, SetEntry(set_name(sets.IPVS_IPS, family_of(address)), address)): True,
        (Kind.ADDRESS, address): True,
    }


def _real_servers(endpoints: PortEndpoints) -> bytes:
    return real_servers.join(real_servers.pack(RealServer(*endpoint)) for endpoint in endpoints.usable)


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
        tuple(endpoint for endpoint, flags in found.items() if flags & EndpointFlags.READY),
        tuple(endpoint for endpoint, flags in found.items() if flags & EndpointFlags.LOCAL),
    )


def _numbers(piece: CompactSlice, name: str, protocol: Protocol) -> Iterator[int]:
    for port_name, port_protocol, number in piece.ports:
        if port_name == name and port_protocol == protocol:
            yield number
