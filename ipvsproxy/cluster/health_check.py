"""What a load balancer may ask this node about a Service: are any of its ready endpoints here?

Only a Service of type LoadBalancer with externalTrafficPolicy Local has a health check node port: for any other, every
node is as good. Each family counts by itself, for who asks over IPv4 wants to know what becomes of IPv4 traffic.
Source: kubernetes v1.37.2 pkg/proxy/endpointschangetracker.go (LocalReadyEndpoints), pkg/proxy/healthcheck.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

from ipvsproxy.cluster.endpoints import port_endpoints
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags
from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import ServiceName

_COUNTS = int(EndpointFlags.READY | EndpointFlags.LOCAL)  # an IntFlag's `&` costs ten times an int's


class HealthCheck(msgspec.Struct, frozen=True):
    """The port to ask at, and for each family to answer in how many ready endpoints are on this node.

    `uid`: the Service's, for an Event about it.
    """

    port: int
    local_endpoints: Mapping[Family, int]
    uid: str = ""


class HealthSnapshot(msgspec.Struct, frozen=True):
    """All health checks of this node at one moment, and the addresses to answer at; the any-address means all."""

    checks: Mapping[ServiceName, HealthCheck] = MappingProxyType({})
    addresses: tuple[PackedAddr, ...] = ()


def read_health_check(
    service: ServiceView, slices: Sequence[CompactSlice], families: Collection[Family]
) -> HealthCheck | None:
    """The health check of `service`, in those of `families` that it has; None where nobody may ask."""
    if not service.health_check_node_port:
        return None
    own = sorted({family_of(ip) for ip in service.cluster_ips}.intersection(families))
    counts = {family: _local_ready(service, slices, family) for family in own}
    return HealthCheck(service.health_check_node_port, counts, service.uid)


def _local_ready(service: ServiceView, slices: Sequence[CompactSlice], family: Family) -> int:
    """How many addresses on this node are ready behind some port; one that is only terminating does not count (K17).

    differs: a slice's port that is none of the Service's does not count; upstream takes any port of its slices.
    """
    return len(
        {
            address
            for port in service.ports
            for (address, _), flags in port_endpoints(port, slices, family).items()
            if flags & _COUNTS == _COUNTS
        }
    )
