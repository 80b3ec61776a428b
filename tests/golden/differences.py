"""The first table of docs/differences.md, read: which lines may stand on one side only.

A row's lines are patterns: `*` is anything, `<name>` what PLACEHOLDERS says of the objects at hand, so that a row
excuses a line for its reason and not wherever a line looks like that. A placeholder alone is everything at an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ipvsproxy.config.types import PlanFormat
from ipvsproxy.model.addr import is_bindable
from ipvsproxy.model.enums import Family
from tests.golden.given import (
    Address,
    Given,
    addresses,
    cluster_ips,
    excluded_networks,
    external_ips,
    internal_is_local,
    is_open_to_outside,
    load_balancer_ips,
    networks,
    node_addresses,
    served_address,
)
from tests.golden.upstream import VERSIONS, Proxier, at, settled

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"

OURS, THEIRS = "ipvsproxy", "kube-proxy"
EITHER = "either"
BOTH = "both, elsewhere"  # both have the line, in another place of its chain
COLUMNS = ["Where", "Line", "Only in", "Why", "Until"]

_PLACEHOLDER = re.compile(r"<[a-z-]+>")
_CELLS = re.compile(r"(?<!\\)\|")
_EVERYTHING_AT = r"(?:-[Aa] \S+ {0}:[0-9]+ .*|{0}/[0-9]+|add \S+ {0}(?:,.*)?)"


@dataclass(frozen=True)
class Difference:
    """A line of a row: one that only one side has there, and where it may be."""

    files: tuple[str, ...]
    line: str
    only_in: str

    def covers(self, plan_format: PlanFormat, line: str, only_in: str, values: Mapping[str, Collection[str]]) -> bool:
        """Whether the row speaks of this line; `values` says what each placeholder may stand for here."""
        if self.only_in not in {only_in, EITHER} or plan_format not in self.files:
            return False
        return re.fullmatch(self._pattern(values), line) is not None

    def _pattern(self, values: Mapping[str, Collection[str]]) -> str:
        """`*` is anything, `<name>` one of the values of this name, all else itself."""
        if _PLACEHOLDER.fullmatch(self.line):
            return _EVERYTHING_AT.format(_one_of(values[self.line]))
        return "".join(map(_part(values), re.split(r"(\*|<[a-z-]+>)", self.line)))


def _part(values: Mapping[str, Collection[str]]) -> Callable[[str], str]:
    def pattern(part: str) -> str:
        if part == "*":
            return ".*"
        return _one_of(values[part]) if _PLACEHOLDER.fullmatch(part) else re.escape(part)

    return pattern


def _one_of(values: Collection[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, values)) or '(?!)'})"


def meant_differences() -> tuple[Difference, ...]:
    """The rows of the first table of docs/differences.md, one for each line."""
    lines = PAGE.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if _cells(line) == COLUMNS)
    found: list[Difference] = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        where, patterns, only_in, why, until = _cells(line)
        assert only_in in {OURS, THEIRS, EITHER, BOTH}, line
        assert why, line
        assert until, line
        found += (Difference(tuple(where.split(", ")), text, only_in) for text in re.findall("`([^`]*)`", patterns))
    return tuple(found)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line.strip().strip("|"))]


def placeholder_values(given: Given, theirs: Callable[[PlanFormat], list[str]]) -> dict[str, set[str]]:
    """What each placeholder stands for, with these objects and the lines that kube-proxy has."""
    proxiers = [settled(given, family) for family in given.families]
    excluded = (*_excluded(given), *_excluded_of_others(given, theirs(PlanFormat.IPVSADM)))
    return {
        "<empty-set>": _empty_sets(theirs(PlanFormat.IPSET)),
        "<excluded>": set(_texts(excluded)),
        **{name: set(_texts(find(given))) for name, find in ADDRESSES.items()},
        **{name: {text for proxier in proxiers for text in find(proxier)} for name, find in FRONTENDS.items()},
    }


def _empty_sets(ipset: Iterable[str]) -> set[str]:
    words = [line.split() for line in ipset]
    return {name for verb, name, *_ in words if verb == "create"} - {name for verb, name, *_ in words if verb == "add"}


def _texts(found: Iterable[Address]) -> Iterator[str]:
    """Addresses as the tools show them: IPv6 in brackets before a port and plain elsewhere."""
    for address in found:
        yield str(address)
        if address.version == VERSIONS[Family.IPV6]:
            yield f"[{address}]"


def _of_other_nodes(given: Given) -> Iterator[Address]:
    for node in given.kind("Node"):
        if node["metadata"]["name"] != given.config.hostname_override:
            yield from node_addresses(node)


def _of_our_node_alone(given: Given) -> Iterator[Address]:
    return (ip for ip in node_addresses(given.node) if ip not in given.host)


def _of_pods(given: Given) -> Iterator[Address]:
    pods = [str(cidr) for cidr in given.config.cluster_cidrs]
    pods += (given.node.get("spec") or {}).get("podCIDRs") or ()
    return (ip for ip in _outside_addresses(given) if any(ip in cidr for cidr in networks(pods)))


def _of_nobody(given: Given) -> Iterator[Address]:
    return (ip for ip in _outside_addresses(given) if not is_bindable(ip.packed))


def _excluded(given: Given) -> Iterator[Address]:
    excluded = excluded_networks(given.config)
    endpoints = (e for piece in given.kind("EndpointSlice") for e in piece.get("endpoints") or ())
    own = (ip for service in given.services() for ip in cluster_ips(service))
    everything = [
        *given.host,
        *own,
        *_outside_addresses(given),
        *(ip for e in endpoints for ip in addresses(e["addresses"])),
    ]
    return (ip for ip in everything if any(ip in cidr for cidr in excluded))


def _excluded_of_others(given: Given, ipvsadm: Iterable[str]) -> Iterator[Address]:
    excluded = excluded_networks(given.config)
    for line in ipvsadm:
        address = served_address(line)
        if address is not None and any(address in cidr for cidr in excluded):
            yield address


def _link_local(given: Given) -> Iterator[Address]:
    return (ip for ip in given.host if ip.is_link_local)


def _outside_addresses(given: Given) -> Iterator[Address]:
    for service in given.services():
        yield from external_ips(service)
        yield from load_balancer_ips(service)


def _ranges_of_other_family(given: Given) -> Iterator[Address]:
    """Load-balancer IPs of a family that a list of source ranges says nothing of."""
    for service in given.services():
        versions = {cidr.version for cidr in networks(service["spec"].get("loadBalancerSourceRanges"))}
        yield from (ip for ip in load_balancer_ips(service) if versions and ip.version not in versions)


def _local_without_endpoint(given: Given) -> Iterator[Address]:
    """Cluster IPs of policy Local, with another way in, and with no endpoint here that could serve."""
    for service in given.services():
        endpoints = [e for piece in given.slices(service) for e in piece.get("endpoints") or ()]
        for ip in cluster_ips(service):
            leaks = any(is_open_to_outside(service, port, ip.version) for port in service["spec"]["ports"])
            if internal_is_local(service) and leaks and not any(_serves_here(given, e, ip.version) for e in endpoints):
                yield ip


def _serves_here(given: Given, endpoint: Mapping[str, object], version: int) -> bool:
    conditions: Mapping[str, object] = endpoint.get("conditions") or {}  # type: ignore[assignment]
    is_ready = conditions.get("ready") is not False
    is_stopping = conditions.get("serving") is not False and conditions.get("terminating") is True
    is_here = endpoint.get("nodeName") == given.config.hostname_override
    same = any(ip.version == version for ip in addresses(endpoint["addresses"]))  # type: ignore[arg-type]
    return is_here and same and (is_ready or is_stopping)


def _contested(proxier: Proxier) -> Iterator[str]:
    return _frontend_texts(proxier.kernel.contested())


def _node_ports_of_vips(proxier: Proxier) -> Iterator[str]:
    return _frontend_texts(key for key in proxier.kernel.wanted_by if key[1] in proxier.vips_among_node_ips)


def _frontend_texts(keys: Iterable[tuple[str, Address, int]]) -> Iterator[str]:
    """As ipvsadm and ipset show them."""
    for protocol, address, port in keys:
        yield at(address, port)
        yield f"{address},{protocol.lower()}:{port}"


def _node_ports_nowhere(proxier: Proxier) -> Iterator[str]:
    """All of them, where kube-proxy serves them at VIPs, link-local and excluded addresses alone."""
    given = proxier.given
    unserved = {*proxier.vips_among_node_ips, *_link_local(given), *_excluded(given)}
    if unserved.issuperset(proxier.node_ips):
        for service in given.services():
            yield from (str(port["nodePort"]) for port in service["spec"]["ports"] if port.get("nodePort"))


def _health_ports_left_out(proxier: Proxier) -> Iterator[str]:
    """All of them, where no address serves node ports."""
    services = () if proxier.node_ips else proxier.given.services()
    return (
        str(service["spec"]["healthCheckNodePort"]) for service in services if "healthCheckNodePort" in service["spec"]
    )


ADDRESSES: dict[str, Callable[[Given], Iterator[Address]]] = {
    "<other-node>": _of_other_nodes,
    "<translated>": _of_our_node_alone,
    "<pod>": _of_pods,
    "<nobody>": _of_nobody,
    "<link-local>": _link_local,
    "<no-range-of-its-family>": _ranges_of_other_family,
    "<local-without-endpoint>": _local_without_endpoint,
}
"""What the placeholders for addresses stand for."""

FRONTENDS: dict[str, Callable[[Proxier], Iterator[str]]] = {
    "<contested>": _contested,
    "<node-port-of-vip>": _node_ports_of_vips,
    "<node-port-nowhere>": _node_ports_nowhere,
    "<health-port>": _health_ports_left_out,
}
"""What the placeholders for an address with a port, or a port, stand for."""
