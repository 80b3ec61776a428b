"""What the cluster says of Services and their endpoints, in words: what `status --names` puts beside kernel objects.

A daemon hands it out as lines of JSON, one for each Service, so that neither side holds more than one in pieces; who
reads a folder or the API server makes the same from what a tracker has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, Whereabouts, preferred_flags
from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.names import ServiceName

EndpointState: TypeAlias = Literal["ready", "terminating", "not-ready"]

_READY = int(EndpointFlags.READY)
_STANDS_IN = int(EndpointFlags.SERVING | EndpointFlags.TERMINATING)
_UNNAMED = Whereabouts("", "", "")


class _Words(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class KnownPort(_Words, frozen=True):
    """A port of a Service; `name` is empty where it has none, `node_port` 0."""

    protocol: str
    port: int
    name: str = ""
    node_port: int = 0


class KnownEndpoint(_Words, frozen=True):
    """An endpoint. "terminating": it stops and still serves; "not-ready": it gets no new connections."""

    address: str
    state: EndpointState
    pod: str = ""
    node: str = ""
    zone: str = ""


class KnownService(_Words, frozen=True):
    """A Service: the addresses it is reached at but its node ports', and its endpoints of every family."""

    namespace: str
    name: str
    created: str
    addresses: tuple[str, ...]
    ports: tuple[KnownPort, ...]
    endpoints: tuple[KnownEndpoint, ...] = ()


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """All Services with their slices at one moment. What is in it never changes, so any thread may read it."""

    services: tuple[ServiceView, ...]
    slices: Mapping[ServiceName, tuple[CompactSlice, ...]]


def known_services(snapshot: ClusterSnapshot) -> Iterator[KnownService]:
    """Each Service in words, the older ones first: of two that want one frontend it is they who have it."""
    for service in sorted(snapshot.services, key=_rank):
        yield KnownService(
            namespace=service.name.namespace,
            name=service.name.name,
            created=service.created,
            addresses=tuple(
                format_addr(address)
                for address in (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips)
            ),
            ports=tuple(KnownPort(port.protocol.name, port.port, port.name, port.node_port) for port in service.ports),
            endpoints=tuple(_endpoints(snapshot.slices.get(service.name, ()))),
        )


def _rank(service: ServiceView) -> tuple[bool, str, ServiceName]:
    return not service.created, service.created, service.name


def _endpoints(slices: tuple[CompactSlice, ...]) -> Iterator[KnownEndpoint]:
    """Each address once: by the record that counts where several slices have it, as for plans."""
    found: dict[PackedAddr, tuple[int, Whereabouts]] = {}
    for piece in slices:
        names = iter(piece.names)
        for address, flags in piece.records():
            here = next(names, _UNNAMED)
            before = found.get(address)
            if before is None or preferred_flags(before[0], flags) != before[0]:
                found[address] = flags, here
    for address, (flags, here) in sorted(found.items()):
        yield KnownEndpoint(format_addr(address), _state(flags), here.pod, here.node, here.zone)


def _state(flags: int) -> EndpointState:
    if flags & _READY:
        return "ready"
    return "terminating" if flags & _STANDS_IN == _STANDS_IN else "not-ready"
