"""What `ipvsproxy diff` says on a node that a kube-proxy in ipvs mode serves, as docs/migrate.md tells.

The rules are those that the real kube-proxy left, as recorded; all else is what both program alike.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipvsproxy import diff_command
from ipvsproxy.config.command_line import Diff, ExitCode, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from ipvsproxy.plan.rule_parse import SavedTable, own_layer, parse_save
from ipvsproxy.this_node import Surroundings, look
from tests.builders import addr
from tests.golden.recording import RECORDINGS, Recording

pytestmark = pytest.mark.usefixtures("quiet")
PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"
RECORDING = next(recording for recording in RECORDINGS if recording.name == "clusterip-basic")
RULES = {Family.IPV4: PlanFormat.IPTABLES, Family.IPV6: PlanFormat.IP6TABLES}


def command_of(recording: Recording) -> Diff:
    flags = [flag for flag in recording.flags if not flag.startswith("--node-addresses")]
    command = parse_command_line(["diff", "--manifests", str(recording.folder), *flags])
    assert isinstance(command, Diff)
    return command


def here(recording: Recording, fake: FakeKernel) -> Surroundings:
    return Surroundings(fake.kernel, frozenset(map(addr, recording.host_addresses)))


def left_by_kube_proxy(recording: Recording) -> FakeKernel:
    """Our own state, with the recorded rules in the place of ours, and without what kube-proxy does not have."""
    fake, command = FakeKernel(), command_of(recording)
    for operation in look(command.config, command.options, here(recording, fake)).first_sync.operations:
        assert fake.kernel.apply([operation]) == [0]
    fake.state[Kind.RULES].clear()
    for family, plan_format in RULES.items():
        saved = parse_save((recording.folder / f"{plan_format}.txt").read_text())
        for key, chains in OWN_CHAINS.items():
            layer = own_layer(saved.get(key.table, SavedTable()), chains)
            if key.family is family and layer:
                fake.state[Kind.RULES][key] = layer
    gone = {sets.set_name(name, family) for name in (sets.NO_LOCAL_ENDPOINTS, sets.NODE_PORT_IPS) for family in Family}
    for name in gone:
        del fake.state[Kind.SET][name]
    for entry in [entry for entry in fake.state[Kind.SUPPORT_ENTRY] if entry.set_name in gone]:
        del fake.state[Kind.SUPPORT_ENTRY][entry]
    return fake


def test_a_check_names_rules_and_two_sets_and_nothing_that_serves_as_the_guide_shows(capsys):
    command, fake = command_of(RECORDING), left_by_kube_proxy(RECORDING)
    assert diff_command.run(command.config, command.options, lambda _: here(RECORDING, fake)) == ExitCode.DIFFERENT
    said = capsys.readouterr().out.splitlines()
    titles = [re.sub(r"(?<= KUBE-NODE-PORT-IPS) .*|:.*", "", line) for line in said if not line.startswith("  ")]
    (shown,) = re.findall(r"```text\n(.*?)exit code 1\n```", PAGE.read_text(), re.DOTALL)
    assert [line.removesuffix(" …") for line in shown.splitlines()] == titles
