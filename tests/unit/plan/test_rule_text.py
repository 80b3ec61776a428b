"""Rules as iptables-save prints them. tests/contract/test_rules.py compares the text with the real tool's."""

from __future__ import annotations

import pytest

from ipvsproxy.model.kernel_objects import Match, Option, Rule, RuleLayer
from ipvsproxy.plan.rule_text import canonical_layer, layer_text, rule_text


def comment(text: str) -> Match:
    return Match("comment", (Option("--comment", text),))


@pytest.mark.parametrize(
    "rule,text",
    [
        pytest.param(Rule("A", "RETURN"), "-A A -j RETURN", id="nothing but a target"),
        pytest.param(
            Rule("A", "ACCEPT", source="! 10.244.0.0/16", in_interface="! cbr0", protocol="tcp"),
            "-A A ! -s 10.244.0.0/16 ! -i cbr0 -p tcp -j ACCEPT",
            id="source, interface and protocol, in this order, negated",
        ),
        pytest.param(
            Rule("A", "RETURN", (Match("mark", (Option("--mark", "0x4000/0x4000", negated=True),)),)),
            "-A A -m mark ! --mark 0x4000/0x4000 -j RETURN",
            id="a negated option",
        ),
        pytest.param(
            Rule("A", "RETURN", (Match("physdev", (Option("--physdev-is-in", negated=True),)),)),
            "-A A -m physdev ! --physdev-is-in -j RETURN",
            id="an option without a value",
        ),
        pytest.param(
            Rule("A", "MASQUERADE", (comment("x"),), (Option("--random-fully"),)),
            "-A A -m comment --comment x -j MASQUERADE --random-fully",
            id="a target with an option",
        ),
        pytest.param(
            Rule("A", "DROP", (Match("set", (Option("--match-set", "KUBE-CLUSTER-IP dst,dst"),)), comment("b c"))),
            '-A A -m set --match-set KUBE-CLUSTER-IP dst,dst -m comment --comment "b c" -j DROP',
            id="matches in the order given",
        ),
    ],
)
def test_a_rule_is_one_line(rule, text):
    assert rule_text(rule) == text


@pytest.mark.parametrize(
    "value,text",
    [
        pytest.param("plain-word_1", "plain-word_1", id="letters, digits, dash, underscore"),
        pytest.param("two words", '"two words"', id="a blank"),
        pytest.param("type 'hash ip:port'", r'"type \'hash ip:port\'"', id="single quotes"),
        pytest.param('a "b" \\ c', r'"a \"b\" \\ c"', id="double quotes and backslashes"),
        pytest.param("ä", '"ä"', id="a letter outside ASCII"),
        pytest.param("", '""', id="nothing"),
    ],
)
def test_comments_are_quoted_as_the_tool_quotes_them(value, text):
    assert rule_text(Rule("A", "DROP", (comment(value),))) == f"-A A -m comment --comment {text} -j DROP"


LAYER = RuleLayer(
    chains=("KUBE-B", "KUBE-A"),
    jumps=(Rule("POSTROUTING", "KUBE-B"), Rule("PREROUTING", "KUBE-A"), Rule("PREROUTING", "KUBE-B")),
    rules=(Rule("KUBE-B", "DROP"), Rule("KUBE-A", "RETURN"), Rule("KUBE-B", "ACCEPT")),
)


def test_a_layer_is_printed_in_the_tools_order():
    assert layer_text("nat", LAYER).splitlines() == [
        "*nat",
        ":KUBE-A - [0:0]",
        ":KUBE-B - [0:0]",
        "-A PREROUTING -j KUBE-A",
        "-A PREROUTING -j KUBE-B",
        "-A POSTROUTING -j KUBE-B",
        "-A KUBE-A -j RETURN",
        "-A KUBE-B -j DROP",
        "-A KUBE-B -j ACCEPT",
        "COMMIT",
    ]


def test_layers_that_differ_in_grouping_only_have_one_canonical_form():
    regrouped = RuleLayer(LAYER.chains[::-1], (*LAYER.jumps[1:], LAYER.jumps[0]), (LAYER.rules[1], *LAYER.rules[::2]))
    assert regrouped != LAYER
    assert canonical_layer(regrouped) == canonical_layer(LAYER) == canonical_layer(canonical_layer(LAYER))


def test_order_inside_a_chain_makes_a_different_layer():
    turned = RuleLayer(LAYER.chains, LAYER.jumps, LAYER.rules[::-1])
    assert canonical_layer(turned) != canonical_layer(LAYER)
