"""The fixed iptables layer. Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go; its rules are n1…, f1… here.

A packet to a VIP passes nat PREROUTING or OUTPUT (mark what needs SNAT), filter INPUT (only known ports of a VIP), then
IPVS, which sits at LOCAL_IN and LOCAL_OUT, then nat POSTROUTING (masquerade what is marked). All that varies with
Services stands in ipsets, so the rules depend on the configuration alone and no Service change ever rewrites them.

differs: a rule on a set is always there, also while the set is empty, where it matches nothing; kube-proxy leaves it
out then. differs: a ping to a VIP is answered and TCP to a port that is no Service's is reset at once; kube-proxy sends
port-unreachable. differs: what may pass is accepted, so that a chain policy or a later rule of DROP does not cut
Services off (K28); kube-proxy returns, and so do we with --filter-verdict=return, for policy engines that judge VIP
traffic in INPUT themselves. differs: the node's own packets to a load-balancer IP outside its ranges meet fixed rules
in mangle, before IPVS takes them, instead of one rule for each VIP behind it (f5).
"""

from __future__ import annotations

import msgspec

from ipvsproxy.model.addr import Cidr, family_of
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Match, ObjectId, Option, Rule, RuleLayer, RuleTable, Settings
from ipvsproxy.model.names import DEFAULT_MASQUERADE_BIT, set_name
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.plan.rule_text import canonical_layer

SERVICES = "KUBE-SERVICES"
POSTROUTING = "KUBE-POSTROUTING"
NODE_PORT = "KUBE-NODE-PORT"
LOAD_BALANCER = "KUBE-LOAD-BALANCER"
MARK_MASQ = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
IPVS_FILTER = "KUBE-IPVS-FILTER"
IPVS_OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

NAT_CHAINS = (SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ)
PROXY_CANARY = "KUBE-PROXY-CANARY"  # empty: other node programs wait for it

FILTER_CHAINS = (FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, IPVS_FILTER, IPVS_OUT_FILTER)
MANGLE_CHAINS = (IPVS_OUT_FILTER, PROXY_CANARY)
OWN_CHAINS = {
    RuleTable(table, family): chains
    for table, chains in (("filter", FILTER_CHAINS), ("mangle", MANGLE_CHAINS), ("nat", NAT_CHAINS))
    for family in Family
}

_ESTABLISHED = Match("conntrack", (Option("--ctstate", "RELATED,ESTABLISHED"),))


class LocalTraffic(msgspec.Struct, frozen=True):
    """How a packet from a local pod is told: by source network (one a family), or by the interface it came in on.

    All empty: it cannot be told. `interface` is a name, or a prefix that ends in "+".
    """

    cidrs: tuple[Cidr, ...] = ()
    interface: str = ""


class RuleOptions(msgspec.Struct, frozen=True):
    """All that the layer depends on.

    `accepts`: packets to Services are accepted, not only let pass. `node_port_networks`: destinations of node ports,
    all where a family has none.
    """

    masquerade_bit: int = DEFAULT_MASQUERADE_BIT
    masquerade_all: bool = False
    local: LocalTraffic = LocalTraffic()
    accepts: bool = True
    node_port_networks: tuple[Cidr, ...] = ()


def rule_objects(families: frozenset[Family], options: RuleOptions) -> dict[ObjectId, Settings]:
    """Our part of each table of these families."""
    objects: dict[ObjectId, Settings] = {}
    for family in sorted(families):
        objects[Kind.RULES, RuleTable("filter", family)] = canonical_layer(filter_layer(family, options))
        objects[Kind.RULES, RuleTable("mangle", family)] = canonical_layer(mangle_layer(family))
        objects[Kind.RULES, RuleTable("nat", family)] = canonical_layer(nat_layer(family, options))
    return objects


def nat_layer(family: Family, options: RuleOptions) -> RuleLayer:
    """Which packets are source-NATed. differs: our jumps stand first and are moved up again when others pass them."""
    return RuleLayer(
        NAT_CHAINS,
        (
            _jump("PREROUTING", SERVICES, "kubernetes service portals"),
            _jump("OUTPUT", SERVICES, "kubernetes service portals"),
            _jump("POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        ),
        (
            *_services_rules(family, options),
            *_postrouting_rules(family, options),
            *_node_port_rules(family),
            Rule(LOAD_BALANCER, "RETURN", _commented(family, sets.LOAD_BALANCER_LOCAL, "dst,dst")),  # n4
            Rule(LOAD_BALANCER, MARK_MASQ),  # n18
            Rule(
                MARK_MASQ, "MARK", target_options=(Option("--set-xmark", f"{_mark(options)}/{_mark(options)}"),)
            ),  # n24
        ),
    )


def _services_rules(family: Family, options: RuleOptions) -> tuple[Rule, ...]:
    """n1, n3, n11 to n17, n19, n20: the chain ends for each VIP and port, so that no later rule takes the packet.

    differs: node ports come last, and only where they are served: upstream takes the port of any local address for one
    (n6, n8), and so masquerades what goes to a Service's own port of that number.
    """
    return (
        Rule(SERVICES, "RETURN", source="127.0.0.0/8" if family is Family.IPV4 else "::1/128"),
        Rule(SERVICES, MARK_MASQ, _commented(family, sets.NO_LOCAL_ENDPOINTS, "dst,dst")),
        Rule(SERVICES, LOAD_BALANCER, _commented(family, sets.LOAD_BALANCER, "dst,dst")),
        _cluster_ip_masquerade(family, options),
        Rule(SERVICES, MARK_MASQ, _commented(family, sets.EXTERNAL_IP, "dst,dst")),
        *_external_accepts(family, sets.EXTERNAL_IP),
        *_external_accepts(family, sets.EXTERNAL_IP_LOCAL),
        Rule(SERVICES, "ACCEPT", (_in_set(family, sets.CLUSTER_IP, "dst,dst"),)),
        Rule(SERVICES, "ACCEPT", (_in_set(family, sets.LOAD_BALANCER, "dst,dst"),)),
        # An address may stay in the set for a moment after the node has lost it: what goes there is forwarded.
        Rule(SERVICES, NODE_PORT, (*_commented(family, sets.NODE_PORT_IPS, "dst"), _addrtype("--dst-type"))),
    )


def _cluster_ip_masquerade(family: Family, options: RuleOptions) -> Rule:
    """n11: the one rule that masqueradeAll and detect-local decide.

    Where local pods cannot be told, only what the node itself sends (source = a VIP) is masqueraded (K02).
    """
    source, interface = ("", "") if options.masquerade_all else _from_elsewhere(family, options)
    direction = "dst,dst" if options.masquerade_all or source or interface else "src,dst"
    return Rule(
        SERVICES, MARK_MASQ, _commented(family, sets.CLUSTER_IP, direction), source=source, in_interface=interface
    )


def _from_elsewhere(family: Family, options: RuleOptions) -> tuple[str, str]:
    """Source and incoming interface of what comes from no local pod; both empty where local pods cannot be told."""
    cidr = next((str(cidr) for cidr in options.local.cidrs if family_of(cidr.network) is family), "")
    if cidr:
        return f"! {cidr}", ""
    return "", f"! {options.local.interface}" if options.local.interface else ""


def _external_accepts(family: Family, base: str) -> tuple[Rule, Rule]:
    """n13 to n16: to an external address from neither a bridge nor this host, and to one that is bound here."""
    not_bridged = Match("physdev", (Option("--physdev-is-in", negated=True),))
    return (
        Rule(
            SERVICES,
            "ACCEPT",
            (*_commented(family, base, "dst,dst"), not_bridged, _addrtype("--src-type", negated=True)),
        ),
        Rule(SERVICES, "ACCEPT", (*_commented(family, base, "dst,dst"), _addrtype("--dst-type"))),
    )


def _postrouting_rules(family: Family, options: RuleOptions) -> tuple[Rule, ...]:
    """n2, n21 to n23: hairpin, then return what is not marked, clear our bit (K05: tunnels inherit it), masquerade."""
    mark = _mark(options)
    return (
        Rule(POSTROUTING, "MASQUERADE", _commented(family, sets.LOOP_BACK, "dst,dst,src")),
        Rule(POSTROUTING, "RETURN", (Match("mark", (Option("--mark", f"{mark}/{mark}", negated=True),)),)),
        Rule(POSTROUTING, "MARK", target_options=(Option("--set-xmark", f"{mark}/0x0"),)),
        Rule(
            POSTROUTING,
            "MASQUERADE",
            (_comment("kubernetes service traffic requiring SNAT"),),
            (Option("--random-fully"),),
        ),
    )


def _node_port_rules(family: Family) -> tuple[Rule, ...]:
    """n5 to n10: for each protocol, Local node ports keep their client's address, others are masqueraded."""
    rows = (
        ("tcp", sets.NODE_PORT_LOCAL_TCP, sets.NODE_PORT_TCP, "dst"),
        ("udp", sets.NODE_PORT_LOCAL_UDP, sets.NODE_PORT_UDP, "dst"),
        ("sctp", sets.NODE_PORT_LOCAL_SCTP, sets.NODE_PORT_SCTP, "dst,dst"),
    )
    return tuple(
        Rule(NODE_PORT, target, _commented(family, base, direction), protocol=protocol)
        for protocol, local, cluster, direction in rows
        for base, target in ((local, "RETURN"), (cluster, MARK_MASQ))
    )


def filter_layer(family: Family, options: RuleOptions) -> RuleLayer:
    """What may reach a VIP, what is forwarded, who may use a load balancer's address."""
    marked = Match("mark", (Option("--mark", f"{_mark(options)}/{_mark(options)}"),))
    return RuleLayer(
        FILTER_CHAINS,
        (
            _jump("INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),  # before anything is accepted
            _jump("INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
            _jump("INPUT", NODE_PORT, "kubernetes health check rules"),
            _jump("FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
            _jump("FORWARD", FORWARD, "kubernetes forwarding rules"),
            _jump("OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
        ),
        (
            Rule(FORWARD, "ACCEPT", (_comment("kubernetes forwarding rules"), marked)),  # f6
            Rule(FORWARD, "ACCEPT", (_comment("kubernetes forwarding conntrack rule"), _ESTABLISHED)),  # f7
            Rule(NODE_PORT, "ACCEPT", _commented(family, sets.HEALTH_CHECK_NODE_PORT, "dst")),  # f8
            *(_node_port_accepts(family, options) if options.accepts else ()),
            Rule(PROXY_FIREWALL, SOURCE_RANGES, _commented(family, sets.LOAD_BALANCER_FW, "dst,dst")),  # f1
            *_no_local_endpoints(family, options),
            Rule(SOURCE_RANGES, "RETURN", _commented(family, sets.LOAD_BALANCER_SOURCE_CIDR, "dst,dst,src")),  # f2
            Rule(SOURCE_RANGES, "RETURN", _commented(family, sets.LOAD_BALANCER_SOURCE_IP, "dst,dst,src")),  # f3
            Rule(SOURCE_RANGES, "DROP"),  # f4
            *_vip_filter_rules(family, "ACCEPT" if options.accepts else "RETURN"),
        ),
    )


def _no_local_endpoints(family: Family, options: RuleOptions) -> tuple[Rule, Rule]:
    """External policy Local and no endpoint here: dropped, unless it comes from the node's pods (K25).

    What the node itself sends never comes by here: IPVS takes it on its way out. Only the beginning of a TCP stream is
    dropped: one that is open still belongs to a real server that drains, or else must hear a reset and not silence.
    """
    source, interface = _from_elsewhere(family, options)
    matches = _commented(family, sets.NO_LOCAL_ENDPOINTS, "dst,dst")
    goes_on = Match("tcp", (Option("--tcp-flags", "FIN,SYN,RST,ACK SYN", negated=True),))
    return (
        Rule(PROXY_FIREWALL, "RETURN", (*matches, goes_on), protocol="tcp"),
        Rule(PROXY_FIREWALL, "DROP", matches, source=source, in_interface=interface),
    )


def _node_port_accepts(family: Family, options: RuleOptions) -> tuple[Rule, ...]:
    """Node ports pass whatever comes after our chains (K28), on the addresses that serve them and no others."""
    networks = [cidr for cidr in options.node_port_networks if family_of(cidr.network) is family]
    is_everywhere = not networks or any(cidr.prefix_len == 0 for cidr in networks)
    rows = (("tcp", sets.NODE_PORT_TCP, "dst"), ("udp", sets.NODE_PORT_UDP, "dst"))
    return tuple(
        Rule(NODE_PORT, "ACCEPT", _commented(family, base, direction), protocol=protocol, destination=destination)
        for protocol, base, direction in (*rows, ("sctp", sets.NODE_PORT_SCTP, "dst,dst"))
        for destination in ([""] if is_everywhere else map(str, networks))
    )


def mangle_layer(family: Family) -> RuleLayer:
    """What the node itself may not send to a load-balancer IP: seen here, before IPVS takes it on its way out."""
    return RuleLayer(
        MANGLE_CHAINS,
        (_jump("OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),),
        _out_filter_rules(family),
    )


def _out_filter_rules(family: Family) -> tuple[Rule, ...]:
    """The ranges, but for packets that have a VIP as source: a process that names no address sends from the VIP itself.

    That says nothing of who it is, be it within the ranges. Whether they hold the node's own addresses does, and where
    they do, the VIP stands among the sources of SOURCE-IP. All but the first rule are for restricted frontends alone.
    """
    source = "dst,dst,src"
    rows = (
        ("RETURN", _in_set(family, sets.LOAD_BALANCER_FW, "dst,dst", negated=True)),
        ("RETURN", _in_set(family, sets.LOAD_BALANCER_SOURCE_IP, source)),
        ("DROP", _in_set(family, sets.LOAD_BALANCER_FW, "src,dst")),  # the VIP itself, also where it is not bound
        ("DROP", _in_set(family, sets.IPVS_IPS, "src")),
        ("DROP", _in_set(family, sets.LOAD_BALANCER_SOURCE_CIDR, source, negated=True)),
    )
    return tuple(Rule(IPVS_OUT_FILTER, target, (match,)) for target, match in rows)


def _vip_filter_rules(family: Family, verdict: str) -> tuple[Rule, ...]:
    """f9 to f14: a bound address answers on service ports and to ping, and refuses all else actively (K31)."""
    new = _state("NEW")
    bound = _in_set(family, sets.IPVS_IPS, "dst")
    if family is Family.IPV4:
        protocol, echo, unreachable = "icmp", Match("icmp", (Option("--icmp-type", "8"),)), "icmp-port-unreachable"
    else:
        protocol, echo, unreachable = (
            "ipv6-icmp",
            Match("icmp6", (Option("--icmpv6-type", "128"),)),
            "icmp6-port-unreachable",
        )
    accepts = (sets.LOAD_BALANCER, sets.CLUSTER_IP, sets.EXTERNAL_IP, sets.EXTERNAL_IP_LOCAL)
    return (
        *(Rule(IPVS_FILTER, verdict, (_in_set(family, base, "dst,dst"),)) for base in accepts),
        # Streams to what drains, whose accept entry is gone, and ICMP errors: a policy of DROP must not silence them.
        *((Rule(IPVS_FILTER, "ACCEPT", (_ESTABLISHED, bound)),) if verdict == "ACCEPT" else ()),
        Rule(IPVS_FILTER, "RETURN", (_in_set(family, sets.HEALTH_CHECK_NODE_PORT, "dst"),)),
        Rule(IPVS_FILTER, "RETURN", (echo, bound), protocol=protocol),
        # A stream whose Service went away must hear a reset: port-unreachable does not end an established TCP stream.
        Rule(IPVS_FILTER, "REJECT", (new, bound), (Option("--reject-with", "tcp-reset"),), protocol="tcp"),
        Rule(IPVS_FILTER, "REJECT", (new, bound), (Option("--reject-with", unreachable),)),
    )


def _state(states: str) -> Match:
    return Match("conntrack", (Option("--ctstate", states),))


def _jump(chain: str, target: str, comment: str) -> Rule:
    return Rule(chain, target, (_comment(comment),))


def _comment(text: str) -> Match:
    return Match("comment", (Option("--comment", text),))


def _in_set(family: Family, base: str, direction: str, *, negated: bool = False) -> Match:
    return Match("set", (Option("--match-set", f"{set_name(base, family)} {direction}", negated),))


def _commented(family: Family, base: str, direction: str) -> tuple[Match, Match]:
    return (_comment(sets.COMMENTS[base]), _in_set(family, base, direction))


def _addrtype(option: str, *, negated: bool = False) -> Match:
    return Match("addrtype", (Option(option, "LOCAL", negated),))


def _mark(options: RuleOptions) -> str:
    return f"{1 << options.masquerade_bit:#x}"
