"""Which rules a packet meets. That the answers are the kernel's is seen in test_explain_command.py (docs/snat.md)."""

from __future__ import annotations

import pytest

from ipvsproxy.inspect.packet import FROM_NODE, FROM_OUTSIDE, Hook, Packet, RuleWalk
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Kind,
    Match,
    Option,
    Rule,
    RuleLayer,
    RuleTable,
    SetEntry,
    empty_state,
)
from ipvsproxy.plan.rule_parse import unrecognised
from tests.builders import addr

VIP, CLIENT, NODE = addr("203.0.113.20"), addr("198.51.100.7"), addr("192.0.2.11")
PREROUTING = (Hook("nat", "PREROUTING"),)
SYN = Packet(CLIENT, VIP, Protocol.TCP, 80)


def rule(target, *matches, chain="KUBE-SERVICES", **header):
    return Rule(chain, target, matches, **header)


def match(name, option, value="", *, negated=False):
    return Match(name, (Option(option, value, negated),))


def in_set(value, *, negated=False):
    return match("set", "--match-set", value, negated=negated)


def walked(*rules, packet=SYN, entries=(), own=(VIP, NODE), hooks=PREROUTING):
    state = empty_state()
    state[Kind.ACCEPT_ENTRY] = dict.fromkeys(entries, True)
    jump = Rule("PREROUTING", "KUBE-SERVICES")
    state[Kind.RULES][RuleTable("nat", Family.IPV4)] = RuleLayer(("KUBE-SERVICES",), (jump,), rules)
    return RuleWalk(state, frozenset(own)).through(packet, hooks)


def meets(*matches, **about) -> bool:
    """Whether a rule with these matches ends the packet's way; `about` may hold parts of the rule's header."""
    header = {name: about.pop(name) for name in ("source", "destination", "in_interface", "protocol") if name in about}
    return walked(rule("DROP", *matches, **header), **about).ended_by == "DROP"


ENTRY = SetEntry("S", VIP, 6, 80)


@pytest.mark.parametrize(
    "value,entry,packet,is_met",
    [
        pytest.param("S dst,dst", ENTRY, SYN, True, id="an address and a port"),
        pytest.param("S dst,dst", SetEntry("S", VIP, 6, 81), SYN, False, id="another port"),
        pytest.param("S dst,dst", SetEntry("S", VIP, 17, 80), SYN, False, id="another protocol"),
        pytest.param("S dst,dst", SetEntry("S", NODE, 6, 80), SYN, False, id="another address"),
        pytest.param("T dst,dst", ENTRY, SYN, False, id="another set"),
        pytest.param("S src,dst", SetEntry("S", CLIENT, 6, 80), SYN, True, id="the source and the port"),
        pytest.param("S src,dst", ENTRY, SYN, False, id="the source, which is another"),
        pytest.param("S dst", SetEntry("S", VIP), SYN, True, id="an address alone"),
        pytest.param("S src", SetEntry("S", VIP), SYN, False, id="the source alone"),
        pytest.param("S dst", SetEntry("S", port=80), SYN, True, id="a port alone"),
        pytest.param("S dst", SetEntry("S", port=81), SYN, False, id="another port alone"),
        pytest.param("S dst,dst,src", SetEntry("S", VIP, 6, 80, CLIENT), SYN, True, id="a source besides"),
        pytest.param("S dst,dst,src", SetEntry("S", VIP, 6, 80, NODE), SYN, False, id="another source besides"),
        pytest.param(
            "S dst,dst,src", SetEntry("S", VIP, 6, 80, addr("198.51.100.0"), 24), SYN, True, id="a network of sources"
        ),
        pytest.param(
            "S dst,dst,src", SetEntry("S", VIP, 6, 80, addr("198.51.0.0"), 24), SYN, False, id="another network"
        ),
    ],
)
def test_a_set_holds_the_packets_ends(value, entry, packet, is_met):
    assert meets(in_set(value), packet=packet, entries=[entry]) is is_met
    assert meets(in_set(value, negated=True), packet=packet, entries=[entry]) is not is_met


@pytest.mark.parametrize(
    "header,is_met",
    [
        pytest.param({"source": "198.51.100.0/24"}, True, id="a source network"),
        pytest.param({"source": "! 198.51.100.0/24"}, False, id="any source but"),
        pytest.param({"destination": "203.0.113.20/32"}, True, id="a destination"),
        pytest.param({"destination": "10.0.0.0/8"}, False, id="another destination"),
        pytest.param({"protocol": "tcp"}, True, id="the protocol"),
        pytest.param({"protocol": "icmp"}, False, id="another protocol"),
        pytest.param({"in_interface": "! cni0"}, True, id="any interface but, where it is not known"),
        pytest.param({"in_interface": "cni0"}, False, id="an interface, where it is not known"),
    ],
)
def test_a_header_is_about_the_packet(header, is_met):
    assert meets(**header) is is_met


@pytest.mark.parametrize(
    "pattern,is_met",
    [
        pytest.param("cni0", True, id="this one"),
        pytest.param("cni1", False, id="another one"),
        pytest.param("cni+", True, id="by its beginning"),
        pytest.param("! cni+", False, id="any but those"),
    ],
)
def test_an_interface_is_told_where_it_is_known(pattern, is_met):
    assert meets(in_interface=pattern, packet=Packet(CLIENT, VIP, Protocol.TCP, 80, "cni0")) is is_met


@pytest.mark.parametrize(
    "matches,is_met",
    [
        pytest.param([match("addrtype", "--dst-type", "LOCAL")], True, id="to the node itself"),
        pytest.param([match("addrtype", "--src-type", "LOCAL", negated=True)], True, id="not from the node itself"),
        pytest.param([match("physdev", "--physdev-is-in", negated=True)], True, id="not from a bridge's port"),
        pytest.param([match("conntrack", "--ctstate", "NEW")], True, id="new"),
        pytest.param([match("conntrack", "--ctstate", "RELATED,ESTABLISHED")], False, id="not established"),
        pytest.param([match("tcp", "--tcp-flags", "FIN,SYN,RST,ACK SYN", negated=True)], False, id="not in mid-stream"),
        pytest.param([match("comment", "--comment", "x"), match("mark", "--mark", "0x1/0x1")], False, id="not marked"),
    ],
)
def test_the_first_packet_of_a_connection_is(matches, is_met):
    assert meets(*matches) is is_met


def test_a_mark_sets_its_bits_and_clears_them_again():
    mark = rule("MARK", target_options=(Option("--set-xmark", "0x4000/0x4000"),))
    clear = rule("MARK", target_options=(Option("--set-xmark", "0x4000/0x0"),))
    assert walked(mark).packet.mark == 0x4000
    assert walked(mark, clear).packet.mark == 0
    assert walked(mark, rule("DROP", match("mark", "--mark", "0x4000/0x4000"))).is_stopped


def test_return_ends_a_chain_and_the_callers_goes_on():
    inner = Rule("INNER", "RETURN")
    found = walked(rule("INNER"), inner, Rule("INNER", "DROP"), rule("ACCEPT"))
    assert [step.rule for step in found.steps] == [
        "-A PREROUTING -j KUBE-SERVICES",
        "-A KUBE-SERVICES -j INNER",
        "-A INNER -j RETURN",
        "-A KUBE-SERVICES -j ACCEPT",
    ]
    assert (found.ended_by, found.is_stopped) == ("ACCEPT", False)


def test_a_packet_that_is_dropped_meets_no_later_hook():
    found = walked(rule("DROP"), hooks=(*PREROUTING, Hook("nat", "POSTROUTING")))
    assert {step.hook for step in found.steps} == set(PREROUTING)


def test_a_rule_that_is_not_understood_is_told_and_passed_over():
    found = walked(rule("DROP", unrecognised("-m bpf --bytecode …")), rule("ACCEPT"))
    assert [step.is_understood for step in found.steps] == [True, False, True]
    assert found.ended_by == "ACCEPT"


def test_rules_show_without_their_comments():
    (_, step) = walked(rule("ACCEPT", match("comment", "--comment", "kubernetes"))).steps
    assert step.rule == "-A KUBE-SERVICES -j ACCEPT"


@pytest.mark.parametrize("hooks", [FROM_OUTSIDE, FROM_NODE])
def test_without_rules_of_ours_a_packet_meets_none(hooks):
    found = RuleWalk(empty_state(), frozenset()).through(SYN, hooks)
    assert (found.steps, found.packet) == ((), SYN)
