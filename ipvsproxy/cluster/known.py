"""What the cluster says of Services and their endpoints, in words: what `status --names` puts beside kernel objects.

The sync thread hands a `Snapshot` out, which costs it a reference for each object; another thread puts it into words:
lines of JSON, a head and then one for each Service, so that neither side holds all of them in pieces. Who reads a
folder or the API server makes the same of what its tracker has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.cluster.slices import CompactSlice, EndpointFlags, Whereabouts, preferred_flags
from ipvsproxy.model.addr import PackedAddr, format_addr
from ipvsproxy.model.kernel_objects import VirtualServerKey
from ipvsproxy.model.names import ServiceName

EndpointState: TypeAlias = Literal["ready", "terminating", "not-ready"]

FORMAT = 1  # of the lines; another number is not understood

_PORT_BYTES = 2
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


class Drain(NamedTuple):
    """A real server that leaves a virtual server, by identity (model/real_servers.py), and its time at most."""

    key: VirtualServerKey
    identity: bytes
    left_s: float


class Snapshot(msgspec.Struct, frozen=True):
    """What a daemon knows at one moment. `node_port_addresses`: None where they are not known."""

    node: str
    cluster: ClusterSnapshot
    node_port_addresses: tuple[PackedAddr, ...] | None = None
    drains: tuple[Drain, ...] = ()


class KnownDrain(_Words, frozen=True):
    """A Drain in words."""

    protocol: str
    address: str
    port: int
    real_address: str
    real_port: int
    left_seconds: float


class KnownHead(_Words, frozen=True):
    """The first line: all but the Services."""

    format: int
    node: str = ""
    node_port_addresses: tuple[str, ...] | None = None
    drains: tuple[KnownDrain, ...] = ()


class Known(NamedTuple):
    """All of it in words."""

    head: KnownHead
    services: tuple[KnownService, ...]


def known(snapshot: Snapshot) -> Known:
    """The snapshot in words."""
    return Known(known_head(snapshot), tuple(known_services(snapshot.cluster)))


def encode_known(snapshot: Snapshot) -> Iterator[bytes]:
    """The snapshot as lines of JSON, without their ends."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(known_head(snapshot))
    yield from map(encoder.encode, known_services(snapshot.cluster))


def decode_known(text: bytes) -> Known:
    """What the lines say. Raises msgspec.DecodeError for what is none of this format."""
    first, _, rest = text.partition(b"\n")
    head = msgspec.json.decode(first, type=KnownHead)
    if head.format != FORMAT:
        raise msgspec.DecodeError(f"format {head.format}, not {FORMAT}")
    decoder = msgspec.json.Decoder(KnownService)
    return Known(head, tuple(map(decoder.decode, rest.splitlines())))


def known_head(snapshot: Snapshot) -> KnownHead:
    """All but the Services in words."""
    addresses = snapshot.node_port_addresses
    return KnownHead(
        FORMAT,
        snapshot.node,
        None if addresses is None else tuple(map(format_addr, addresses)),
        tuple(map(_drain, snapshot.drains)),
    )


def _drain(drain: Drain) -> KnownDrain:
    key, identity = drain.key, drain.identity
    return KnownDrain(
        key.protocol.name,
        format_addr(key.address),
        key.port,
        format_addr(identity[:-_PORT_BYTES]),
        int.from_bytes(identity[-_PORT_BYTES:]),
        round(drain.left_s, 1),
    )


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
