"""Which flavour is found, what is left in the other one, and what only nf_tables does: on the real kernel."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest
import structlog

from ipvsproxy.config.types import IptablesBackend
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_backend import choose_rules, remove_leftovers, report_leftovers
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Match, Operation, Option, Rule, RuleLayer, RuleTable, Verb

NAT = RuleTable("nat", Family.IPV4)
FILTER6 = RuleTable("filter", Family.IPV6)
LAYER = RuleLayer(
    ("KUBE-A", "KUBE-B"),
    (Rule("OUTPUT", "KUBE-A", (Match("comment", (Option("--comment", "ours"),)),)), Rule("OUTPUT", "KUBE-B")),
    (Rule("KUBE-A", "KUBE-B"), Rule("KUBE-B", "RETURN", protocol="tcp")),
)
CHAINS = dict.fromkeys((NAT, FILTER6), LAYER.chains)
WRITES = [Operation(Verb.ADD, Kind.RULES, key, LAYER) for key in CHAINS]
LEGACY, NFT = IptablesBackend.LEGACY, IptablesBackend.NFT

pytestmark = pytest.mark.usefixtures("network_namespace", "real_kernel")


def run(*words: str, given: str = "") -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, input=given).stdout


def everything() -> list[str]:
    """All tables that exist in both flavours."""
    programs = [f"{program}-{flavour}-save" for flavour in ("legacy", "nft") for program in ("iptables", "ip6tables")]
    return [line for program in programs for line in run(program).splitlines() if not line.startswith("#")]


def rules_of(backend: IptablesBackend) -> LegacyRules | NftRules:
    return NftRules(CHAINS) if backend is NFT else LegacyRules(CHAINS)


@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
@pytest.mark.parametrize("chain", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
@pytest.mark.parametrize("backend", [LEGACY, NFT])
def test_the_flavour_of_the_kubelet_is_chosen(backend, chain, program):
    run(f"{program}-{backend}", "-t", "mangle", "-N", chain)
    before = everything()
    with structlog.testing.capture_logs() as logs:
        chosen = choose_rules(IptablesBackend.AUTO, CHAINS)
    assert chosen.backend is backend
    assert isinstance(chosen.rules, NftRules if backend is NFT else LegacyRules)
    (entry,) = [entry for entry in logs if entry["event"] == "iptables_backend_chosen"]
    assert chain in entry["reason"]
    assert everything() == before


def test_the_kubelets_nft_chain_counts_more_than_one_in_the_legacy_tables():
    """As in the wrappers of Kubernetes' own images: legacy ones may be of a time before."""
    for backend in (LEGACY, NFT):
        run(f"iptables-{backend}", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    assert choose_rules(IptablesBackend.AUTO, CHAINS).backend is NFT


def test_without_a_kubelet_nft_is_chosen_and_no_table_comes_to_be():
    assert choose_rules(IptablesBackend.AUTO, CHAINS).backend is NFT
    assert report_leftovers(NFT, CHAINS) == []
    assert everything() == []


@pytest.mark.parametrize("backend", [LEGACY, NFT])
def test_what_the_configuration_says_is_not_questioned(backend):
    other = LEGACY if backend is NFT else NFT
    run(f"iptables-{other}", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    assert choose_rules(backend, CHAINS).backend is backend


@pytest.mark.parametrize("used,other", [(LEGACY, NFT), (NFT, LEGACY)])
def test_our_chains_in_the_other_flavour_are_reported_and_removed(used, other):
    assert rules_of(used).apply(WRITES) == rules_of(other).apply(WRITES) == [0, 0]
    with structlog.testing.capture_logs() as logs:
        assert report_leftovers(used, CHAINS) == sorted(CHAINS)
    told = [(entry["table"], entry["backend"], entry["jumps"]) for entry in logs if entry["log_level"] == "warning"]
    assert told == [(str(key), other, 2) for key in sorted(CHAINS)]
    assert remove_leftovers(used, CHAINS) == 0
    assert report_leftovers(used, CHAINS) == []
    assert rules_of(used).read() == {Kind.RULES: dict.fromkeys(CHAINS, LAYER)}


@pytest.mark.parametrize("used", [LEGACY, NFT])
def test_a_host_without_anything_of_ours_in_the_other_flavour_is_left_as_it_is(used):
    other = LEGACY if used is NFT else NFT
    run(f"iptables-{other}", "-t", "nat", "-N", "FOREIGN")
    before = everything()
    assert report_leftovers(used, CHAINS) == []
    assert remove_leftovers(used, CHAINS) == 0
    assert everything() == before


@pytest.mark.parametrize("used,other", [(LEGACY, NFT), (NFT, LEGACY)])
def test_a_leftover_that_a_foreign_rule_leads_to_is_counted_as_not_removed(used, other):
    rules_of(other).apply(WRITES)
    run(f"iptables-{other}", "-t", "nat", "-N", "FOREIGN")
    run(f"iptables-{other}", "-t", "nat", "-A", "FOREIGN", "-j", "KUBE-B")
    assert remove_leftovers(used, CHAINS) == 1
    assert report_leftovers(used, CHAINS) == [NAT]


def test_reading_nf_tables_makes_no_table():
    rules = rules_of(NFT)
    assert rules.families == frozenset(Family)
    assert rules.read() == {Kind.RULES: {}}
    assert rules.apply([Operation(Verb.DELETE, Kind.RULES, key) for key in CHAINS]) == [0, 0]
    assert everything() == []


def test_a_refused_line_leaves_the_whole_nft_table_as_it_was():
    rules = rules_of(NFT)
    rules.apply(WRITES)
    before = everything()
    broken = RuleLayer(LAYER.chains, LAYER.jumps, (*LAYER.rules, Rule("KUBE-A", "MASQUERADE")))  # not in filter
    with structlog.testing.capture_logs() as logs:
        assert rules.apply([Operation(Verb.EDIT, Kind.RULES, FILTER6, broken)]) == [errno.EINVAL]
    assert "-A KUBE-A -j MASQUERADE" in logs[0]["reason"]
    assert everything() == before


def test_copies_of_a_jump_in_nf_tables_are_all_replaced_by_the_one_on_top():
    rules = rules_of(NFT)
    rules.apply(WRITES)
    run("iptables-nft", "-t", "nat", "-I", "OUTPUT", "-j", "ACCEPT")
    for _ in range(2):
        run("iptables-nft", "-t", "nat", "-A", "OUTPUT", "-j", "KUBE-B")
    run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-g", "KUBE-B")
    assert rules.apply(WRITES) == [0, 0]
    lines = run("iptables-nft-save", "-t", "nat").splitlines()
    hooks = [line for line in lines if line.startswith(("-A OUTPUT", "-A PREROUTING"))]
    ours = ["-A OUTPUT -m comment --comment ours -j KUBE-A", "-A OUTPUT -j KUBE-B"]
    assert hooks == [*ours, "-A OUTPUT -j ACCEPT"]


def test_a_thousand_foreign_rules_stay_and_ours_stand_above_them():
    foreign = "".join(f"-A OUTPUT -d 198.51.{n // 250}.{n % 250 + 1}/32 -p tcp -j RETURN\n" for n in range(1000))
    run("iptables-nft-restore", "--noflush", given=f"*nat\n{foreign}COMMIT\n")
    rules = rules_of(NFT)
    assert rules.apply(WRITES) == [0, 0]
    lines = [line for line in run("iptables-nft-save", "-t", "nat").splitlines() if line.startswith("-A OUTPUT")]
    assert lines[2:] == foreign.splitlines()
    assert rules.read() == {Kind.RULES: dict.fromkeys(CHAINS, LAYER)}


def test_a_kernel_without_legacy_tables_has_nothing_of_ours_there(monkeypatch):
    """RHEL 8 and newer: no such file in /proc."""
    nowhere = dict.fromkeys(Family, Path("/nowhere"))
    monkeypatch.setattr("ipvsproxy.kernel.iptables_backend._LEGACY_NAMES", nowhere)
    assert choose_rules(IptablesBackend.AUTO, CHAINS).backend is NFT
    assert report_leftovers(NFT, CHAINS) == []
