"""Who is behind kernel objects: the Service and port of a virtual server, the endpoint of a real server, what drains.

A virtual server at an address of a Service is that Service's; one at a node port's number likewise, on an address that
serves node ports where those are known (a daemon tells them), else on any. Of two Services that want one frontend the
older one has it, as in the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ipvsproxy.cluster.known import Known, KnownDrain, KnownEndpoint, KnownService
from ipvsproxy.model.addr import PackedAddr, family_of, parse_addr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer

_Front = tuple[int, bytes, int]  # protocol, address, port


class Owner(NamedTuple):
    """The Service port behind a virtual server; `port_name` is empty where it has none."""

    namespace: str
    service: str
    port_name: str
    port: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}:{self.port_name or self.port}"


class Names:
    """All of it, for look-ups by what the kernel reports."""

    def __init__(self, known: Known) -> None:
        addresses = known.head.node_port_addresses
        self._node_port_addresses = None if addresses is None else frozenset(map(parse_addr, addresses))
        self._fronts: dict[_Front, tuple[KnownService, Owner]] = {}
        self._node_ports: dict[tuple[Family, int, int], tuple[KnownService, Owner]] = {}
        for service in known.services:
            self._add(service)
        self._left_s = {_drain_key(drain): drain.left_seconds for drain in known.head.drains}
        self._draining = {key[0] for key in self._left_s}

    def owner(self, server: ObservedVirtualServer) -> Owner | None:
        """The Service port behind a virtual server; None where no Service is."""
        found = self._find(server)
        return found[1] if found else None

    def endpoints(self, server: ObservedVirtualServer) -> Mapping[PackedAddr, KnownEndpoint] | None:
        """That Service's endpoints by address; None likewise."""
        found = self._find(server)
        if found is None:
            return None
        endpoints = ((parse_addr(endpoint.address), endpoint) for endpoint in found[0].endpoints)
        return {address: endpoint for address, endpoint in endpoints if address is not None}

    def is_ours(self, server: ObservedVirtualServer) -> bool:
        """Whether a Service wants it, or connections keep it for one that is gone."""
        return self._find(server) is not None or (not server.fwmark and _front(server) in self._draining)

    def left_s(self, server: ObservedVirtualServer, real: ObservedRealServer) -> float | None:
        """For how long a real server may still drain; None where nobody has said so."""
        return self._left_s.get((_front(server), (real.address, real.port)))

    def _find(self, server: ObservedVirtualServer) -> tuple[KnownService, Owner] | None:
        if server.fwmark:
            return None
        found = self._fronts.get(_front(server))
        if found is None and (self._node_port_addresses is None or server.address in self._node_port_addresses):
            found = self._node_ports.get((server.family, server.protocol, server.port))
        return found

    def _add(self, service: KnownService) -> None:
        addresses = tuple(address for text in service.addresses if (address := parse_addr(text)) is not None)
        families = {family_of(address) for address in addresses}
        for port in service.ports:
            protocol = _number(port.protocol)
            found = service, Owner(service.namespace, service.name, port.name, port.port)
            for address in addresses:
                self._fronts.setdefault((protocol, address, port.port), found)
            for family in families if port.node_port else ():
                self._node_ports.setdefault((family, protocol, port.node_port), found)


def _front(server: ObservedVirtualServer) -> _Front:
    return server.protocol, server.address, server.port


def _number(protocol: str) -> int:
    """0, which is nobody's, for one that only a later daemon knows."""
    return Protocol[protocol] if protocol in Protocol.__members__ else 0


def _drain_key(drain: KnownDrain) -> tuple[_Front, tuple[PackedAddr | None, int]]:
    front = _number(drain.protocol), parse_addr(drain.address) or b"", drain.port
    return front, (parse_addr(drain.real_address), drain.real_port)
