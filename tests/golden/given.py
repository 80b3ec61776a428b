"""What a kube-proxy is started with: objects as YAML has them, the node's addresses, and its configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from ipvsproxy.config.types import ProxyConfig
from ipvsproxy.model.addr import format_addr, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Item: TypeAlias = Mapping[str, Any]

OTHER_PROXY = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"


@dataclass(frozen=True, kw_only=True)
class Given:
    """All that decides what a settled node has.

    `host`: its interfaces' addresses, the loopback one's too. `others`: what `ipvsadm -S -n` says before the start.
    """

    items: Sequence[Item]
    host: Sequence[Address]
    config: ProxyConfig
    families: Sequence[Family]
    others: Sequence[str] = ()

    def kind(self, kind: str) -> Iterator[Item]:
        """The objects of this kind."""
        return (item for item in self.items if item["kind"] == kind)

    @property
    def node(self) -> Item:
        """Our Node."""
        name = self.config.hostname_override
        return next((item for item in self.kind("Node") if item["metadata"]["name"] == name), {})

    def services(self) -> Iterator[Item]:
        """The Services that the server's selectors leave, and that have an address of their own."""
        for item in self.kind("Service"):
            labels, spec = item["metadata"].get("labels") or {}, item["spec"]
            none = spec.get("clusterIP", "") in {"", "None"} or spec.get("type") == "ExternalName"
            if OTHER_PROXY not in labels and not none:
                yield item

    def slices(self, service: Item) -> Iterator[Item]:
        """The EndpointSlices of a Service."""
        for item in self.kind("EndpointSlice"):
            labels, metadata = item["metadata"].get("labels") or {}, item["metadata"]
            owner = metadata["namespace"], labels.get("kubernetes.io/service-name")
            if HEADLESS not in labels and owner == (service["metadata"]["namespace"], service["metadata"]["name"]):
                yield item


def read_items(folder: Path) -> list[Item]:
    """The objects of a folder's given.yaml: a list, or documents."""
    documents = [document for document in yaml.safe_load_all((folder / "given.yaml").read_text()) if document]
    return [item for document in documents for item in document.get("items", [document])]


def addresses(texts: Sequence[str] | None) -> Iterator[Address]:
    """Those that are addresses, however they are written."""
    for text in texts or ():
        packed = parse_addr(text)
        if packed is not None:
            yield ipaddress.ip_address(format_addr(packed))


def networks(texts: Sequence[str] | None) -> Iterator[Network]:
    """Those that are networks, however they are written."""
    for text in texts or ():
        cidr = parse_cidr(text.strip())
        if cidr is not None:
            yield ipaddress.ip_network(str(cidr))


def node_addresses(node: Item) -> Iterator[Address]:
    """A Node's addresses: internal ones before external ones."""
    listed = (node.get("status") or {}).get("addresses") or ()
    for type_name in ("InternalIP", "ExternalIP"):
        yield from addresses([entry["address"] for entry in listed if entry["type"] == type_name])


def load_balancer_ips(service: Item) -> Iterator[Address]:
    """The load balancer's addresses that are to be bound: not those of one that hands on by itself."""
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    yield from addresses([e["ip"] for e in ingress if e.get("ip") and e.get("ipMode", "VIP") == "VIP"])


def external_ips(service: Item) -> Iterator[Address]:
    """The Service's external IPs."""
    return addresses(service["spec"].get("externalIPs"))


def cluster_ips(service: Item) -> Iterator[Address]:
    """The Service's own addresses."""
    spec = service["spec"]
    return addresses(spec.get("clusterIPs") or [spec["clusterIP"]])


def is_open_to_outside(service: Item, port: Item, version: int) -> bool:
    """Whether this port of it is for clients outside the cluster, too, in a family."""
    outside = [*load_balancer_ips(service), *external_ips(service)]
    return bool(port.get("nodePort")) or any(ip.version == version for ip in outside)


def external_is_local(service: Item) -> bool:
    """Whether what comes from outside is to stay on the node that it reaches."""
    spec = service["spec"]
    outside = spec.get("type") in {"LoadBalancer", "NodePort"} or bool(spec.get("externalIPs"))
    policy: str = spec.get("externalTrafficPolicy", "Cluster")
    return outside and policy == "Local"


def internal_is_local(service: Item) -> bool:
    """Whether what comes from the node is to stay on it."""
    policy: str = service["spec"].get("internalTrafficPolicy", "Cluster")
    return policy == "Local"


def excluded_networks(config: ProxyConfig) -> list[Network]:
    """What is somebody else's."""
    return list(networks([str(cidr) for cidr in config.exclude_cidrs]))


def served_address(line: str) -> Address | None:
    """The address of the virtual server of a line of `ipvsadm -S -n`; none if a firewall mark is in its place."""
    text = line.split()[2].rpartition(":")[0]
    return ipaddress.ip_address(text.strip("[]")) if text else None
