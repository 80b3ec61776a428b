"""One Service → its virtual servers, real servers, addresses and set entries.

Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go.

Each address that a Service is reached at is a *frontend*: it says which set entries go with it and whether its address
is bound. A frontend and a port make one virtual server; its real servers are the port's endpoints that its traffic
policy leaves. Where two ports of the Service make one virtual server (a node port on an address of the node, and the
same number on an external IP that is this address), the first in the order of its spec has it.

differs: a cluster IP with internal policy Local never leads to another node; upstream's does as soon as the Service has
an external address too. differs: with external policy Local and no endpoint here, the node and its pods are masqueraded
to the others' and all else is dropped (KUBE-NO-LOCAL-ENDPOINTS, rules.py); upstream forwards it without SNAT, so that
outside clients never get an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ipvsproxy.cluster import endpoints
from ipvsproxy.cluster.health_check import read_health_check
from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol, VirtualServerFlags
from ipvsproxy.model.figures import Lacking
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    RealServer,
    SetEntry,
    Settings,
    VirtualServer,
    VirtualServerKey,
)
from ipvsproxy.model.names import DEFAULT_SCHEDULER, SETS_NODE_PORT, set_name
from ipvsproxy.model.notes import gather
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.modes.ipvs.remarks import remarks
from ipvsproxy.plan.desired import OwnerPlan
from ipvsproxy.plan.ownership import is_excluded

_TAKEN = "FrontendTaken"
_LOCAL = int(EndpointFlags.LOCAL)
# mh hashes the client's port too, so that one client's connections spread (upstream: pkg/proxy/ipvs/proxier.go).
_SCHEDULER_FLAGS = {"mh": VirtualServerFlags.SCHEDULER_2}


class ServiceOptions(msgspec.Struct, frozen=True):
    """What the plan of a Service depends on besides the Service and the host: this node's families, the scheduler."""

    families: frozenset[Family]
    scheduler: str = DEFAULT_SCHEDULER
    exclude: tuple[Cidr, ...] = ()  # nothing is planned for addresses in these networks: they are somebody else's


class Frontend(msgspec.Struct, frozen=True):
    """One way in: `entries` let its packets through, guard it or have them masqueraded."""

    key: VirtualServerKey
    entries: tuple[ObjectId, ...]
    servers: bytes
    is_bound: bool


class Backends(msgspec.Struct, frozen=True):
    """The real servers of one Service port in one family, as records: for cluster IPs, and for all other addresses.

    `lacks_local`: external traffic should stay on the node and finds no endpoint here, only elsewhere;
    `lacks_internal`: so should traffic to cluster IPs.
    """

    internal: bytes
    external: bytes
    lacks_local: bool
    lacks_internal: bool = False


class Needs(NamedTuple):
    """The EndpointFlags, as numbers, that an endpoint must all have: behind cluster IPs, behind all other addresses."""

    internal: int
    external: int


def depends_on_host(service: ServiceView, slices: Sequence[CompactSlice]) -> bool:
    """Whether the plan of `service` changes with the host view: the node's addresses, its zone."""
    return (
        bool(service.external_ips or service.load_balancer_ips)
        or any(port.node_port for port in service.ports)
        or any(piece.zones for piece in slices)
    )


def plan_service(
    service: ServiceView, slices: Sequence[CompactSlice], host: HostView, options: ServiceOptions
) -> OwnerPlan:
    """Everything that `service` wants in the kernel; both families in one plan, an address says its own."""
    objects: dict[ObjectId, Settings] = {}
    entries: dict[VirtualServerKey, tuple[ObjectId, ...]] = {}
    ports: dict[VirtualServerKey, ServicePort] = {}
    faults: list[str] = []
    lacking: set[Lacking] = set()
    unmatched: list[tuple[ServicePort, Family]] = []
    settings = _settings(service, options.scheduler)
    for port, family, found in endpoints_of_ports(service, slices, host.zone, options.families):
        if not found:
            unmatched.append((port, family))
        backends = choose_backends(service, found)
        lacking.update(_lacking(backends, family))
        for frontend in frontends(service, port, family, host, backends):
            if is_excluded(frontend.key, options.exclude):
                continue
            holder = ports.setdefault(frontend.key, port)
            if holder is port:
                entries[frontend.key] = (*entries.get(frontend.key, ()), *frontend.entries)
                _put(objects, frontend, settings)
            else:
                faults.append(f"{frontend.key!s} of port {port!s} is served for port {holder!s}, which comes first")
        objects |= _hairpins(port.protocol, found, options.exclude)
    if service.health_check_node_port:
        for family in options.families & {family_of(ip) for ip in service.cluster_ips}:
            objects[_port_alone(sets.HEALTH_CHECK_NODE_PORT, family, service.health_check_node_port)] = True
    health = read_health_check(service, slices, options.families)
    notes = gather(f"Service {service.name}", faults, "Give one of its ports another number or address", _TAKEN)
    return OwnerPlan(
        service.name,
        service.created,
        objects,
        entries,
        health,
        service.drain_s,
        notes,
        frozenset(lacking),
        remarks(service, slices, host, unmatched),
    )


def endpoints_of_ports(
    service: ServiceView, slices: Sequence[CompactSlice], zone: str, families: Collection[Family]
) -> Iterator[tuple[ServicePort, Family, Mapping[endpoints.Target, int]]]:
    """Each port in each of `families` that the Service has, with all endpoints behind it and their EndpointFlags."""
    own = sorted(frozenset(families) & {family_of(ip) for ip in service.cluster_ips})
    for port in service.ports:
        for family in own:
            yield port, family, endpoints.port_endpoints(port, slices, family, zone)


def _put(objects: dict[ObjectId, Settings], frontend: Frontend, settings: VirtualServer) -> None:
    """Add a frontend to a plan. One that the same port has already, as another kind of address, gets its entries too.

    The real servers are the first one's, so those of a cluster IP stay behind its own policy.
    """
    key = frontend.key
    objects[Kind.VIRTUAL_SERVER, key] = settings
    objects.setdefault((Kind.REAL_SERVER, key), frontend.servers)
    objects.update(dict.fromkeys(frontend.entries, True))
    if frontend.is_bound:
        objects[Kind.BOUND_ENTRY, SetEntry(set_name(sets.IPVS_IPS, family_of(key.address)), key.address)] = True
        objects[Kind.ADDRESS, key.address] = True


def _hairpins(
    protocol: Protocol, found: Mapping[endpoints.Target, int], exclude: Sequence[Cidr]
) -> dict[ObjectId, Settings]:
    """What a pod of this node is masqueraded by when it is sent to itself."""
    return {
        _at(sets.LOOP_BACK, VirtualServerKey(protocol, address, number), address): True
        for address, number in endpoints.here(found)
        if not is_excluded(address, exclude)
    }


def choose_backends(service: ServiceView, found: Mapping[endpoints.Target, int]) -> Backends:
    """The endpoints that each traffic policy leaves.

    Source: kubernetes v1.37.2 pkg/proxy/topology.go CategorizeEndpoints.
    """
    needs = needed_flags(service, found)
    internal = _records(endpoints.having(found, needs.internal))
    external = internal if needs.external == needs.internal else _records(endpoints.having(found, needs.external))
    falls_back = service.external_policy_local and not needs.external & _LOCAL
    return Backends(
        internal,
        external,
        lacks_local=falls_back and bool(external),
        lacks_internal=service.internal_policy_local and not internal and bool(external),
    )


def needed_flags(service: ServiceView, found: Mapping[endpoints.Target, int]) -> Needs:
    """What an endpoint must have to be used, by the Service's traffic policies."""
    anywhere = endpoints.needed(found)
    if not service.internal_policy_local and not service.external_policy_local:
        return Needs(anywhere, anywhere)
    here = endpoints.needed_here(found)
    stays = service.external_policy_local and bool(endpoints.having(found, here))
    return Needs(here if service.internal_policy_local else anywhere, here if stays else anywhere)


def _lacking(backends: Backends, family: Family) -> Iterator[Lacking]:
    if backends.lacks_local:
        yield Lacking("external", family)
    if backends.lacks_internal:
        yield Lacking("internal", family)


def _records(targets: endpoints.Targets) -> bytes:
    return real_servers.join(real_servers.pack(RealServer(*target)) for target in targets)


def frontends(
    service: ServiceView, port: ServicePort, family: Family, host: HostView, backends: Backends
) -> Iterator[Frontend]:
    """Every way in. An address that another interface of this node has is served but never bound (K32).

    One that is somebody else's is no way in at all: its packets go where they belong (K33).
    """
    for address in _of(family, service.cluster_ips):
        key = VirtualServerKey(port.protocol, address, port.port)
        yield Frontend(key, (_at(sets.CLUSTER_IP, key),), backends.internal, is_bound=True)
    for address in _of(family, service.external_ips, host.elsewhere):
        key = VirtualServerKey(port.protocol, address, port.port)
        base = sets.EXTERNAL_IP_LOCAL if service.external_policy_local else sets.EXTERNAL_IP
        yield _external(key, [_at(base, key)], backends, is_bound=address not in host.addresses)
    for address in _of(family, service.load_balancer_ips, host.elsewhere):
        key = VirtualServerKey(port.protocol, address, port.port)
        entries = _load_balancer_entries(service, key, host)
        yield _external(key, entries, backends, is_bound=address not in host.addresses)
    if port.node_port:
        for address in _of(family, host.node_port_addresses):
            key = VirtualServerKey(port.protocol, address, port.node_port)
            yield _external(key, _node_port_entries(service, key), backends, is_bound=False)


def _external(key: VirtualServerKey, entries: list[ObjectId], backends: Backends, *, is_bound: bool) -> Frontend:
    """A frontend that clients outside the cluster use; guarded where they must not be sent on to another node."""
    guards = (_at(sets.NO_LOCAL_ENDPOINTS, key),) if backends.lacks_local else ()
    return Frontend(key, (*entries, *guards), backends.external, is_bound)


def _load_balancer_entries(service: ServiceView, key: VirtualServerKey, host: HostView) -> list[ObjectId]:
    """A load-balancer IP's entries. What the node itself sends to one has that very IP as its source."""
    entries = [_at(sets.LOAD_BALANCER, key)]
    if service.external_policy_local:
        entries.append(_at(sets.LOAD_BALANCER_LOCAL, key))
    family = family_of(key.address)
    if family in service.restricted:
        ranges = [cidr for cidr in service.source_ranges if family_of(cidr.network) is family]
        entries.append(_at(sets.LOAD_BALANCER_FW, key))
        entries += [_at(sets.LOAD_BALANCER_SOURCE_CIDR, key, cidr.network, cidr.prefix_len) for cidr in ranges]
        if any(own in cidr for own in host.node_ips for cidr in ranges):
            entries.append(_at(sets.LOAD_BALANCER_SOURCE_IP, key, key.address))
    return entries


def _node_port_entries(service: ServiceView, key: VirtualServerKey) -> list[ObjectId]:
    """What makes traffic to a node port masqueraded. A bitmap cannot hold SCTP, so its set names each address (K30)."""
    bases = SETS_NODE_PORT[key.protocol][: 2 if service.external_policy_local else 1]
    if key.protocol is Protocol.SCTP:
        return [_at(base, key) for base in bases]
    return [_port_alone(base, family_of(key.address), key.port) for base in bases]


def _at(base: str, key: VirtualServerKey, second: bytes = b"", prefix_len: int = 0) -> ObjectId:
    """The entry of a frontend (or, for the hairpin set, an endpoint) in a set, with a source where the set has one."""
    name = set_name(base, family_of(key.address))
    return sets.ENTRY_KINDS[base], SetEntry(name, key.address, key.protocol, key.port, second, prefix_len)


def _port_alone(base: str, family: Family, port: int) -> ObjectId:
    return sets.ENTRY_KINDS[base], SetEntry(set_name(base, family), port=port)


def _of(
    family: Family, addresses: Sequence[PackedAddr], elsewhere: Collection[PackedAddr] = ()
) -> Iterator[PackedAddr]:
    return (address for address in addresses if family_of(address) is family and address not in elsewhere)


def _settings(service: ServiceView, scheduler: str) -> VirtualServer:
    flags = _SCHEDULER_FLAGS.get(scheduler, VirtualServerFlags.NONE)
    if service.affinity_s:
        flags |= VirtualServerFlags.PERSISTENT
    return VirtualServer(scheduler, flags, service.affinity_s)
