"""Clusters in a few words: objects and events from (name, cluster IPs, ports, endpoints)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, Listed, ObjectRef, Removed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.addr import family_of, parse_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.rules import RuleOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.reconciler import Reconciler
from tests.builders import FakeClock

NODE = "n1"


class Svc(msgspec.Struct, frozen=True):
    """A Service of namespace default with its endpoints, all behind every port: (address, ready)."""

    name: str
    ips: tuple[str, ...] = ("10.96.0.20",)
    ports: tuple[tuple[int, str], ...] = ((80, "TCP"),)
    endpoints: tuple[tuple[str, bool], ...] = (("10.244.1.5", True),)
    affinity_s: int = 0
    created: str = "2026-01-01T00:00:00Z"
    local: bool = False
    namespace: str = "default"


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
        metadata=api.Metadata(name=service.name, namespace=service.namespace, creation_timestamp=service.created),
        spec=api.ServiceSpec(
            type="ClusterIP",
            cluster_ip=service.ips[0],
            cluster_ips=service.ips,
            ip_families=tuple(family_of(parse_addr(ip)).label for ip in service.ips),  # type: ignore[arg-type]
            ports=tuple(api.ServicePort(f"p{n}{proto.lower()}", proto, n) for n, proto in service.ports),
            session_affinity="ClientIP" if service.affinity_s else "None",
            session_affinity_config=api.SessionAffinityConfig(api.ClientIPConfig(service.affinity_s))
            if service.affinity_s
            else None,
        ),
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
                conditions=api.EndpointConditions(ready=ready, serving=ready, terminating=False),
                node_name=NODE if service.local else None,
            )
            for address, ready in endpoints
        ),
        ports=tuple(api.EndpointPort(f"p{n}{proto.lower()}", proto, 8000 + n) for n, proto in service.ports),
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
    """A node with a fake kernel: give it clusters, look at its kernel."""

    def __init__(
        self, fake: FakeKernel | None = None, *, families: frozenset[Family] = frozenset(Family), scheduler: str = "rr"
    ) -> None:
        self.fake = fake or FakeKernel()
        self.clock = FakeClock()
        self.tracker = Tracker(NODE, families)
        mode = IpvsMode(IpvsOptions(ServiceOptions(families, scheduler), RuleOptions()))
        self.reconciler = Reconciler(self.fake.kernel, self.tracker, mode, self.clock)
        self.reconciler.start()
        self._seen: Cluster = {}

    def tell(self, now: Cluster) -> None:
        """The cluster is like this now; the first call is a full list."""
        for event in events(self._seen, now):
            self.tracker.note(event)
        if not self._seen:
            self.tracker.note(Listed("Service"))
            self.tracker.note(Listed("EndpointSlice"))
        self._seen = now

    def sync(self, now: Cluster | None = None) -> int:
        """Tell, then sync once; the number of messages that it cost."""
        if now is not None:
            self.tell(now)
        before = self.fake.messages
        self.reconciler.sync()
        return self.fake.messages - before
