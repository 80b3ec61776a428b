"""What the pages say to type with kubeadm, and what the real one then does about kube-proxy."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.chart.migration import kube_proxy
from tests.chart.pages import Terminal
from tests.chart.release import SYSTEM
from tests.documented import documented
from tests.lab import programs
from tests.lab.apiserver import ControlPlane

(SKIPPED,) = documented("docs/install.md", program="kubeadm")
(EDIT,) = documented("docs/migrate.md", pattern="kubectl .* edit .*")
VERSION = programs.VERSION
"""Otherwise it asks somebody on the network which one is newest."""
MADE = "kube-proxy:v"
"""The image of the DaemonSet's container."""


def said(folder: Path, command: str) -> str:
    """What kubeadm says that it would do."""
    words = f"{command} --dry-run --ignore-preflight-errors=all"
    kubeadm = programs.find_program("kubeadm")
    path = f"{kubeadm.parent}:{os.defpath}"
    environment = {"PATH": path, "HOME": str(folder), "KUBEADM_INIT_DRYRUN_DIR": str(folder)}
    done = subprocess.run(["sh", "-c", words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cluster_can_be_made_without_kube_proxy(tmp_path: Path):
    assert MADE in said(tmp_path, f"kubeadm init --kubernetes-version={VERSION}")
    assert MADE not in said(tmp_path, f"{SKIPPED.text} --kubernetes-version={VERSION}")


def test_an_edited_configuration_of_kubeadm_leaves_kube_proxy_away(cluster: ControlPlane, tmp_path: Path):
    file = tmp_path / "cluster.yaml"
    file.write_text(f"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v{VERSION}\n")
    words = ["init", "phase", "upload-config", "kubeadm", f"--config={file}", f"--kubeconfig={cluster.kubeconfig}"]
    subprocess.run([programs.find_program("kubeadm"), *words], check=True, capture_output=True)
    (tools := tmp_path / "tools").mkdir()
    terminal = Terminal(cluster, "helm4", tools)
    terminal.put("editor", "exec sed --in-place 's/proxy: {}/proxy: {disabled: true}/' \"$1\"")

    def comes() -> bool:
        made = cluster.kubectl("get", "configmap", "kubeadm-config", SYSTEM, "--output=json")
        file.write_text(json.loads(made)["data"]["ClusterConfiguration"])
        return MADE in said(tmp_path, f"kubeadm init --config {file}")

    try:
        assert comes()
        terminal.run(f"KUBE_EDITOR=editor {EDIT.text}")
        assert not comes()
    finally:
        cluster.kubectl("delete", "configmap", "kubeadm-config", SYSTEM)


def test_the_daemon_set_of_the_tests_is_the_one_that_kubeadm_makes(tmp_path: Path):
    command = [programs.find_program("kubeadm"), "init", "phase", "addon", "kube-proxy"]
    command += [f"--kubernetes-version={VERSION}", "--print-manifest"]
    done = subprocess.run(command, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    (made,) = (item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "DaemonSet")
    theirs, ours = (item["spec"]["template"]["spec"] for item in (made, kube_proxy()))
    (container,) = theirs.pop("containers")
    (own_container,) = ours.pop("containers")
    for mount in container["volumeMounts"]:
        if mount.get("readOnly") is False:
            del mount["readOnly"]  # as the API server has it
    assert container.pop("image").endswith(own_container.pop("image"))
    assert {key: container[key] for key in own_container} == own_container
    assert {key: theirs[key] for key in ours} == ours
