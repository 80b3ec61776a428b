"""What kube-proxy 1.37 in ipvs mode leaves in a kernel, its faults included: recordings of objects of our own.

It knows nothing of ipvsproxy's planner, on purpose; test_kube_proxy.py holds it to every line of every recording of the
real program, tests/api/test_real_kube_proxy.py to that program itself with random clusters. Where the real one depends
on the order of a map (two Services want one address and port), it takes the last one's side.
Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go, pkg/proxy/topology.go, pkg/proxy/serviceport.go.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ipvsproxy.config.types import PlanFormat
from ipvsproxy.model.enums import Family
from tests.golden.given import (
    Address,
    Given,
    Item,
    Network,
    addresses,
    cluster_ips,
    excluded_networks,
    external_ips,
    external_is_local,
    internal_is_local,
    is_open_to_outside,
    load_balancer_ips,
    networks,
    node_addresses,
    served_address,
)
from tests.golden.upstream_rules import OutRule, rules
from tests.golden.upstream_sets import CREATED, set_name

VERSIONS = {Family.IPV4: 4, Family.IPV6: 6}
_SERVER_OPTIONS = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}
_ZONE = "topology.kubernetes.io/zone"


@dataclass
class Kernel:
    """One family's part of a kernel."""

    sets: dict[str, set[str]] = field(default_factory=lambda: {base: set() for base in CREATED})
    servers: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    bound: set[Address] = field(default_factory=set)
    out_rules: set[OutRule] = field(default_factory=set)
    wanted_by: dict[tuple[str, Address, int], set[tuple[str, str]]] = field(default_factory=dict)

    def contested(self) -> Iterator[tuple[str, Address, int]]:
        """Protocol, address and port of what several ports want."""
        return (key for key, ports in self.wanted_by.items() if len(ports) > 1)


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a Service port."""

    address: Address
    port: int
    is_here: bool
    ready: bool
    serving: bool
    terminating: bool
    zones: frozenset[str]
    nodes: frozenset[str]

    def __str__(self) -> str:
        return at(self.address, self.port)


def recorded(given: Given) -> dict[PlanFormat, list[str]]:
    """What the recorder would find, but for sysctls."""
    kernels = {family: settled(given, family).kernel for family in given.families}
    return {
        PlanFormat.IPVSADM: [*_of_others(given), *(line for kernel in kernels.values() for line in _ipvsadm(kernel))],
        PlanFormat.ADDRESSES: [f"{ip}/{ip.max_prefixlen}" for kernel in kernels.values() for ip in kernel.bound],
        PlanFormat.IPSET: [line for family, kernel in kernels.items() for line in _ipset(family, kernel)],
        PlanFormat.IPTABLES: _rules(given, kernels, Family.IPV4),
        PlanFormat.IP6TABLES: _rules(given, kernels, Family.IPV6),
    }


def _rules(given: Given, kernels: dict[Family, Kernel], family: Family) -> list[str]:
    if family not in kernels:
        return []
    kernel = kernels[family]
    return list(rules(given, family, {name for name, entries in kernel.sets.items() if entries}, kernel.out_rules))


def at(address: Address, port: int) -> str:
    """An address and port as the tools show them."""
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def _ipvsadm(kernel: Kernel) -> Iterator[str]:
    for server, (settings, destinations) in kernel.servers.items():
        yield f"-A {server} {settings}"
        yield from (f"-a {server} -r {destination} -m -w 1" for destination in destinations)


def _of_others(given: Given) -> Iterator[str]:
    """What stays of other programs' virtual servers: excluded ones, and by firewall mark, whose deletion fails."""
    excluded = excluded_networks(given.config)
    for line in given.others:
        address = served_address(line)
        if address is None or any(address in cidr for cidr in excluded):
            yield line


def _ipset(family: Family, kernel: Kernel) -> Iterator[str]:
    for base, entries in kernel.sets.items():
        yield f"create {set_name(base, family)} {CREATED[base].options(family)}"
        yield from (f"add {set_name(base, family)} {entry}" for entry in entries)


def settled(given: Given, family: Family) -> Proxier:
    """Two syncs: the second one finds the addresses that the first one has bound among the host's."""
    first = Proxier(given, family, frozenset())
    first.sync()
    second = Proxier(given, family, frozenset(first.kernel.bound))
    second.sync()
    return second


class Proxier:
    """One family's."""

    def __init__(self, given: Given, family: Family, bound: frozenset[Address]) -> None:
        self.given = given
        self.version = VERSIONS[family]
        self.kernel = Kernel()
        self.elsewhere = {ip for ip in self._mine(given.host) if not ip.is_loopback and not _is_link_local6(ip)}
        self.node_ips = self._node_port_addresses(bound)
        self.vips_among_node_ips = bound.intersection(self.node_ips) - self.elsewhere

    def sync(self) -> None:
        """All that the Services want."""
        for service in self.given.services():
            for port in service["spec"]["ports"]:
                for own in self._mine(cluster_ips(service)):
                    self._service_port(service, port, own)
        self.kernel.sets["KUBE-IPVS-IPS"] = {str(ip) for ip in self.kernel.bound}

    def _mine(self, found: Iterable[Address]) -> list[Address]:
        return [ip for ip in found if ip.version == self.version]

    def _primary(self) -> Address | None:
        return next(iter(self._mine(node_addresses(self.given.node))), None)

    def _node_port_addresses(self, bound: frozenset[Address]) -> list[Address]:
        """differs from ours: VIPs and link-local addresses in the networks count (a fault of the real one)."""
        config = self.given.config
        cidrs = [cidr for cidr in networks([str(c) for c in config.node_port_cidrs]) if cidr.version == self.version]
        primary = self._primary()
        if config.node_ports_on_primary and primary and not primary.is_loopback:
            cidrs.append(ipaddress.ip_network(primary))
        if not cidrs or any(cidr.prefixlen == 0 for cidr in cidrs):
            return list(self.elsewhere)
        own = [*self._mine(self.given.host), *bound]
        return [ip for ip in own if not ip.is_loopback and any(ip in cidr for cidr in cidrs)]

    def _service_port(self, service: Item, port: Item, own: Address) -> None:
        number, protocol = port["port"], port.get("protocol", "TCP")
        endpoints = self._endpoints(service, port)
        self._add(
            "KUBE-LOOP-BACK", *(f"{e.address},{protocol.lower()}:{e.port},{e.address}" for e in endpoints if e.is_here)
        )
        cluster, local = self._usable(service, port, endpoints)
        internal = (local or cluster) if internal_is_local(service) else cluster
        is_local = external_is_local(service)
        external = (local or cluster) if is_local else cluster

        self._serve(service, port, own, number, internal)
        self.kernel.bound.add(own)
        self._add("KUBE-CLUSTER-IP", f"{own},{protocol.lower()}:{number}")
        for ip in self._mine(external_ips(service)):
            self._serve(service, port, ip, number, external)
            self._bind(ip)
            self._add("KUBE-EXTERNAL-IP-LOCAL" if is_local else "KUBE-EXTERNAL-IP", f"{ip},{protocol.lower()}:{number}")
        for ip in self._mine(load_balancer_ips(service)):
            self._serve(service, port, ip, number, external)
            self._bind(ip)
            self._load_balancer_entries(service, ip, protocol.lower(), number)
        if port.get("nodePort"):
            if not self.node_ips:
                return  # a fault of the real one: the health check port's entry is left out, too
            self._node_port(service, port, external)
        health_port = service["spec"].get("healthCheckNodePort")
        if health_port and service["spec"].get("type") == "LoadBalancer" and is_local:
            self._add("KUBE-HEALTH-CHECK-NODE-PORT", str(health_port))

    def _node_port(self, service: Item, port: Item, destinations: list[Endpoint]) -> None:
        protocol, number = port.get("protocol", "TCP"), port["nodePort"]
        for ip in self.node_ips:
            self._serve(service, port, ip, number, destinations)
        for middle in ("", "LOCAL-") if external_is_local(service) else ("",):
            if protocol == "SCTP":
                self._add(f"KUBE-NODE-PORT-{middle}SCTP-HASH", *(f"{ip},sctp:{number}" for ip in self.node_ips))
            else:
                self._add(f"KUBE-NODE-PORT-{middle}{protocol}", str(number))

    def _load_balancer_entries(self, service: Item, ip: Address, protocol: str, number: int) -> None:
        entry = f"{ip},{protocol}:{number}"
        self._add("KUBE-LOAD-BALANCER", entry)
        if external_is_local(service):
            self._add("KUBE-LOAD-BALANCER-LOCAL", entry)
        ranges = self._source_ranges(service)
        if not ranges:
            return
        self._add("KUBE-LOAD-BALANCER-FW", entry)
        self._add("KUBE-LOAD-BALANCER-SOURCE-CIDR", *(f"{entry},{_shown(cidr)}" for cidr in ranges))
        primary = self._primary()
        if primary and any(primary in cidr for cidr in ranges):
            self._add("KUBE-LOAD-BALANCER-SOURCE-IP", f"{entry},{ip}")
        else:
            self.kernel.out_rules.add(OutRule(ip, protocol, number))

    def _source_ranges(self, service: Item) -> list[Network]:
        found = networks(service["spec"].get("loadBalancerSourceRanges"))
        ranges = [cidr for cidr in found if cidr.version == self.version]
        return [] if any(cidr.prefixlen == 0 for cidr in ranges) else ranges

    def _add(self, base: str, *entries: str) -> None:
        self.kernel.sets[base].update(entries)

    def _bind(self, ip: Address) -> None:
        if ip not in self.elsewhere:
            self.kernel.bound.add(ip)

    def _serve(self, service: Item, port: Item, ip: Address, number: int, destinations: list[Endpoint]) -> None:
        protocol = port.get("protocol", "TCP")
        owner = f"{service['metadata']['namespace']}/{service['metadata']['name']}", port.get("name") or ""
        self.kernel.wanted_by.setdefault((protocol, ip, number), set()).add(owner)
        settings = f"-s {self.given.config.scheduler}"
        if service["spec"].get("sessionAffinity") == "ClientIP":
            affinity = (service["spec"].get("sessionAffinityConfig") or {}).get("clientIP") or {}
            settings += f" -p {affinity.get('timeoutSeconds', 10800)}"
        if self.given.config.scheduler == "mh":
            settings += " -b mh-port"
        key = f"{_SERVER_OPTIONS[protocol]} {at(ip, number)}"
        self.kernel.servers[key] = (settings, {str(endpoint) for endpoint in destinations})

    def _endpoints(self, service: Item, port: Item) -> list[Endpoint]:
        """Those of a port, by name and protocol; of one address in two slices the one that is not stopping."""
        found: dict[str, Endpoint] = {}
        label = {4: "IPv4", 6: "IPv6"}[self.version]
        for piece in self.given.slices(service):
            for other in piece.get("ports") or () if piece["addressType"] == label else ():
                same = (other.get("name") or "", other.get("protocol", "TCP"))
                if other.get("port") and same == (port.get("name") or "", port.get("protocol", "TCP")):
                    for raw in piece.get("endpoints") or ():
                        endpoint = self._endpoint(raw, other["port"])
                        if endpoint and (not endpoint.terminating or str(endpoint) not in found):
                            found[str(endpoint)] = endpoint
        return list(found.values())

    def _endpoint(self, raw: Item, number: int) -> Endpoint | None:
        first = next(addresses(raw["addresses"][:1]), None)
        if first is None:
            return None
        conditions, hints = raw.get("conditions") or {}, raw.get("hints") or {}
        return Endpoint(
            address=first,
            port=number,
            is_here=raw.get("nodeName") == self.given.config.hostname_override,
            ready=conditions.get("ready") is not False,
            serving=conditions.get("serving") is not False,
            terminating=conditions.get("terminating") is True,
            zones=frozenset(hint["name"] for hint in hints.get("forZones") or ()),
            nodes=frozenset(hint["name"] for hint in hints.get("forNodes") or ()),
        )

    def _usable(self, service: Item, port: Item, endpoints: list[Endpoint]) -> tuple[list[Endpoint], list[Endpoint]]:
        """For traffic of policy Cluster (none where nothing is of this policy), and of policy Local."""
        cluster = self._hinted([e for e in endpoints if e.ready]) or _stopping(endpoints)
        here = [e for e in endpoints if e.is_here]
        local = [e for e in here if e.ready] or _stopping(here)
        uses_cluster = not internal_is_local(service) or is_open_to_outside(service, port, self.version)
        return cluster if uses_cluster else [], local

    def _hinted(self, ready: list[Endpoint]) -> list[Endpoint]:
        name = self.given.config.hostname_override
        zone = (self.given.node.get("metadata", {}).get("labels") or {}).get(_ZONE, "")
        for level, own in (("nodes", name), ("zones", zone)):
            hints = [getattr(endpoint, level) for endpoint in ready]
            if all(hints) and any(own in hint for hint in hints):
                return [endpoint for endpoint, hint in zip(ready, hints, strict=True) if own in hint]
        return ready


def _stopping(endpoints: list[Endpoint]) -> list[Endpoint]:
    return [e for e in endpoints if e.serving and e.terminating]


def _shown(cidr: Network) -> str:
    """As ipset lists it: a network of one address without its length."""
    return str(cidr.network_address) if cidr.prefixlen == cidr.max_prefixlen else str(cidr)


def _is_link_local6(ip: Address) -> bool:
    return ip.version == 6 and ip.is_link_local
