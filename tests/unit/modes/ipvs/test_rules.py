"""The fixed layer: which rules there are and in which order they must stand. Whole texts: tests/golden."""

from __future__ import annotations

import re

import pytest

from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleLayer, RuleTable
from ipvsproxy.model.names import set_name
from ipvsproxy.modes.ipvs import rules, sets
from ipvsproxy.modes.ipvs.rules import LocalTraffic, RuleOptions, filter_layer, mangle_layer, nat_layer
from ipvsproxy.plan.rule_text import rule_text

FAMILIES = [pytest.param(family, id=family.label) for family in Family]
NO_LOCAL = "KUBE-NO-LOCAL-ENDPOINTS"
BOTH_CIDRS = tuple(cidr for text in ("10.244.0.0/16", "fd00:10:244::/56") if (cidr := parse_cidr(text)))


def texts(layer: RuleLayer, chain: str = "") -> list[str]:
    return [rule_text(rule) for rule in layer.rules if chain in {"", rule.chain}]


def nat(family=Family.IPV4, **options):
    return nat_layer(family, RuleOptions(**options))


def filtering(family=Family.IPV4, **options):
    return filter_layer(family, RuleOptions(**options))


def layers(family=Family.IPV4, **options):
    return nat(family, **options), filtering(family, **options), mangle_layer(family)


# The ids are those of the differences page's source: chain, what it matches on, target. A name alone is a set's.
PRESENT = """\
n1  nat KUBE-SERVICES -s RETURN
n2  nat KUBE-POSTROUTING KUBE-LOOP-BACK MASQUERADE
n3  nat KUBE-SERVICES KUBE-LOAD-BALANCER KUBE-LOAD-BALANCER
n4  nat KUBE-LOAD-BALANCER KUBE-LOAD-BALANCER-LOCAL RETURN
n5  nat KUBE-NODE-PORT KUBE-NODE-PORT-LOCAL-TCP RETURN
n6  nat KUBE-NODE-PORT KUBE-NODE-PORT-TCP KUBE-MARK-MASQ
n7  nat KUBE-NODE-PORT KUBE-NODE-PORT-LOCAL-UDP RETURN
n8  nat KUBE-NODE-PORT KUBE-NODE-PORT-UDP KUBE-MARK-MASQ
n9  nat KUBE-NODE-PORT KUBE-NODE-PORT-LOCAL-SCTP-HASH RETURN
n10 nat KUBE-NODE-PORT KUBE-NODE-PORT-SCTP-HASH KUBE-MARK-MASQ
n11 nat KUBE-SERVICES KUBE-CLUSTER-IP KUBE-MARK-MASQ
n12 nat KUBE-SERVICES KUBE-EXTERNAL-IP KUBE-MARK-MASQ
n13 nat KUBE-SERVICES KUBE-EXTERNAL-IP ACCEPT
n15 nat KUBE-SERVICES KUBE-EXTERNAL-IP-LOCAL ACCEPT
n17 nat KUBE-SERVICES --dst-type KUBE-NODE-PORT
n18 nat KUBE-LOAD-BALANCER - KUBE-MARK-MASQ
n19 nat KUBE-SERVICES KUBE-CLUSTER-IP ACCEPT
n20 nat KUBE-SERVICES KUBE-LOAD-BALANCER ACCEPT
n21 nat KUBE-POSTROUTING --mark RETURN
n22 nat KUBE-POSTROUTING - MARK
n23 nat KUBE-POSTROUTING requiring MASQUERADE
n24 nat KUBE-MARK-MASQ - MARK
f1  filter KUBE-PROXY-FIREWALL KUBE-LOAD-BALANCER-FW KUBE-SOURCE-RANGES-FIREWALL
f2  filter KUBE-SOURCE-RANGES-FIREWALL KUBE-LOAD-BALANCER-SOURCE-CIDR RETURN
f3  filter KUBE-SOURCE-RANGES-FIREWALL KUBE-LOAD-BALANCER-SOURCE-IP RETURN
f4  filter KUBE-SOURCE-RANGES-FIREWALL - DROP
f6  filter KUBE-FORWARD --mark ACCEPT
f7  filter KUBE-FORWARD RELATED,ESTABLISHED ACCEPT
f8  filter KUBE-NODE-PORT KUBE-HEALTH-CHECK-NODE-PORT ACCEPT
f9  filter KUBE-IPVS-FILTER KUBE-LOAD-BALANCER RETURN
f10 filter KUBE-IPVS-FILTER KUBE-CLUSTER-IP RETURN
f11 filter KUBE-IPVS-FILTER KUBE-EXTERNAL-IP RETURN
f12 filter KUBE-IPVS-FILTER KUBE-EXTERNAL-IP-LOCAL RETURN
f13 filter KUBE-IPVS-FILTER KUBE-HEALTH-CHECK-NODE-PORT RETURN
f14 filter KUBE-IPVS-FILTER KUBE-IPVS-IPS REJECT
"""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", [pytest.param(line.split()[1:], id=line.split()[0]) for line in PRESENT.splitlines()])
def test_a_rule_of_kube_proxy_is_there_whatever_the_sets_hold(row, family):
    table, chain, matched, target = row
    layer = nat(family) if table == "nat" else filtering(family, accepts=False)
    word = set_name(matched, family) if matched.startswith("KUBE-") else matched
    found = [
        text
        for text in texts(layer, chain)
        if re.search(rf" -j {target}( |$)", text) and (matched == "-" or word in text.split())
    ]
    assert found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_rule_stands_in_a_chain_of_ours_and_jumps_only_to_those_or_to_a_target(family):
    for layer in layers(family):
        targets = {"ACCEPT", "DROP", "MARK", "MASQUERADE", "REJECT", "RETURN", *layer.chains}
        assert all(rule.chain in layer.chains and rule.target in targets for rule in layer.rules)
        assert all(jump.chain not in layer.chains and jump.target in layer.chains for jump in layer.jumps)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_set_is_matched_by_some_rule(family):
    whole = " ".join(text for layer in layers(family) for text in texts(layer)).split()
    assert [row.base for row in sets.SETS if set_name(row.base, family) not in whole] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_comment_on_a_rule_about_a_set_is_the_sets_own(family):
    by_name = {set_name(row.base, family): row.comment for row in sets.SETS}
    checked = 0
    for rule in (rule for layer in layers(family) for rule in layer.rules):
        options = {option.name: option.value for match in rule.matches for option in match.options}
        if "--comment" in options and "--match-set" in options:
            first = next(o.value for match in rule.matches for o in match.options if o.name == "--match-set")
            assert options["--comment"] == by_name[first.split()[0]]
            checked += 1
    assert checked == 26


# Order


def test_traffic_from_loopback_is_left_alone_first():
    assert texts(nat(), "KUBE-SERVICES")[0] == "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN"
    assert texts(nat(Family.IPV6), "KUBE-SERVICES")[0] == "-A KUBE-SERVICES -s ::1/128 -j RETURN"


@pytest.mark.parametrize("family", FAMILIES)
def test_k04_services_are_looked_up_in_kube_proxys_order_but_for_node_ports_which_come_last(family):
    """Else a Service's own port of the number of another one's node port would be masqueraded."""
    targets = [rule.target for rule in nat(family).rules if rule.chain == "KUBE-SERVICES"]
    assert targets == [
        "RETURN", "KUBE-MARK-MASQ", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-MARK-MASQ", "ACCEPT", "ACCEPT",
        "ACCEPT", "ACCEPT", "ACCEPT", "ACCEPT", "KUBE-NODE-PORT",
    ]  # fmt: skip
    *_, last = texts(nat(family), "KUBE-SERVICES")
    assert f"--match-set {set_name(sets.NODE_PORT_IPS, family)} dst -m addrtype --dst-type LOCAL" in last


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bit,mark", [pytest.param(14, "0x4000", id="bit 14"), pytest.param(31, "0x80000000", id="31")])
def test_k05_what_is_not_marked_returns_then_the_mark_is_cleared_then_masqueraded(family, bit, mark):
    chain = texts(nat(family, masquerade_bit=bit), "KUBE-POSTROUTING")
    masquerade = '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully'
    assert chain[1:] == [
        f"-A KUBE-POSTROUTING -m mark ! --mark {mark}/{mark} -j RETURN",
        f"-A KUBE-POSTROUTING -j MARK --set-xmark {mark}/0x0",
        f"-A KUBE-POSTROUTING {masquerade}",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_k03_the_hairpin_rule_comes_before_the_mark_is_asked(family):
    first = texts(nat(family), "KUBE-POSTROUTING")[0]
    assert f"--match-set {set_name(sets.LOOP_BACK, family)} dst,dst,src -j MASQUERADE" in first


def test_the_mark_is_one_bit_everywhere():
    whole = " ".join([*texts(nat(masquerade_bit=10)), *texts(filtering(masquerade_bit=10))])
    assert set(re.findall(r"0x[0-9a-f]+", whole)) == {"0x400", "0x0"}


@pytest.mark.parametrize("family", FAMILIES)
def test_k31_the_filter_lets_known_ports_and_ping_pass_then_resets_tcp_then_refuses_the_rest(family):
    chain = [rule for rule in filtering(family).rules if rule.chain == "KUBE-IPVS-FILTER"]
    established, _, ping, reset, refuse = map(rule_text, chain[4:])
    assert [rule.target for rule in chain[:6]] == ["ACCEPT"] * 5 + ["RETURN"]
    bound = f"-m set --match-set {set_name(sets.IPVS_IPS, family)} dst"
    icmp, echo, unreachable = {
        Family.IPV4: ("icmp", "-m icmp --icmp-type 8", "icmp-port-unreachable"),
        Family.IPV6: ("ipv6-icmp", "-m icmp6 --icmpv6-type 128", "icmp6-port-unreachable"),
    }[family]
    assert established == f"-A KUBE-IPVS-FILTER -m conntrack --ctstate RELATED,ESTABLISHED {bound} -j ACCEPT"
    assert ping == f"-A KUBE-IPVS-FILTER -p {icmp} {echo} {bound} -j RETURN"
    assert reset == (f"-A KUBE-IPVS-FILTER -p tcp -m conntrack --ctstate NEW {bound} -j REJECT --reject-with tcp-reset")
    assert refuse == f"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {bound} -j REJECT --reject-with {unreachable}"


@pytest.mark.parametrize("family", FAMILIES)
def test_k28_jumps_stand_in_kube_proxys_order_but_for_the_firewall_which_comes_before_anything_is_accepted(family):
    jumps = [(jump.chain, jump.target) for layer in layers(family) for jump in layer.jumps]
    assert jumps == [
        ("PREROUTING", "KUBE-SERVICES"),
        ("OUTPUT", "KUBE-SERVICES"),
        ("POSTROUTING", "KUBE-POSTROUTING"),
        ("INPUT", "KUBE-PROXY-FIREWALL"),
        ("INPUT", "KUBE-IPVS-FILTER"),
        ("INPUT", "KUBE-NODE-PORT"),
        ("FORWARD", "KUBE-PROXY-FIREWALL"),
        ("FORWARD", "KUBE-FORWARD"),
        ("OUTPUT", "KUBE-IPVS-OUT-FILTER"),
        ("OUTPUT", "KUBE-IPVS-OUT-FILTER"),  # in mangle
    ]


# What the configuration decides

MASQUERADE = '-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set'


@pytest.mark.parametrize(
    "options,before,direction",
    [
        pytest.param({}, "", "src,dst", id="nothing tells local pods: only what has a VIP as source"),
        pytest.param({"local": LocalTraffic(cidrs=BOTH_CIDRS)}, "! -s {cidr} ", "dst,dst", id="a network"),
        pytest.param({"local": LocalTraffic(interface="cni0")}, "! -i cni0 ", "dst,dst", id="a bridge"),
        pytest.param({"local": LocalTraffic(interface="cali+")}, "! -i cali+ ", "dst,dst", id="an interface prefix"),
        pytest.param({"masquerade_all": True}, "", "dst,dst", id="everything"),
        pytest.param(
            {"masquerade_all": True, "local": LocalTraffic(cidrs=BOTH_CIDRS)}, "", "dst,dst", id="everything wins"
        ),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_k02_what_is_masqueraded_on_its_way_to_a_cluster_ip(options, before, direction, family):
    cidr = BOTH_CIDRS[0] if family is Family.IPV4 else BOTH_CIDRS[1]
    (rule,) = (text for text in texts(nat(family, **options)) if MASQUERADE in text)
    name = set_name(sets.CLUSTER_IP, family)
    assert rule == f"-A KUBE-SERVICES {before.format(cidr=cidr)}{MASQUERADE} {name} {direction} -j KUBE-MARK-MASQ"


def test_k02_a_family_without_a_network_of_its_own_masquerades_what_the_node_sends():
    local = LocalTraffic(cidrs=BOTH_CIDRS[:1])
    (rule,) = (text for text in texts(nat(Family.IPV6, local=local)) if MASQUERADE in text)
    assert "KUBE-6-CLUSTER-IP src,dst" in rule
    assert " -s " not in rule


@pytest.mark.parametrize(
    "options,before",
    [
        pytest.param({}, "", id="nothing tells local pods: they count as outside"),
        pytest.param({"local": LocalTraffic(cidrs=BOTH_CIDRS)}, "! -s {cidr} ", id="a network"),
        pytest.param({"local": LocalTraffic(interface="cni0")}, "! -i cni0 ", id="a bridge"),
        pytest.param({"masquerade_all": True, "local": LocalTraffic(interface="cali+")}, "! -i cali+ ", id="all"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_k25_what_comes_from_outside_for_no_local_endpoint_is_dropped_and_the_rest_masqueraded(options, before, family):
    cidr = BOTH_CIDRS[0] if family is Family.IPV4 else BOTH_CIDRS[1]
    match = f'-m comment --comment "{sets.COMMENTS[NO_LOCAL]}" -m set --match-set {set_name(NO_LOCAL, family)} dst,dst'
    drop = f"-A KUBE-PROXY-FIREWALL {before.format(cidr=cidr)}{match} -j DROP"
    goes_on = f"-A KUBE-PROXY-FIREWALL -p tcp {match} -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN"
    assert texts(filtering(family, **options), "KUBE-PROXY-FIREWALL")[1:] == [goes_on, drop]
    assert f"-A KUBE-SERVICES {match} -j KUBE-MARK-MASQ" == texts(nat(family, **options), "KUBE-SERVICES")[1]


@pytest.mark.parametrize(
    "networks,destinations",
    [
        pytest.param((), ["", "", ""], id="none: everywhere"),
        pytest.param(("192.0.2.0/24",), ["-d 192.0.2.0/24 "] * 3, id="a network"),
        pytest.param(("192.0.2.0/24", "0.0.0.0/0"), ["", "", ""], id="everything among them"),
        pytest.param(("fd00::/8",), ["", "", ""], id="only the other family's"),
    ],
)
def test_k28_node_ports_are_accepted_where_they_are_served(networks, destinations):
    cidrs = tuple(cidr for text in networks if (cidr := parse_cidr(text)))
    chain = texts(filtering(node_port_networks=cidrs), "KUBE-NODE-PORT")
    assert [text.partition("-p")[0] for text in chain[1:]] == [f"-A KUBE-NODE-PORT {d}" for d in destinations]
    assert [
        f"KUBE-NODE-PORT-{name} " in text for text, name in zip(chain[1:], ("TCP", "UDP", "SCTP-HASH"), strict=True)
    ]
    assert all(text.endswith("-j ACCEPT") for text in chain)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_accepting_only_the_health_check_port_and_forwarded_packets_are_accepted(family):
    layer = filtering(family, accepts=False)
    assert [rule.chain for rule in layer.rules if rule.target == "ACCEPT"] == [
        "KUBE-FORWARD", "KUBE-FORWARD", "KUBE-NODE-PORT",
    ]  # fmt: skip
    assert [rule.target for rule in layer.rules if rule.chain == "KUBE-IPVS-FILTER"][:6] == ["RETURN"] * 6


@pytest.mark.parametrize("family", FAMILIES)
def test_k35_the_nodes_own_packets_meet_the_source_ranges_but_no_vip_counts_as_their_source(family):
    guard, own, ranges = (set_name(f"KUBE-LOAD-BALANCER-{name}", family) for name in ("FW", "SOURCE-IP", "SOURCE-CIDR"))
    assert texts(mangle_layer(family), "KUBE-IPVS-OUT-FILTER") == [
        f"-A KUBE-IPVS-OUT-FILTER -m set ! --match-set {guard} dst,dst -j RETURN",
        f"-A KUBE-IPVS-OUT-FILTER -m set --match-set {own} dst,dst,src -j RETURN",
        f"-A KUBE-IPVS-OUT-FILTER -m set --match-set {guard} src,dst -j DROP",
        f"-A KUBE-IPVS-OUT-FILTER -m set --match-set {set_name(sets.IPVS_IPS, family)} src -j DROP",
        f"-A KUBE-IPVS-OUT-FILTER -m set ! --match-set {ranges} dst,dst,src -j DROP",
    ]


def test_the_chain_that_other_programs_wait_for_is_there_and_empty():
    for family in Family:
        assert "KUBE-PROXY-CANARY" in mangle_layer(family).chains
        assert texts(mangle_layer(family), "KUBE-PROXY-CANARY") == []


# The families


def as_ipv6(text: str) -> str:
    """An IPv4 rule with what IPv6 calls differently."""
    text = re.sub(r"--match-set (\S+)", lambda found: f"--match-set {set_name(found[1], Family.IPV6)}", text)
    text = text.replace("-s 127.0.0.0/8", "-s ::1/128")
    text = text.replace("-p icmp -m icmp --icmp-type 8", "-p ipv6-icmp -m icmp6 --icmpv6-type 128")
    return text.replace("icmp-port-unreachable", "icmp6-port-unreachable")


@pytest.mark.parametrize("layer", [pytest.param(nat, id="nat"), pytest.param(filtering, id="filter")])
def test_ipv6_differs_from_ipv4_only_in_names_of_sets_loopback_and_icmp(layer):
    assert [as_ipv6(text) for text in texts(layer(Family.IPV4))] == texts(layer(Family.IPV6))


def test_only_tables_of_served_families_are_planned():
    objects = rules.rule_objects(frozenset({Family.IPV6}), RuleOptions())
    assert list(objects) == [
        (Kind.RULES, RuleTable("filter", Family.IPV6)),
        (Kind.RULES, RuleTable("mangle", Family.IPV6)),
        (Kind.RULES, RuleTable("nat", Family.IPV6)),
    ]


def test_every_chain_of_the_layers_is_known_as_ours():
    for family in Family:
        assert set(nat(family).chains) == set(rules.OWN_CHAINS[RuleTable("nat", family)])
        assert set(mangle_layer(family).chains) == set(rules.OWN_CHAINS[RuleTable("mangle", family)])
        assert set(filtering(family).chains) == set(rules.OWN_CHAINS[RuleTable("filter", family)])
