"""Names that both kube-proxy and its users know: to the byte. Source: kubernetes v1.37.2 pkg/proxy/ipvs."""

from __future__ import annotations

from typing import NamedTuple

from ipvsproxy.model.enums import Family, Protocol

DUMMY_DEVICE = "kube-ipvs0"
DEFAULT_SCHEDULER = "rr"
DEFAULT_MASQUERADE_BIT = 14

LABEL_SERVICE_NAME = "kubernetes.io/service-name"
LABEL_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
LABEL_HEADLESS = "service.kubernetes.io/headless"
LABEL_ZONE = "topology.kubernetes.io/zone"
ANNOTATION_DRAIN_TIMEOUT = "ipvsproxy.io/drain-timeout"  # ours: a Service's own --ipvs-drain-timeout

ANNOTATION_LAST_CHANGE = "endpoints.kubernetes.io/last-change-trigger-time"
TAINT_TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"  # cluster-autoscaler/utils/taints

# The sets that tell what is ours, and what comes and goes when; modes/ipvs/sets.py has the table of all.
SET_CLUSTER_IP = "KUBE-CLUSTER-IP"
SET_EXTERNAL_IP, SET_EXTERNAL_IP_LOCAL = "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL"
SET_IPVS_IPS = "KUBE-IPVS-IPS"
SET_LOAD_BALANCER, SET_LOAD_BALANCER_LOCAL = "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL"
SET_LOAD_BALANCER_FW = "KUBE-LOAD-BALANCER-FW"  # closes a frontend to all but its source ranges
SETS_LOAD_BALANCER_SOURCE = ("KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR")  # these
SET_NO_LOCAL_ENDPOINTS = "KUBE-NO-LOCAL-ENDPOINTS"
SET_NODE_PORT_IPS = "KUBE-NODE-PORT-IPS"
SETS_NODE_PORT_TCP = ("KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP")  # of every policy, and of policy Local besides
SETS_NODE_PORT_UDP = ("KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP")
SETS_NODE_PORT_SCTP = ("KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH")
SETS_NODE_PORT = {
    Protocol.TCP: SETS_NODE_PORT_TCP,
    Protocol.UDP: SETS_NODE_PORT_UDP,
    Protocol.SCTP: SETS_NODE_PORT_SCTP,
}

_IPV6_SETS = "KUBE-6-"
_SET_NAME_MAX = 31  # IPSET_MAXNAMELEN - 1


def set_name(base: str, family: Family) -> str:
    """The name of our set `base` ("KUBE-…") in `family`; IPv6 names are cut to what the kernel stores."""
    if family is Family.IPV4:
        return base
    return (_IPV6_SETS + base.removeprefix("KUBE-"))[:_SET_NAME_MAX]


def family_of_set(name: str) -> Family:
    """The family of our set of this name."""
    return Family.IPV6 if name.startswith(_IPV6_SETS) else Family.IPV4


class ServiceName(NamedTuple):
    """A Service by namespace and name; prints as `namespace/name`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
