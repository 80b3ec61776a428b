"""The ipsets of a family, as one table: kube-proxy's 17 and two of our own.

The kind of a set's entries is their place in the order of changes (plan/order.py). The comment is not stored in the
set: it is the comment of the rules that match on it.
Source: kubernetes v1.37.2 pkg/proxy/ipvs/{proxier,ipset}.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ipvsproxy.model.addr import PackedAddr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Key, Kind, ObjectId, SetEntry, SetSpec, Settings
from ipvsproxy.model.names import (
    SET_CLUSTER_IP,
    SET_EXTERNAL_IP,
    SET_EXTERNAL_IP_LOCAL,
    SET_IPVS_IPS,
    SET_LOAD_BALANCER,
    SET_LOAD_BALANCER_FW,
    SET_LOAD_BALANCER_LOCAL,
    SET_NO_LOCAL_ENDPOINTS,
    SET_NODE_PORT_IPS,
    SETS_LOAD_BALANCER_SOURCE,
    SETS_NODE_PORT_SCTP,
    SETS_NODE_PORT_TCP,
    SETS_NODE_PORT_UDP,
    set_name,
)

LOOP_BACK = "KUBE-LOOP-BACK"
CLUSTER_IP = SET_CLUSTER_IP
EXTERNAL_IP = SET_EXTERNAL_IP
EXTERNAL_IP_LOCAL = SET_EXTERNAL_IP_LOCAL
LOAD_BALANCER = SET_LOAD_BALANCER
LOAD_BALANCER_FW = SET_LOAD_BALANCER_FW
LOAD_BALANCER_LOCAL = SET_LOAD_BALANCER_LOCAL
LOAD_BALANCER_SOURCE_IP, LOAD_BALANCER_SOURCE_CIDR = SETS_LOAD_BALANCER_SOURCE
NODE_PORT_TCP, NODE_PORT_LOCAL_TCP = SETS_NODE_PORT_TCP
NODE_PORT_UDP, NODE_PORT_LOCAL_UDP = SETS_NODE_PORT_UDP
NODE_PORT_SCTP, NODE_PORT_LOCAL_SCTP = SETS_NODE_PORT_SCTP
HEALTH_CHECK_NODE_PORT = "KUBE-HEALTH-CHECK-NODE-PORT"
IPVS_IPS = SET_IPVS_IPS
# Ours: kube-proxy has no such sets.
NO_LOCAL_ENDPOINTS = SET_NO_LOCAL_ENDPOINTS
NODE_PORT_IPS = SET_NODE_PORT_IPS  # the trace of node ports too, see plan/ownership.py

BITMAP_PORT = "bitmap:port"
HASH_IP = "hash:ip"
HASH_IP_PORT = "hash:ip,port"
HASH_IP_PORT_IP = "hash:ip,port,ip"
HASH_IP_PORT_NET = "hash:ip,port,net"


class SetRow(NamedTuple):
    """One set: its IPv4 name, its type, the kind of its entries, the comment of its rules."""

    base: str
    type_name: str
    entry_kind: Kind
    comment: str


_SUPPORT, _ACCEPT, _BOUND, _GUARD = Kind.SUPPORT_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY, Kind.GUARD_ENTRY

SETS: tuple[SetRow, ...] = (
    SetRow(LOOP_BACK, HASH_IP_PORT_IP, _SUPPORT,
           "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"),
    SetRow(CLUSTER_IP, HASH_IP_PORT, _ACCEPT,
           "Kubernetes service cluster ip + port for masquerade purpose"),
    SetRow(EXTERNAL_IP, HASH_IP_PORT, _ACCEPT,
           "Kubernetes service external ip + port for masquerade and filter purpose"),
    SetRow(EXTERNAL_IP_LOCAL, HASH_IP_PORT, _ACCEPT,
           "Kubernetes service external ip + port with externalTrafficPolicy=local"),
    SetRow(LOAD_BALANCER, HASH_IP_PORT, _ACCEPT,
           "Kubernetes service lb portal"),
    SetRow(LOAD_BALANCER_FW, HASH_IP_PORT, _GUARD,
           "Kubernetes service load balancer ip + port for load balancer with sourceRange"),
    SetRow(LOAD_BALANCER_LOCAL, HASH_IP_PORT, _SUPPORT,
           "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"),
    SetRow(LOAD_BALANCER_SOURCE_IP, HASH_IP_PORT_IP, _SUPPORT,
           "Kubernetes service load balancer ip + port + source IP for packet filter purpose"),
    SetRow(LOAD_BALANCER_SOURCE_CIDR, HASH_IP_PORT_NET, _SUPPORT,
           "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"),
    SetRow(NODE_PORT_TCP, BITMAP_PORT, _SUPPORT,
           "Kubernetes nodeport TCP port for masquerade purpose"),
    SetRow(NODE_PORT_LOCAL_TCP, BITMAP_PORT, _SUPPORT,
           "Kubernetes nodeport TCP port with externalTrafficPolicy=local"),
    SetRow(NODE_PORT_UDP, BITMAP_PORT, _SUPPORT,
           "Kubernetes nodeport UDP port for masquerade purpose"),
    SetRow(NODE_PORT_LOCAL_UDP, BITMAP_PORT, _SUPPORT,
           "Kubernetes nodeport UDP port with externalTrafficPolicy=local"),
    SetRow(NODE_PORT_SCTP, HASH_IP_PORT, _SUPPORT,
           "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"),
    SetRow(NODE_PORT_LOCAL_SCTP, HASH_IP_PORT, _SUPPORT,
           "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"),
    SetRow(HEALTH_CHECK_NODE_PORT, BITMAP_PORT, _SUPPORT,
           "Kubernetes health check node port"),
    SetRow(IPVS_IPS, HASH_IP, _BOUND,
           "Addresses on the ipvs interface"),
    SetRow(NO_LOCAL_ENDPOINTS, HASH_IP_PORT, _GUARD,
           "Kubernetes service external ip + port with externalTrafficPolicy=local but no endpoint on this node"),
    SetRow(NODE_PORT_IPS, HASH_IP, _SUPPORT,
           "Addresses of this node that serve node ports"),
)  # fmt: skip

COMMENTS = {row.base: row.comment for row in SETS}
ENTRY_KINDS = {row.base: row.entry_kind for row in SETS}
ENTRY_KIND_BY_NAME = {set_name(row.base, family): row.entry_kind for row in SETS for family in Family}
GUARD_SETS = {
    family: tuple(set_name(row.base, family) for row in SETS if row.entry_kind is Kind.GUARD_ENTRY) for family in Family
}


def node_port_traces(addresses: Iterable[PackedAddr]) -> dict[ObjectId, Settings]:
    """The entries that tell, once these addresses have left the node, that node ports on them are ours."""
    return {
        (Kind.SUPPORT_ENTRY, SetEntry(set_name(NODE_PORT_IPS, family_of(address)), address)): True
        for address in addresses
    }


def set_objects(families: frozenset[Family]) -> dict[ObjectId, Settings]:
    """The sets to create for these families."""
    objects: dict[ObjectId, Settings] = {}
    for family in sorted(families):
        for row in SETS:
            name: Key = set_name(row.base, family)
            objects[Kind.SET, name] = SetSpec(row.type_name, None if row.type_name == BITMAP_PORT else family)
    return objects
