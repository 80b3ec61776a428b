"""What an install prints: the next commands, and what a node needs beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chart.migration import ALL, migration_of
from tests.documented import ROOT
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

SOURCE = (ROOT / "charts/ipvsproxy/templates/NOTES.txt").read_text()
BY_LABEL = r"--set-string=nodeSelector.ipvsproxy\.io/serve=true"


def notes(*options: str) -> str:
    """The notes of an install that is not done; Helm 3 asks a cluster even for that."""
    arguments = ["install", "proxy", str(helm.CHART), "--namespace=net", "--dry-run=client", *options]
    answer = helm.run("helm4", *arguments)
    assert answer.code == 0, answer.err
    return answer.out.partition("\nNOTES:\n")[2]


HOST = "--set=apiServer.host=192.0.2.10"


@pytest.mark.parametrize(
    "command",
    [
        "kubectl --namespace net rollout status daemonset/proxy-ipvsproxy",
        "helm --namespace net test proxy",
        "kubectl --namespace net exec daemonset/proxy-ipvsproxy -- ipvsproxy status -L -n",
        "kubectl label node NODE ipvsproxy.io/clean-up=true",
        "kubectl --namespace net get daemonset/proxy-ipvsproxy-clean-up",
    ],
)
def test_notes_have_the_next_commands_with_the_names_of_this_release(command: str):
    assert command in notes(HOST)


KUBEADM = "--set=existingConfigMap.name=kube-proxy"


def test_notes_say_where_the_configuration_is():
    assert "It follows its configuration in place" in notes(HOST)
    found = notes(KUBEADM)
    assert "It follows the ConfigMap kube-proxy" in found
    assert "What stands below config in your values has no effect" in found
    assert "config." not in found


def test_notes_keep_network_managers_from_the_device():
    found = notes(HOST)
    assert "unmanaged-devices+=interface-name:kube-ipvs0" in found
    assert "Name=kube-ipvs0" in found
    assert "Unmanaged=yes" in found


def test_k54_notes_name_the_setting_that_a_policy_engine_needs():
    assert "need config.ipvsproxy.filterVerdict=return" in notes(HOST)
    assert "need extraArgs={--filter-verdict=return}" in notes(KUBEADM)


def test_k26_notes_name_the_setting_that_layer_2_load_balancers_need():
    assert "need config.ipvs.strictARP=true" in notes(HOST)
    assert "need ipvs.strictARP: true in that ConfigMap" in notes(KUBEADM)


def test_notes_of_a_release_for_nodes_with_the_label_say_how_to_go_on_and_no_other_do():
    step = "kubectl label node NODE ipvsproxy.io/serve=true"
    labelled = notes(HOST, BY_LABEL)
    assert step in labelled
    assert labelled.startswith("ipvsproxy 0.1.0 runs on nodes with the label ipvsproxy.io/serve=true alone")
    assert step not in notes(HOST)


def commands(text: str) -> list[str]:
    """What it says to type: lines of their own, and what stands behind a colon; without remarks in brackets."""
    joined = re.sub(r" \\\n\s*", " ", text)
    return re.findall(r"(?:^ +|: )((?:kubectl|helm) .*?)(?: +\(.*\))?$", joined, re.MULTILINE)


@pytest.mark.timeout(900)
def test_every_command_of_the_notes_does_what_it_should(cluster: ControlPlane, tmp_path: Path):
    """Beside a kube-proxy, which one of them takes away but where labels say who serves."""
    typed = []
    try:
        for values in ("--wait", KUBEADM, BY_LABEL):
            (tools := tmp_path / f"{len(typed)}").mkdir()
            with migration_of(cluster, "helm4", tools) as migration:
                found = commands(migration.release.do("install", str(helm.CHART), values))
                for command in found:
                    migration.terminal.run(command.replace("NODE", "n1").replace("CHART", "charts/ipvsproxy"))
                migration.leaves(ALL if values == BY_LABEL else set())
                typed += found
    finally:
        cluster.kubectl(
            "label", "nodes", "--all", *(f"ipvsproxy.io/{name}-" for name in ("clean-up", "check", "serve"))
        )
    for command in commands(SOURCE):
        pattern = ".*".join(map(re.escape, re.split(r"\{\{.*?\}\}", command)))
        assert [text for text in typed if re.fullmatch(pattern, text)], command
    assert len(commands(SOURCE)) == len(re.findall(r"(?<![`\w])(?:kubectl|helm) ", SOURCE))
