"""What is given to iptables-nft's programs and made of what they say; the programs here are scripts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel.iptables_nft import NftRules, error_number, restore_text, stuck_chains
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, Match, Operation, Option, Rule, RuleLayer, RuleTable, Verb
from ipvsproxy.plan.rule_parse import SavedTable, parse_save

KEY = RuleTable("nat", Family.IPV4)
OWN = {KEY: ("KUBE-A", "KUBE-B")}
LAYER = RuleLayer(
    ("KUBE-A",),
    (Rule("OUTPUT", "KUBE-A", (Match("comment", (Option("--comment", "to ours"),)),)), Rule("OUTPUT", "KUBE-A")),
    (Rule("KUBE-A", "RETURN"), Rule("KUBE-A", "ACCEPT", protocol="tcp")),
)
WRITE = Operation(Verb.ADD, Kind.RULES, KEY, LAYER)
EMPTY = "*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
THERE = """*nat
:OUTPUT ACCEPT [0:0]
:KUBE-A - [0:0]
-A OUTPUT -m comment --comment "to ours" -j KUBE-A
-A OUTPUT -j KUBE-A
-A OUTPUT -p udp -j ACCEPT
-A KUBE-A -j RETURN
-A KUBE-A -p tcp -j ACCEPT
COMMIT
"""
FOR_NEW_CHAINS = """*nat
:KUBE-A - [0:0]
-A KUBE-A -j RETURN
-A KUBE-A -p tcp -j ACCEPT
-I OUTPUT -j KUBE-A
-I OUTPUT -m comment --comment "to ours" -j KUBE-A
COMMIT
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], None]:
    """`script("save", shell text)` makes a program; one of IPv4's, as the tests use that family alone."""

    def make(verb: str, text: str) -> None:
        program = tmp_path / f"iptables-nft-{verb}"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)

    make("save", f"cat {tmp_path}/saved")
    make("restore", f'echo "$0 $@ $LC_ALL" > {tmp_path}/called; cat > {tmp_path}/given')
    return make


@pytest.fixture
def rules(tmp_path: Path, script: Callable) -> NftRules:  # noqa: ARG001  # makes the programs
    return NftRules(OWN, path=f"{tmp_path}:{os.defpath}")


def given(tmp_path: Path) -> str | None:
    """What the last restore read; None where there was none."""
    path = tmp_path / "given"
    return path.read_text() if path.exists() else None


def test_a_layer_is_one_restore_that_leaves_alone_what_it_does_not_name(rules, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    assert rules.apply([WRITE]) == [0]
    assert given(tmp_path) == FOR_NEW_CHAINS
    assert (tmp_path / "called").read_text() == f"{tmp_path}/iptables-nft-restore --noflush C\n"


def test_what_stands_already_is_not_written(rules, tmp_path):
    (tmp_path / "saved").write_text(THERE)
    assert rules.apply([WRITE]) == [0]
    assert given(tmp_path) is None


def test_what_was_never_there_is_deleted_without_a_restore(rules, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    assert rules.apply([Operation(Verb.DELETE, Kind.RULES, KEY)]) == [0]
    assert given(tmp_path) is None


def test_old_jumps_are_deleted_by_their_text_and_old_chains_after_them():
    saved = parse_save(
        THERE.replace(":KUBE-A", ":KUBE-B - [0:0]\n:KUBE-A").replace("-p udp -j ACCEPT", "-p udp -g KUBE-B")
    )["nat"]
    lines = restore_text("nat", saved, frozenset(OWN[KEY]), LAYER).splitlines()
    assert lines == [
        "*nat",
        ":KUBE-A - [0:0]",
        ":KUBE-B - [0:0]",
        '-D OUTPUT -m comment --comment "to ours" -j KUBE-A',
        "-D OUTPUT -j KUBE-A",
        "-D OUTPUT -p udp -g KUBE-B",
        "-X KUBE-B",
        *FOR_NEW_CHAINS.splitlines()[2:],
    ]


def test_a_chain_that_a_foreign_one_leads_to_is_emptied_only():
    saved = parse_save(
        "*nat\n:FOREIGN - [0:0]\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-A FOREIGN -j KUBE-A\n-A KUBE-A -j KUBE-B\nCOMMIT\n"
    )["nat"]
    own = frozenset(OWN[KEY])
    nothing = RuleLayer((), (), ())
    assert stuck_chains(saved, own, nothing) == ["KUBE-A"]
    text = restore_text("nat", saved, own, nothing)
    assert text == "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n-X KUBE-B\nCOMMIT\n"
    assert stuck_chains(saved, own, LAYER) == []


def test_a_foreign_rule_may_lead_to_a_chain_that_stays():
    saved = SavedTable(["OUTPUT"], ["FOREIGN"], {"OUTPUT": [], "FOREIGN": ["-A FOREIGN -j KUBE-A"]})
    assert restore_text("nat", saved, frozenset(OWN[KEY]), LAYER) == FOR_NEW_CHAINS


def test_our_own_write_reads_back_as_the_layer_that_was_asked_for(rules, tmp_path):
    (tmp_path / "saved").write_text(THERE)
    rules.apply([WRITE])
    assert rules.read()[Kind.RULES][KEY] is LAYER


REFUSALS = {
    "a set that is not there": (2, "iptables-nft-restore v1.8.9 (nf_tables): Set NOPE doesn't exist.", errno.ENOENT),
    "a chain that is not there": (2, "… v1.8.9 (nf_tables): Chain 'NOPE' does not exist", errno.ENOENT),
    "an extension that is not installed": (
        2,
        "… v1.8.9 (nf_tables): Couldn't load match `nope':No such file or directory",
        errno.ENOENT,
    ),
    "an extension that the kernel lacks": (
        4,
        "Warning: Extension ipvs revision 0 not supported\nline 3: RULE_APPEND failed (No such file or directory)",
        errno.ENOENT,
    ),
    "an unknown option": (2, '… v1.8.9 (nf_tables): unknown option "--colour"', errno.EINVAL),
    "a target in the wrong table": (4, "line 3: RULE_APPEND failed (Invalid argument): rule in chain K", errno.EINVAL),
    "a rule that has gone meanwhile": (
        1,
        "iptables-nft-restore: line 4 failed: Bad rule (does a matching rule exist in that chain?).",
        errno.EAGAIN,
    ),
    "a chain that is in use": (4, "line 3: CHAIN_DEL failed (Device or resource busy): chain KUBE-X", errno.EBUSY),
    "a change by others at the same time": (4, "… failed (Resource temporarily unavailable)", errno.EAGAIN),
    "no permission": (
        4,
        "… Could not fetch rule set generation id: Permission denied (you must be root)",
        errno.EACCES,
    ),
    "no reason at all": (3, "", errno.EIO),
}


@pytest.mark.parametrize("exit_code,complaint,number", [pytest.param(*row, id=name) for name, row in REFUSALS.items()])
def test_a_refusal_has_the_number_that_the_legacy_tables_would_give(exit_code, complaint, number):
    """Complaints of iptables 1.8.9."""
    assert error_number(exit_code, complaint) == number


def test_a_refused_layer_is_logged_with_what_the_program_said_and_the_line_it_meant(rules, script, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    script("restore", "echo 'iptables-nft-restore v1.8.9 (nf_tables): \nline 4: failed (Invalid argument)' >&2; exit 4")
    with structlog.testing.capture_logs() as logs:
        assert rules.apply([WRITE]) == [errno.EINVAL]
    assert [(entry["event"], entry["errno"]) for entry in logs] == [("rules_refused", errno.EINVAL)]
    assert logs[0]["reason"] == (
        "cannot write the IPv4 rules: line 4: failed (Invalid argument); -A KUBE-A -p tcp -j ACCEPT"
    )


def test_a_refused_layer_is_not_taken_for_written(rules, script, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    script("restore", "exit 1")
    assert rules.apply([WRITE]) == [errno.EAGAIN]
    assert rules.read() == {Kind.RULES: {}}


@pytest.mark.parametrize(
    "text,number",
    [
        pytest.param("echo no >&2; exit 4", errno.EIO, id="refuses"),
        pytest.param("echo '*nat'", errno.EIO, id="is cut short"),
        pytest.param("echo '-A KUBE-A -j DROP'", errno.EIO, id="prints a rule of no chain"),
        pytest.param(
            """echo '# Table `nat'"'"' is incompatible, use '"'"'nft'"'"' tool.'""",
            errno.EOPNOTSUPP,
            id="cannot show the table",
        ),
        pytest.param("exec sleep 60", errno.ETIMEDOUT, id="does not end"),
    ],
)
def test_nothing_is_concluded_and_nothing_written_where_the_listing_fails(script, tmp_path, text, number):
    script("save", text)
    rules = NftRules(OWN, path=f"{tmp_path}:{os.defpath}", timeout_s=0.5)
    with pytest.raises(KernelError) as caught:
        rules.read()
    assert caught.value.number == number
    assert rules.apply([WRITE]) == [number]
    assert given(tmp_path) is None
    assert rules.families == frozenset()


def test_a_table_of_others_that_cannot_be_shown_does_not_matter(rules, tmp_path):
    (tmp_path / "saved").write_text(f"# Table `raw' is incompatible, use 'nft' tool.\n{THERE}")
    assert rules.read()[Kind.RULES].keys() == {KEY}


@pytest.mark.parametrize("missing", ["save", "restore"])
def test_a_program_that_is_missing_is_told_at_once(script, tmp_path, missing):  # noqa: ARG001  # makes the programs
    (tmp_path / f"iptables-nft-{missing}").unlink()
    with pytest.raises(Unsupported, match=f"iptables-nft-{missing} is not installed"):
        NftRules(OWN, path=str(tmp_path))


def test_a_program_that_goes_away_later_is_a_refusal(rules, tmp_path):
    (tmp_path / "iptables-nft-save").unlink()
    assert rules.apply([WRITE]) == [errno.ENOENT]


def test_a_family_works_where_its_rules_can_be_listed(rules, tmp_path):
    (tmp_path / "saved").write_text("")
    assert rules.families == {Family.IPV4}


def test_a_refusal_is_a_warning_once_for_each_reason_and_again_after_a_success(rules, script, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    levels = []
    for text in (
        "echo one >&2; exit 2",
        "echo one >&2; exit 2",
        "echo two >&2; exit 2",
        "exit 0",
        "echo two >&2; exit 2",
    ):
        script("restore", text)
        with structlog.testing.capture_logs() as logs:
            rules.apply([WRITE])
        levels += [entry["log_level"] for entry in logs] or ["nothing"]
    assert levels == ["warning", "debug", "warning", "nothing", "warning"]


def test_a_chain_that_cannot_go_is_a_warning_once(rules, tmp_path):
    led_to = ":FOREIGN - [0:0]\n-A FOREIGN -j KUBE-A\nCOMMIT"
    (tmp_path / "saved").write_text(THERE.replace("COMMIT", led_to))
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert rules.apply([Operation(Verb.DELETE, Kind.RULES, KEY)]) == [errno.EMLINK]
    told = [(entry["log_level"], entry["chain"]) for entry in logs if entry["event"] == "chain_not_deleted"]
    assert told == [("warning", "KUBE-A"), ("debug", "KUBE-A"), ("debug", "KUBE-A")]


def test_a_complaint_about_a_line_that_we_did_not_send_is_told_without_it(rules, script, tmp_path):
    (tmp_path / "saved").write_text(EMPTY)
    script("restore", "echo 'line 99: failed (Invalid argument)' >&2; exit 4")
    assert rules.apply([WRITE]) == [errno.EINVAL]


ODD_NAMES = b"""*nat
:OUTPUT ACCEPT [0:0]
:caf\xe9 - [0:0]
:KUBE-A - [0:0]
-A OUTPUT -i caf\xe9 -m comment --comment "caf\xe9" -j KUBE-A
-A caf\xe9 -j KUBE-A
-A KUBE-A -j caf\xe9
COMMIT
"""


def test_names_that_are_no_utf8_are_read_and_given_back_byte_by_byte(rules, tmp_path):
    (tmp_path / "saved").write_bytes(ODD_NAMES)
    assert rules.read()[Kind.RULES].keys() == {KEY}
    assert rules.apply([WRITE]) == [0]
    line = b'-D OUTPUT -i caf\xe9 -m comment --comment "caf\xe9" -j KUBE-A\n'
    assert line in (tmp_path / "given").read_bytes()
