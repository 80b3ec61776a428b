"""From configuration to options, and the fixed layer as a whole."""

from __future__ import annotations

import pytest

from ipvsproxy.cluster.node import HostView, NodeView
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.model.addr import parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, RuleLayer, RuleTable
from ipvsproxy.modes.ipvs.mode import IpvsMode, ipvs_options
from ipvsproxy.plan.desired import FIXED
from ipvsproxy.plan.rule_text import rule_text
from tests.builders import addr

BOTH = frozenset(Family)
NODE = NodeView(
    "n1", pod_cidrs=tuple(cidr for text in ("10.244.1.0/24", "fd00:244:1::/64") if (cidr := parse_cidr(text)))
)


FOUR_ADDRESSES = ["192.0.2.11", "198.51.100.11", "2001:db8:1::11", "2001:db8:2::11"]


def mode(*flags, families=BOTH, kernel_release=None):
    command = parse_command_line(["plan", "-o", "json", "--manifests=x", *flags])
    assert isinstance(command, Plan)
    return IpvsMode(ipvs_options(command.config, families, kernel_release))


def masquerade_rule(plan, family):
    layer = plan.objects[Kind.RULES, RuleTable("nat", family)]
    assert isinstance(layer, RuleLayer)
    (text,) = (t for t in map(rule_text, layer.rules) if "cluster ip + port for masquerade" in t)
    return text


@pytest.mark.parametrize(
    "flags,four,six",
    [
        pytest.param([], "src,dst", "src,dst", id="nothing given"),
        pytest.param(["--cluster-cidr=10.244.0.0/16"], "! -s 10.244.0.0/16 ", "src,dst", id="one network"),
        pytest.param(
            ["--cluster-cidr=10.244.0.0/16,fd00:244::/56"], "! -s 10.244.0.0/16 ", "! -s fd00:244::/56 ", id="both"
        ),
        pytest.param(["--detect-local-mode=NodeCIDR"], "! -s 10.244.1.0/24 ", "! -s fd00:244:1::/64 ", id="NodeCIDR"),
        pytest.param(
            ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0", "--cluster-cidr=10.244.0.0/16"],
            "! -i cni0 ", "! -i cni0 ", id="BridgeInterface takes no network",
        ),
        pytest.param(
            ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali"],
            "! -i cali+ ", "! -i cali+ ", id="InterfaceNamePrefix",
        ),
        pytest.param(["--masquerade-all", "--cluster-cidr=10.244.0.0/16"], " dst,dst", " dst,dst", id="masquerade-all"),
    ],
)  # fmt: skip
def test_k02_local_traffic_is_told_as_the_flags_say(flags, four, six):
    plan = mode(*flags).fixed(NODE, HostView())
    assert four in masquerade_rule(plan, Family.IPV4)
    assert six in masquerade_rule(plan, Family.IPV6)


def test_nodecidr_without_a_node_object_masquerades_what_the_node_sends():
    plan = mode("--detect-local-mode=NodeCIDR").fixed(NodeView("n1"), HostView())
    assert "src,dst" in masquerade_rule(plan, Family.IPV4)


def test_the_fixed_layer_is_owned_by_no_service():
    assert mode().fixed(NODE, HostView()).owner == FIXED


def test_the_fixed_layer_holds_sysctls_38_sets_six_tables_and_the_link():
    kinds = [kind for kind, _ in mode().fixed(NODE, HostView()).objects]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts == {Kind.SYSCTL: 4, Kind.SET: 38, Kind.RULES: 6, Kind.LINK: 1}


def test_k55_a_node_of_one_family_has_the_sets_and_rules_of_that_family_alone():
    keys = list(mode(families=frozenset({Family.IPV4})).fixed(NODE, HostView()).objects)
    assert [key for kind, key in keys if kind is Kind.RULES] == [
        RuleTable("filter", Family.IPV4),
        RuleTable("mangle", Family.IPV4),
        RuleTable("nat", Family.IPV4),
    ]
    assert len([key for kind, key in keys if kind is Kind.SET]) == 19
    assert not any(str(key).startswith("KUBE-6-") for _, key in keys)


def test_k01_the_kernels_release_decides_about_reuse_mode():
    key = (Kind.SYSCTL, "net.ipv4.vs.conn_reuse_mode")
    assert mode(kernel_release=(5, 4)).fixed(NODE, HostView()).objects[key] == "0"
    assert key not in mode(kernel_release=(6, 12)).fixed(NODE, HostView()).objects


@pytest.mark.parametrize(
    "flags,serving",
    [
        pytest.param([], FOUR_ADDRESSES, id="nothing given"),
        pytest.param(["--nodeport-addresses=all"], FOUR_ADDRESSES, id="all"),
        pytest.param(["--nodeport-addresses=localhost"], [], id="localhost"),
        pytest.param(
            ["--nodeport-addresses=198.51.100.0/24"],
            ["198.51.100.11", "2001:db8:1::11", "2001:db8:2::11"],
            id="a network",
        ),
        pytest.param(["--nodeport-addresses=primary"], ["198.51.100.11", "2001:db8:1::11"], id="primary: one a family"),
    ],
)
def test_k23_node_ports_are_served_where_the_flags_say(flags, serving):
    # 192.0.2.11 is known to the API too, but comes second: an ExternalIP, or a second InternalIP.
    node = NodeView("n1", addresses=tuple(map(addr, ("198.51.100.11", "2001:db8:1::11", "192.0.2.11"))))
    interfaces = frozenset(map(addr, (*FOUR_ADDRESSES, "127.0.0.1", "::1", "fe80::1")))
    view = mode(*flags).host_view(interfaces, node)
    assert view.addresses == interfaces
    assert sorted(view.node_port_addresses) == sorted(map(addr, serving))


def test_a_node_that_changes_nothing_changes_no_plan():
    first = mode("--cluster-cidr=10.244.0.0/16")
    assert first.fixed(NODE, HostView()) == first.fixed(NodeView("n1"), HostView())


@pytest.mark.parametrize(
    "flags,families",
    [
        pytest.param([], BOTH, id="nothing given"),
        pytest.param(["--cluster-cidr=10.244.0.0/16"], {Family.IPV6}, id="one network"),
        pytest.param(["--cluster-cidr=10.244.0.0/16,fd00:244::/56"], set(), id="both"),
        pytest.param(["--detect-local-mode=NodeCIDR"], {Family.IPV6}, id="the Node tells of one"),
        pytest.param(
            ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"], set(), id="an interface tells"
        ),
    ],
)
def test_k25_the_families_in_which_local_pods_cannot_be_told_are_known(flags, families):
    node = NodeView("n1", pod_cidrs=NODE.pod_cidrs[:1])
    assert mode(*flags).families_that_cannot_tell_pods(node) == families
    only_four = mode(*flags, families=frozenset({Family.IPV4}))
    assert only_four.families_that_cannot_tell_pods(node) == families & {Family.IPV4}


@pytest.mark.parametrize(
    "flags, drain_s",
    [
        pytest.param([], 900.0, id="not given"),
        pytest.param(["--ipvs-drain-timeout=1m30s"], 90.0, id="a minute and a half"),
        pytest.param(["--ipvs-drain-timeout=0"], 0.0, id="at once"),
    ],
)
def test_the_drain_time_is_the_flags(flags, drain_s):
    assert mode(*flags).drain_s == drain_s
