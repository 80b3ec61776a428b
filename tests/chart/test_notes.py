"""What an install prints: the next commands, and what a node needs beside it."""

from __future__ import annotations

import pytest

from tests.lab import helm


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
    labelled = notes(HOST, r"--set-string=nodeSelector.ipvsproxy\.io/serve=true")
    assert step in labelled
    assert labelled.startswith("ipvsproxy 0.1.0 runs on nodes with the label ipvsproxy.io/serve=true alone")
    assert step not in notes(HOST)
