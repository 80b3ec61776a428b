"""Iptables rules as `iptables-save` prints them, and the one order in which a layer's parts are compared.

Dry runs print this text, the golden files hold it, and tests compare it with what the real tool shows of a written
layer. Pure: knows nothing of the kernel. Source of quoting and order: iptables 1.8.9, `xtables_save_string` and
`print_rule`.
"""

from __future__ import annotations

import re

from ipvsproxy.model.kernel_objects import Match, Option, Rule, RuleLayer

_BUILT_IN_CHAINS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")  # the tool's order in every table
_PLAIN_WORD = re.compile(r"[-_0-9A-Za-z]+", re.ASCII)
_ESCAPED = re.compile(r"([\"\\'])")


def rule_text(rule: Rule) -> str:
    """The rule as one `-A CHAIN …` line, without the newline."""
    words = [f"-A {rule.chain}"]
    header = (("-s", rule.source), ("-d", rule.destination), ("-i", rule.in_interface))
    words += [_negatable(flag, value) for flag, value in header if value]
    if rule.protocol:
        words.append(f"-p {rule.protocol}")
    words += [_match_text(match) for match in rule.matches]
    words.append(f"-j {rule.target}")
    words += [_option_text(option) for option in rule.target_options]
    return " ".join(words)


def layer_text(table: str, layer: RuleLayer) -> str:
    """What `iptables-save -t TABLE` shows of the layer: our chains, jumps and rules, with zero counters."""
    ordered = canonical_layer(layer)
    lines = [f"*{table}"]
    lines += [f":{chain} - [0:0]" for chain in ordered.chains]
    lines += [rule_text(rule) for rule in (*ordered.jumps, *ordered.rules)]
    lines.append("COMMIT")
    return "\n".join(lines) + "\n"


def canonical_layer(layer: RuleLayer) -> RuleLayer:
    """The same layer in the kernel's order: chains by name, jumps and rules grouped by chain, their order in it kept.

    Two layers do the same exactly when their canonical forms are equal.
    """
    chains = tuple(sorted(layer.chains))
    return RuleLayer(chains=chains, jumps=_grouped(layer.jumps, _BUILT_IN_CHAINS), rules=_grouped(layer.rules, chains))


def _grouped(rules: tuple[Rule, ...], chains: tuple[str, ...]) -> tuple[Rule, ...]:
    place = {chain: index for index, chain in enumerate(chains)}
    return tuple(sorted(rules, key=lambda rule: place.get(rule.chain, len(place))))


def _negatable(flag: str, value: str) -> str:
    if value.startswith("!"):
        return f"! {flag} {value[1:].lstrip()}"
    return f"{flag} {value}"


def _match_text(match: Match) -> str:
    return " ".join([f"-m {match.name}", *map(_option_text, match.options)])


def _option_text(option: Option) -> str:
    text = f"! {option.name}" if option.negated else option.name
    if option.name == "--comment":
        return f"{text} {_quoted(option.value)}"
    return f"{text} {option.value}" if option.value else text


def _quoted(value: str) -> str:
    if _PLAIN_WORD.fullmatch(value):
        return value
    return '"' + _ESCAPED.sub(r"\\\1", value) + '"'
