"""kube-proxy's ipsets. Source: kubernetes v1.37.2 pkg/proxy/ipvs/{ipset,proxier}.go."""

from __future__ import annotations

from typing import NamedTuple

from ipvsproxy.model.enums import Family

_LONGEST_NAME = 31
_FAMILY_WORDS = {Family.IPV4: "inet", Family.IPV6: "inet6"}


class Created(NamedTuple):
    """How a set is made, and the comment of its rules."""

    type_name: str
    comment: str

    def options(self, family: Family) -> str:
        """The words after the name."""
        if self.type_name == "bitmap:port":
            return "bitmap:port range 0-65535"
        return f"{self.type_name} family {_FAMILY_WORDS[family]} hashsize 1024 maxelem 65536"


_IP_PORT = "hash:ip,port"

CREATED = {
    "KUBE-LOOP-BACK": Created(
        "hash:ip,port,ip", "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"
    ),
    "KUBE-CLUSTER-IP": Created(_IP_PORT, "Kubernetes service cluster ip + port for masquerade purpose"),
    "KUBE-EXTERNAL-IP": Created(_IP_PORT, "Kubernetes service external ip + port for masquerade and filter purpose"),
    "KUBE-EXTERNAL-IP-LOCAL": Created(
        _IP_PORT, "Kubernetes service external ip + port with externalTrafficPolicy=local"
    ),
    "KUBE-LOAD-BALANCER": Created(_IP_PORT, "Kubernetes service lb portal"),
    "KUBE-LOAD-BALANCER-FW": Created(
        _IP_PORT, "Kubernetes service load balancer ip + port for load balancer with sourceRange"
    ),
    "KUBE-LOAD-BALANCER-LOCAL": Created(
        _IP_PORT, "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
    ),
    "KUBE-LOAD-BALANCER-SOURCE-IP": Created(
        "hash:ip,port,ip", "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
    ),
    "KUBE-LOAD-BALANCER-SOURCE-CIDR": Created(
        "hash:ip,port,net", "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
    ),
    "KUBE-NODE-PORT-TCP": Created("bitmap:port", "Kubernetes nodeport TCP port for masquerade purpose"),
    "KUBE-NODE-PORT-LOCAL-TCP": Created("bitmap:port", "Kubernetes nodeport TCP port with externalTrafficPolicy=local"),
    "KUBE-NODE-PORT-UDP": Created("bitmap:port", "Kubernetes nodeport UDP port for masquerade purpose"),
    "KUBE-NODE-PORT-LOCAL-UDP": Created("bitmap:port", "Kubernetes nodeport UDP port with externalTrafficPolicy=local"),
    "KUBE-NODE-PORT-SCTP-HASH": Created(
        _IP_PORT, "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
    ),
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH": Created(
        _IP_PORT, "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
    ),
    "KUBE-HEALTH-CHECK-NODE-PORT": Created("bitmap:port", "Kubernetes health check node port"),
    "KUBE-IPVS-IPS": Created("hash:ip", "Addresses on the ipvs interface"),
}


def set_name(base: str, family: Family) -> str:
    """The set's name in a family; two of the IPv6 ones are cut."""
    return base if family is Family.IPV4 else f"KUBE-6-{base.removeprefix('KUBE-')}"[:_LONGEST_NAME]
