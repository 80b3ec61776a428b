"""Our own node: its addresses and pod networks, from the Node object.

Source: kubernetes v1.37.2 pkg/util/node GetNodeHostIPs, pkg/proxy/node.go.
"""

from __future__ import annotations

import msgspec

from ipvsproxy.model import api_objects
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import LABEL_ZONE, TAINT_TO_BE_DELETED
from ipvsproxy.model.notes import Note, gather

_TYPES_IN_ORDER = ("InternalIP", "ExternalIP")


class NodeView(msgspec.Struct, frozen=True):
    """The node as the planner sees it. `addresses`: InternalIP, then ExternalIP, each in the status' order.

    `zone` is the value of its label topology.kubernetes.io/zone, empty where it has none. `is_leaving`: it is being
    deleted, or the autoscaler is about to: load balancers shall not send to it any more. `given_ip`: what
    --bind-address says, which holds against the Node's own of that family.
    """

    name: str
    addresses: tuple[PackedAddr, ...] = ()
    pod_cidrs: tuple[Cidr, ...] = ()
    zone: str = ""
    is_leaving: bool = False
    given_ip: PackedAddr | None = None

    @property
    def primary_ips(self) -> tuple[PackedAddr, ...]:
        """The node IPs: of each family the given one, or the first address."""
        given = () if self.given_ip is None else (self.given_ip,)
        first = {family_of(addr): addr for addr in reversed((*given, *self.addresses))}
        return tuple(first[family] for family in Family if family in first)


class HostView(msgspec.Struct, frozen=True):
    """Where we are, as far as plans of Services depend on it.

    `addresses`: those of the node's interfaces but kube-ipvs0; `node_port_addresses`: of these the ones that serve node
    ports; `node_ips`: the Node object's first of each family; `zone`: our node's; `elsewhere`: external and
    load-balancer IPs of Services that are somebody else's, say another Node's (cluster/claims.py).
    `health_addresses`: where health check node ports are answered; the any-address of a family means all of them.
    """

    addresses: frozenset[PackedAddr] = frozenset()
    node_port_addresses: tuple[PackedAddr, ...] = ()
    node_ips: tuple[PackedAddr, ...] = ()
    zone: str = ""
    elsewhere: frozenset[PackedAddr] = frozenset()
    health_addresses: tuple[PackedAddr, ...] = ()


def read_node(node: api_objects.Node) -> tuple[NodeView, tuple[Note, ...]]:
    """The node, and at most one note on what was left out of it. Addresses that are names are not ours to judge."""
    faults: list[str] = []
    view = NodeView(
        name=node.metadata.name,
        addresses=_addresses(node.status, faults),
        pod_cidrs=tuple(dict.fromkeys(cidr for text in _pod_cidrs(node.spec) if (cidr := _cidr(text, faults)))),
        zone=(node.metadata.labels or {}).get(LABEL_ZONE, ""),
        is_leaving=_is_leaving(node),
    )
    return view, gather(f"Node {node.metadata.name}", faults, "Correct the Node, or give --node-addresses")


def addresses_of(node: api_objects.Node | api_objects.OtherNode) -> tuple[PackedAddr, ...]:
    """The addresses of a Node that is not ours, each once. What is no address is that node's own proxy to report."""
    return _addresses(node.status, [])


def _is_leaving(node: api_objects.Node) -> bool:
    """Source: kubernetes v1.37.2 pkg/proxy/healthcheck/proxy_health.go NodeEligible."""
    taints = (node.spec.taints if node.spec else None) or ()
    return bool(node.metadata.deletion_timestamp) or any(taint.key == TAINT_TO_BE_DELETED for taint in taints)


def _pod_cidrs(spec: api_objects.NodeSpec | None) -> tuple[str, ...]:
    if spec is None:
        return ()
    return spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())


def _addresses(status: api_objects.NodeStatus | None, faults: list[str]) -> tuple[PackedAddr, ...]:
    entries = (status.addresses if status else None) or ()
    ordered = (entry.address for wanted in _TYPES_IN_ORDER for entry in entries if entry.type == wanted)
    return tuple(dict.fromkeys(addr for text in ordered if (addr := _address(text, faults))))


def _address(text: str, faults: list[str]) -> PackedAddr | None:
    addr = parse_addr(text)
    if addr is None:
        faults.append(f'status.addresses: "{text}" is not an IP address')
    return addr


def _cidr(text: str, faults: list[str]) -> Cidr | None:
    cidr = parse_cidr(text)
    if cidr is None:
        faults.append(f'spec.podCIDRs: "{text}" is not a CIDR')
    return cidr
