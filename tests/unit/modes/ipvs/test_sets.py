"""The sets' names, types and comments are an interface: kube-proxy's, to the byte."""

from __future__ import annotations

import pytest

from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, SetSpec
from ipvsproxy.model.names import set_name
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.plan.order import accept_entries
from tests.builders import vs_key

# IPv4 name without KUBE-, IPv6 name without KUBE-6-, type, comment. Source: kubernetes v1.37.2 pkg/proxy/ipvs.
TABLE = """\
LOOP-BACK|LOOP-BACK|hash:ip,port,ip|Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose
CLUSTER-IP|CLUSTER-IP|hash:ip,port|Kubernetes service cluster ip + port for masquerade purpose
EXTERNAL-IP|EXTERNAL-IP|hash:ip,port|Kubernetes service external ip + port for masquerade and filter purpose
EXTERNAL-IP-LOCAL|EXTERNAL-IP-LOCAL|hash:ip,port|Kubernetes service external ip + port with externalTrafficPolicy=local
LOAD-BALANCER|LOAD-BALANCER|hash:ip,port|Kubernetes service lb portal
LOAD-BALANCER-FW|LOAD-BALANCER-FW|hash:ip,port|\
Kubernetes service load balancer ip + port for load balancer with sourceRange
LOAD-BALANCER-LOCAL|LOAD-BALANCER-LOCAL|hash:ip,port|\
Kubernetes service load balancer ip + port with externalTrafficPolicy=local
LOAD-BALANCER-SOURCE-IP|LOAD-BALANCER-SOURCE-IP|hash:ip,port,ip|\
Kubernetes service load balancer ip + port + source IP for packet filter purpose
LOAD-BALANCER-SOURCE-CIDR|LOAD-BALANCER-SOURCE-CID|hash:ip,port,net|\
Kubernetes service load balancer ip + port + source cidr for packet filter purpose
NODE-PORT-TCP|NODE-PORT-TCP|bitmap:port|Kubernetes nodeport TCP port for masquerade purpose
NODE-PORT-LOCAL-TCP|NODE-PORT-LOCAL-TCP|bitmap:port|Kubernetes nodeport TCP port with externalTrafficPolicy=local
NODE-PORT-UDP|NODE-PORT-UDP|bitmap:port|Kubernetes nodeport UDP port for masquerade purpose
NODE-PORT-LOCAL-UDP|NODE-PORT-LOCAL-UDP|bitmap:port|Kubernetes nodeport UDP port with externalTrafficPolicy=local
NODE-PORT-SCTP-HASH|NODE-PORT-SCTP-HASH|hash:ip,port|\
Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'
NODE-PORT-LOCAL-SCTP-HASH|NODE-PORT-LOCAL-SCTP-HAS|hash:ip,port|\
Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'
HEALTH-CHECK-NODE-PORT|HEALTH-CHECK-NODE-PORT|bitmap:port|Kubernetes health check node port
IPVS-IPS|IPVS-IPS|hash:ip|Addresses on the ipvs interface
"""
ROWS = [line.split("|") for line in TABLE.splitlines()]


@pytest.mark.parametrize("four,six,type_name,comment", [pytest.param(*row, id=row[0]) for row in ROWS])
def test_a_set_has_kube_proxys_names_type_and_comment(four, six, type_name, comment):
    base = f"KUBE-{four}"
    objects = sets.set_objects(frozenset(Family))
    has_family = type_name != "bitmap:port"
    assert sets.COMMENTS[base] == comment
    assert objects[Kind.SET, base] == SetSpec(type_name, Family.IPV4 if has_family else None)
    assert objects[Kind.SET, f"KUBE-6-{six}"] == SetSpec(type_name, Family.IPV6 if has_family else None)


@pytest.mark.parametrize("family", [pytest.param(family, id=family.label) for family in Family])
def test_a_family_has_kube_proxys_17_sets_and_two_more_of_different_names_that_the_kernel_can_store(family):
    names = {key for _, key in sets.set_objects(frozenset({family}))}
    own = {set_name(base, family) for base in ("KUBE-NO-LOCAL-ENDPOINTS", "KUBE-NODE-PORT-IPS")}
    assert names - {set_name(f"KUBE-{row[0]}", family) for row in ROWS} == own
    assert len(names) == len(ROWS) + 2 == 19
    assert all(len(str(name)) <= 31 for name in names)


def test_the_families_share_no_name():
    names = [key for _, key in sets.set_objects(frozenset(Family))]
    assert len(set(names)) == 38


@pytest.mark.parametrize(
    "type_name,family,options",
    [
        pytest.param("hash:ip", Family.IPV4, "hash:ip family inet hashsize 1024 maxelem 65536", id="a hash, IPv4"),
        pytest.param("hash:ip", Family.IPV6, "hash:ip family inet6 hashsize 1024 maxelem 65536", id="a hash, IPv6"),
        pytest.param("bitmap:port", None, "bitmap:port range 0-65535", id="a bitmap"),
    ],
)
def test_a_set_is_created_with_kube_proxys_options_so_that_either_can_take_over(type_name, family, options):
    assert SetSpec(type_name, family).create_options == options


def test_the_sets_that_the_filter_lets_pass_hold_accept_entries_and_no_other_set_does():
    accepting = {"KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER"}
    assert {row.base for row in sets.SETS if row.entry_kind is Kind.ACCEPT_ENTRY} == accepting
    entries = accept_entries(vs_key("fd00::1", 80))
    assert {entry.set_name for entry in entries} == {set_name(base, Family.IPV6) for base in accepting}


def test_only_the_set_of_bound_addresses_holds_closing_entries():
    assert [row.base for row in sets.SETS if row.entry_kind is Kind.BOUND_ENTRY] == ["KUBE-IPVS-IPS"]


def test_the_sets_that_close_a_frontend_to_some_sources_hold_guard_entries():
    assert set(sets.GUARD_SETS[Family.IPV4]) == {"KUBE-LOAD-BALANCER-FW", "KUBE-NO-LOCAL-ENDPOINTS"}
    assert set(sets.GUARD_SETS[Family.IPV6]) == {"KUBE-6-LOAD-BALANCER-FW", "KUBE-6-NO-LOCAL-ENDPOINTS"}


def test_an_entry_that_is_read_back_has_the_kind_of_its_sets_row():
    assert sets.ENTRY_KIND_BY_NAME["KUBE-6-LOAD-BALANCER-SOURCE-CID"] is Kind.SUPPORT_ENTRY
    assert len(sets.ENTRY_KIND_BY_NAME) == 38
