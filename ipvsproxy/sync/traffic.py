"""What passed through each Service port, for those that may have metrics of their own (K53).

Read with each audit, one dump of virtual servers however many there are, and only where it was asked for; a scrape
reads what was found then. A counter only grows: each virtual server adds what it has counted since the last look, so
one that goes or is made anew takes nothing away.

Of more ports than may have series those that have some keep them for as long as their Service lives, and the busiest of
the others come next: a series that comes and goes is worth less than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add, sub

import structlog

from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.api import Ipvs
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.figures import Counts, PortName, Traffic
from ipvsproxy.model.kernel_objects import Kind, VirtualServerKey
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.observed import ObservedVirtualServer
from ipvsproxy.plan.desired import Desired

log = structlog.get_logger()

_PROTOCOLS = frozenset(Protocol)
_NOTHING = Counts()


class TrafficCounts:
    """Owned by the sync thread. `limit`: Service ports that may have series; at 0 nothing is read.

    `found`: what was found at the last look, None where there is none.
    """

    def __init__(self, ipvs: Ipvs, desired: Desired, tracker: Tracker) -> None:
        self.limit = 0
        self.found: Traffic | None = None
        self._ipvs = ipvs
        self._desired = desired
        self._tracker = tracker
        self._last: dict[VirtualServerKey, Counts] = {}
        self._totals: dict[PortName, Counts] = {}
        self._is_unreadable = False

    def read(self) -> None:
        """Look at the kernel, and publish what has passed as a new `found`. What cannot be read stays as it was."""
        if not self.limit:
            return
        try:
            servers = self._ipvs.virtual_servers(with_statistics=True)
        except KernelError as error:
            (log.debug if self._is_unreadable else log.warning)("traffic_not_read", reason=str(error))
            self._is_unreadable = True
            return
        self._is_unreadable = False
        found = self._by_port(servers)
        self._choose(found)
        for name in self._totals:
            for key, counts in found.get(name, {}).items():
                self._totals[name] = _sum(self._totals[name], _since(self._last.get(key), counts))
                self._last[key] = counts
        self._last = {key: counts for key, counts in self._last.items() if self._port_of(key) in self._totals}
        self.found = Traffic(dict(self._totals), len(found.keys() - self._totals.keys()))

    def _by_port(self, servers: Iterable[ObservedVirtualServer]) -> dict[PortName, dict[VirtualServerKey, Counts]]:
        """Of our virtual servers what each has counted, by Service port."""
        found: dict[PortName, dict[VirtualServerKey, Counts]] = {}
        for server in servers:
            if server.fwmark or server.protocol not in _PROTOCOLS:
                continue
            key = VirtualServerKey(Protocol(server.protocol), server.address, server.port)
            name = self._port_of(key)
            if name is not None:
                found.setdefault(name, {})[key] = _counts(server)
        return found

    def _port_of(self, key: VirtualServerKey) -> PortName | None:
        holders = self._desired.holders((Kind.VIRTUAL_SERVER, key))
        view = self._tracker.view(holders[0])[0] if holders else None
        if view is None:
            return None
        is_own = key.address in {*view.cluster_ips, *view.external_ips, *view.load_balancer_ips}
        ports = [port for port in view.ports if port.protocol is key.protocol]
        port = _first(ports, key.port) if is_own else None
        port = port or next((port for port in ports if port.node_port == key.port), None)
        return _name(view, port) if port else None

    def _lives(self, name: PortName) -> bool:
        view, _ = self._tracker.view(ServiceName(name.namespace, name.service))
        return view is not None and any(_name(view, port) == name for port in view.ports)

    def _choose(self, found: Mapping[PortName, Mapping[VirtualServerKey, Counts]]) -> None:
        """Keep the ports that have series and whose Service lives; give what is free to the busiest others.

        A dump that misses a virtual server (kernel/ipvs.py says when) ends nothing.
        """
        self._totals = {name: counts for name, counts in self._totals.items() if self._lives(name)}
        others = sorted(found.keys() - self._totals.keys(), key=lambda name: (-_connections(found[name]), name))
        for name in others[: self.limit - len(self._totals)]:
            self._totals[name] = _NOTHING


def _name(view: ServiceView, port: ServicePort) -> PortName:
    return PortName(*view.name, port.name or str(port.port), port.protocol.name)


def _first(ports: Iterable[ServicePort], number: int) -> ServicePort | None:
    return next((port for port in ports if port.port == number), None)


def _connections(servers: Mapping[VirtualServerKey, Counts]) -> int:
    return sum(counts.connections for counts in servers.values())


def _counts(server: ObservedVirtualServer) -> Counts:
    found = server.statistics
    return Counts(found.connections, found.packets_in, found.packets_out, found.bytes_in, found.bytes_out)


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(*map(add, one, other))


def _since(before: Counts | None, now: Counts) -> Counts:
    """What came in between; all of it where the virtual server is new, or was made anew and counts from nothing."""
    if before is None or any(number < was for number, was in zip(now, before, strict=True)):
        return now
    return Counts(*map(sub, now, before))
