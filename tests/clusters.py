"""Clusters in a few words: objects and events from (name, cluster IPs, ports, endpoints)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest

import msgspec

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, Listed, ObjectRef, Removed
from ipvsproxy.cluster.health_check import HealthSnapshot
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.addr import Cidr, family_of, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.node_ports import NodePortAddresses
from ipvsproxy.modes.ipvs.rules import RuleOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.reconciler import OtherNodes, Reconciler, SyncResult
from tests.builders import FakeClock, addr

NODE = "n1"


class Svc(msgspec.Struct, frozen=True):
    """A Service of namespace default with its endpoints, all behind every port: (address, ready).

    `node_ports`: one for each of `ports`, 0 for none. `ingress`: the load balancer's addresses with their ipMode.
    `local`: all endpoints are on our node; `here`: those that are where not all are.
    `drain`: the drain time that it asks for by annotation.
    `target`: the number that endpoints add to a port's. `external_name`: the Service has become one of that type.
    `stopping`: those of `endpoints` that terminate; what is ready by those still serves then, and is not ready.
    """

    name: str
    ips: tuple[str, ...] = ("10.96.0.20",)
    ports: tuple[tuple[int, str], ...] = ((80, "TCP"),)
    endpoints: tuple[tuple[str, bool], ...] = (("10.244.1.5", True),)
    affinity_s: int = 0
    created: str = "2026-01-01T00:00:00Z"
    local: bool = False
    namespace: str = "default"
    node_ports: tuple[int, ...] = ()
    external_ips: tuple[str, ...] = ()
    ingress: tuple[tuple[str, str], ...] = ()
    here: tuple[str, ...] = ()
    internal_policy: str = "Cluster"
    external_policy: str = "Cluster"
    source_ranges: tuple[str, ...] = ()
    health_port: int = 0
    drain: str | None = None
    stopping: tuple[str, ...] = ()
    target: int = 8000
    external_name: bool = False

    @property
    def type_name(self) -> str:
        """The type that an author would give it."""
        if self.external_name:
            return "ExternalName"
        return "LoadBalancer" if self.ingress else "NodePort" if self.node_ports else "ClusterIP"


Cluster = Mapping[ObjectRef, ApiObject]


def cluster(*services: Svc) -> dict[ObjectRef, ApiObject]:
    """The objects of these Services: one slice for each family that has endpoints."""
    objects: dict[ObjectRef, ApiObject] = {}
    for service in services:
        objects[ObjectRef("Service", service.namespace, service.name)] = _service(service)
        for family in Family:
            endpoints = [e for e in service.endpoints if family_of(parse_addr(e[0])) is family]  # type: ignore[arg-type]
            if endpoints:
                name = f"{service.name}-{family.label.lower()}"
                objects[ObjectRef("EndpointSlice", service.namespace, name)] = _slice(service, name, family, endpoints)
    return objects


def _service(service: Svc) -> api.Service:
    return api.Service(
        metadata=api.Metadata(
            name=service.name,
            namespace=service.namespace,
            annotations=api.Annotations(service.drain) if service.drain is not None else None,
            creation_timestamp=service.created,
        ),
        spec=api.ServiceSpec(
            type=service.type_name,
            cluster_ip=service.ips[0],
            cluster_ips=service.ips,
            ip_families=tuple(family_of(parse_addr(ip)).label for ip in service.ips),  # type: ignore[arg-type]
            ports=tuple(
                api.ServicePort(f"p{n}{proto.lower()}", proto, n, node_port or None)
                for (n, proto), node_port in zip_longest(service.ports, service.node_ports)
            ),
            external_ips=service.external_ips or None,
            internal_traffic_policy=service.internal_policy,
            external_traffic_policy=service.external_policy,
            load_balancer_source_ranges=service.source_ranges or None,
            health_check_node_port=service.health_port or None,
            session_affinity="ClientIP" if service.affinity_s else "None",
            session_affinity_config=api.SessionAffinityConfig(api.ClientIPConfig(service.affinity_s))
            if service.affinity_s
            else None,
        ),
        status=api.ServiceStatus(api.LoadBalancerStatus(tuple(api.Ingress(ip, mode) for ip, mode in service.ingress)))
        if service.ingress
        else None,
    )


def _slice(service: Svc, name: str, family: Family, endpoints: Iterable[tuple[str, bool]]) -> api.EndpointSlice:
    return api.EndpointSlice(
        metadata=api.Metadata(
            name=name, namespace=service.namespace, labels={"kubernetes.io/service-name": service.name}
        ),
        address_type=family.label,
        endpoints=tuple(
            api.Endpoint(
                addresses=(address,),
                conditions=api.EndpointConditions(
                    ready=serves and address not in service.stopping,
                    serving=serves,
                    terminating=address in service.stopping,
                ),
                node_name=NODE if service.local or address in service.here else None,
            )
            for address, serves in endpoints
        ),
        ports=tuple(api.EndpointPort(f"p{n}{proto.lower()}", proto, service.target + n) for n, proto in service.ports),
    )


def events(before: Cluster, after: Cluster) -> Iterator[ClusterEvent]:
    """What a watch tells between two states."""
    for ref, found in after.items():
        if before.get(ref) != found:
            yield Changed(ref, found)
    for ref in before:
        if ref not in after:
            yield Removed(ref)


class Node:
    """A node with a fake kernel: give it clusters and addresses, look at its kernel.

    `needs_node`: pods are told by the networks of our Node. With it, and unless it `hears_of_node`, that there is no
    Node of our name is not told with the first cluster.
    """

    def __init__(
        self,
        fake: FakeKernel | None = None,
        *,
        families: frozenset[Family] = frozenset(Family),
        scheduler: str = "rr",
        host: Iterable[str] = (),
        exclude: tuple[Cidr, ...] = (),
        needs_node: bool = False,
        hears_of_node: bool = True,
        claims: Claims | None = None,
        other_nodes: OtherNodes | None = None,
        node_port_cidrs: Iterable[str] = (),
        drain_s: float = 900.0,
        strict_arp: bool = False,
    ) -> None:
        self.fake = fake or FakeKernel()
        self.clock = FakeClock()
        self.tracker = Tracker(NODE, families, claims=claims)
        options = ServiceOptions(families, scheduler, exclude)
        node_ports = NodePortAddresses(tuple(cidr for text in node_port_cidrs if (cidr := parse_cidr(text))))
        mode = IpvsMode(
            IpvsOptions(
                options,
                RuleOptions(),
                node_cidrs_are_local=needs_node,
                strict_arp=strict_arp,
                node_ports=node_ports,
                drain_s=drain_s,
            )
        )
        self.published: list[HealthSnapshot] = []
        self.reconciler = Reconciler(self.fake.kernel, self.tracker, mode, self.clock, exclude=exclude)
        self.reconciler.other_nodes = other_nodes
        self.reconciler.publish_health = self.published.append
        self.has(*host)
        self.reconciler.start()
        self._seen: Cluster = {}
        self._hears_of_node = hears_of_node and not needs_node

    def has(self, *addresses: str) -> bool:
        """The node's interfaces but kube-ipvs0 have these addresses now; whether a sync has to know."""
        return self.reconciler.host_changed(frozenset(addr(text) for text in addresses))

    def tell(self, now: Cluster) -> None:
        """The cluster is like this now; the first call is a full list."""
        for event in events(self._seen, now):
            self.tracker.note(event)
        if not self._seen:
            self.tracker.note(Listed("Service"))
            self.tracker.note(Listed("EndpointSlice"))
            if self._hears_of_node:
                self.tracker.note(Listed("Node"))
        self._seen = now

    def sync(self, now: Cluster | None = None) -> int:
        """Tell, then sync once; the number of messages that it cost."""
        if now is not None:
            self.tell(now)
        before = self.fake.messages
        self.reconciler.sync()
        return self.fake.messages - before

    def pass_time(self, seconds: float) -> SyncResult:
        """For so long it sleeps until it has asked to be woken, again and again; what the last sync did."""
        end = self.clock.now + seconds
        result = self.reconciler.sync()
        while result.retry_at is not None and result.retry_at <= end:
            self.clock.now = max(self.clock.now, result.retry_at)
            result = self.reconciler.sync()
        self.clock.now = end
        return result
