"""kube-proxy's rules as iptables-save shows them. Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from ipvsproxy.config.types import DetectLocalMode
from ipvsproxy.model.enums import Family
from tests.golden.given import Address, Given, Network, networks
from tests.golden.upstream_sets import CREATED, set_name

_PROTOCOL_NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132}
_REJECT = {Family.IPV4: "icmp-port-unreachable", Family.IPV6: "icmp6-port-unreachable"}
_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1/128"}

_FILTER = (
    ":KUBE-FORWARD - [0:0]",
    ":KUBE-IPVS-FILTER - [0:0]",
    ":KUBE-IPVS-OUT-FILTER - [0:0]",
    ":KUBE-NODE-PORT - [0:0]",
    ":KUBE-PROXY-FIREWALL - [0:0]",
    ":KUBE-SOURCE-RANGES-FIREWALL - [0:0]",
    '-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER',
    '-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
    '-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT',
    '-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
    '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
    '-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER',
)
_NAT = (
    ":KUBE-LOAD-BALANCER - [0:0]",
    ":KUBE-MARK-MASQ - [0:0]",
    ":KUBE-NODE-PORT - [0:0]",
    ":KUBE-POSTROUTING - [0:0]",
    ":KUBE-SERVICES - [0:0]",
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
)


class OutRule(NamedTuple):
    """A load-balancer IP and port that the node's own packets may not reach."""

    address: Address
    protocol: str
    port: int

    def __str__(self) -> str:
        ip, number = self.address, _PROTOCOL_NUMBERS[self.protocol]
        source = f"{ip}/{ip.max_prefixlen}"
        return f"-A KUBE-IPVS-OUT-FILTER -s {source} -m ipvs --vproto {number} --vaddr {ip} --vport {self.port} -j DROP"


def rules(given: Given, family: Family, filled: Collection[str], out_rules: Collection[OutRule]) -> Iterator[str]:
    """Both tables; `filled` names the sets that have entries."""
    writer = _Writer(given, family, filled)
    yield from ("*filter", *_FILTER, *writer.filter_rules(), *map(str, out_rules), "COMMIT")
    yield from ("*nat", *_NAT, *writer.nat_rules(), "COMMIT")


class _Writer:
    def __init__(self, given: Given, family: Family, filled: Collection[str]) -> None:
        self._given, self._family, self._filled = given, family, filled
        self._mark = f"{1 << given.config.masquerade_bit:#x}"

    def _match(self, base: str, directions: str) -> str:
        return f"-m set --match-set {set_name(base, self._family)} {directions}"

    def _on(self, chain: str, base: str, directions: str, target: str, *, first: str = "", more: str = "") -> list[str]:
        """A rule on a set under its comment, where the set has entries. `first` stands before the comment."""
        if base not in self._filled:
            return []
        comment = CREATED[base].comment.replace("'", "\\'")
        words = [f"-A {chain}", first, f'-m comment --comment "{comment}"', self._match(base, directions), more]
        return [" ".join((*filter(None, words), f"-j {target}"))]

    def filter_rules(self) -> Iterator[str]:
        mark = f"--mark {self._mark}/{self._mark}"
        yield f'-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark {mark} -j ACCEPT'
        comment = '-m comment --comment "kubernetes forwarding conntrack rule"'
        yield f"-A KUBE-FORWARD {comment} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        for base in ("KUBE-LOAD-BALANCER", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL"):
            yield f"-A KUBE-IPVS-FILTER {self._match(base, 'dst,dst')} -j RETURN"
        yield f"-A KUBE-IPVS-FILTER {self._match('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j RETURN"
        rest = f"{self._match('KUBE-IPVS-IPS', 'dst')} -j REJECT --reject-with {_REJECT[self._family]}"
        yield f"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {rest}"
        comment = '-m comment --comment "Kubernetes health check node port"'
        yield f"-A KUBE-NODE-PORT {comment} {self._match('KUBE-HEALTH-CHECK-NODE-PORT', 'dst')} -j ACCEPT"
        yield from self._on("KUBE-PROXY-FIREWALL", "KUBE-LOAD-BALANCER-FW", "dst,dst", "KUBE-SOURCE-RANGES-FIREWALL")
        for base in ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-LOAD-BALANCER-SOURCE-IP"):
            yield from self._on("KUBE-SOURCE-RANGES-FIREWALL", base, "dst,dst,src", "RETURN")
        yield "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP"

    def nat_rules(self) -> Iterator[str]:
        yield from self._on("KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL", "dst,dst", "RETURN")
        yield "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ"
        yield f"-A KUBE-MARK-MASQ -j MARK --set-xmark {self._mark}/{self._mark}"
        for protocol, suffix, directions in (("tcp", "", "dst"), ("udp", "", "dst"), ("sctp", "-HASH", "dst,dst")):
            name, first = protocol.upper() + suffix, f"-p {protocol}"
            yield from self._on("KUBE-NODE-PORT", f"KUBE-NODE-PORT-LOCAL-{name}", directions, "RETURN", first=first)
            yield from self._on("KUBE-NODE-PORT", f"KUBE-NODE-PORT-{name}", directions, "KUBE-MARK-MASQ", first=first)
        yield from self._on("KUBE-POSTROUTING", "KUBE-LOOP-BACK", "dst,dst,src", "MASQUERADE")
        yield f"-A KUBE-POSTROUTING -m mark ! --mark {self._mark}/{self._mark} -j RETURN"
        yield f"-A KUBE-POSTROUTING -j MARK --set-xmark {self._mark}/0x0"
        comment = '-m comment --comment "kubernetes service traffic requiring SNAT"'
        yield f"-A KUBE-POSTROUTING {comment} -j MASQUERADE --random-fully"
        yield from self._services_rules()

    def _services_rules(self) -> Iterator[str]:
        chain = "KUBE-SERVICES"
        yield f"-A {chain} -s {_LOOPBACK[self._family]} -j RETURN"
        yield from self._on(chain, "KUBE-LOAD-BALANCER", "dst,dst", "KUBE-LOAD-BALANCER")
        directions, first = self._cluster_ip_variant()
        yield from self._on(chain, "KUBE-CLUSTER-IP", directions, "KUBE-MARK-MASQ", first=first)
        yield from self._on(chain, "KUBE-EXTERNAL-IP", "dst,dst", "KUBE-MARK-MASQ")
        from_outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL"
        for base in ("KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL"):
            for more in (from_outside, "-m addrtype --dst-type LOCAL"):
                yield from self._on(chain, base, "dst,dst", "ACCEPT", more=more)
        yield f"-A {chain} -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"
        for base in ("KUBE-CLUSTER-IP", "KUBE-LOAD-BALANCER"):
            if base in self._filled:
                yield f"-A {chain} {self._match(base, 'dst,dst')} -j ACCEPT"

    def _cluster_ip_variant(self) -> tuple[str, str]:
        """Directions of the match, and what stands before it."""
        config = self._given.config
        if config.masquerade_all:
            return "dst,dst", ""
        if config.detect_local_mode is DetectLocalMode.BRIDGE_INTERFACE:
            return "dst,dst", f"! -i {config.bridge_interface}"
        if config.detect_local_mode is DetectLocalMode.INTERFACE_NAME_PREFIX:
            return "dst,dst", f"! -i {config.interface_name_prefix}+"
        pods = [str(cidr) for cidr in config.cluster_cidrs]
        if config.detect_local_mode is DetectLocalMode.NODE_CIDR:
            pods = (self._given.node.get("spec") or {}).get("podCIDRs") or []
        mine = [cidr for cidr in networks(pods) if _is_of(cidr, self._family)]
        return ("dst,dst", f"! -s {mine[0]}") if mine else ("src,dst", "")


def _is_of(cidr: Network, family: Family) -> bool:
    return cidr.version == (4 if family is Family.IPV4 else 6)
