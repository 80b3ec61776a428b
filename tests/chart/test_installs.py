"""Both Helms on a real control plane: install, change, go back, test, clean a node, uninstall."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from tests.chart.cases import CASES, golden, objects
from tests.chart.conftest import NODES, config_map, kubeconfig_of
from tests.chart.release import SYSTEM, Release, release_of
from tests.lab import helm
from tests.lab.apiserver import ControlPlane
from tests.lab.machine import LabError

pytestmark = pytest.mark.timeout(600)

HELMS = get_args(helm.Helm)
LIMIT_S = 240.0
HOST = "--set=apiServer.host=192.0.2.10"


@pytest.fixture(params=HELMS)
def release(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Release]:
    """A release to be, by each Helm."""
    with release_of(cluster, request.param) as release:
        yield release


@pytest.fixture
def release4(cluster: ControlPlane) -> Iterator[Release]:
    """By Helm 4 alone, where the Helms have no say."""
    with release_of(cluster, "helm4") as release:
        yield release


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def environment_of(release: Release) -> Mapping[str, str]:
    daemon = release.get("daemonset", "ipvsproxy")["spec"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", "") for entry in daemon["env"]}


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object_and_knows_every_field(cluster: ControlPlane, case: str):
    known = [item for item in objects(golden(case)) if not item["apiVersion"].startswith("monitoring.coreos.com")]
    for item in known:
        if item["metadata"].get("namespace") in {"grafana", "monitoring"}:
            item["metadata"]["namespace"] = "kube-system"
    (account,) = {item["spec"]["serviceAccountName"] for item in known if item["kind"] == "Pod"}
    cluster.kubectl("create", "serviceaccount", account, SYSTEM)  # a Pod is refused without
    try:
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", objects=known)
    finally:
        cluster.kubectl("delete", "serviceaccount", account, SYSTEM)


def test_a_misspelt_field_would_be_refused(cluster: ControlPlane):
    (daemon, *_) = [item for item in objects(golden("defaults")) if item["kind"] == "DaemonSet"]
    daemon["spec"]["template"]["spec"]["hostNetwrk"] = True
    with pytest.raises(LabError, match="hostNetwrk"):
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", objects=[daemon])


def test_a_release_is_installed_changed_taken_back_and_removed(release: Release):
    chart = str(helm.CHART)
    release.do("install", chart, HOST, "--wait", "--timeout=4m")
    assert release.pods().keys() == set(NODES)
    first = release.images()
    release.do("upgrade", chart, "--reuse-values", "--set=image.tag=next", "--wait", "--timeout=4m")
    assert release.images() == {"localhost/ipvsproxy:next"}
    release.do("rollback", "1", "--wait", "--timeout=4m")
    assert release.images() == first
    release.do("uninstall", "--wait", "--timeout=4m")
    for kind in ("daemonsets", "configmaps", "serviceaccounts", "clusterroles", "clusterrolebindings"):
        assert release.get(kind)["items"] == []
    eventually(lambda: release.get("pods")["items"] == [])


def test_a_change_of_the_configuration_alone_replaces_no_pod(release4: Release):
    chart = str(helm.CHART)
    release4.do("install", chart, HOST, "--wait", "--timeout=4m")
    before = {pod["metadata"]["uid"] for pod in release4.pods().values()}
    release4.do("upgrade", chart, "--reuse-values", "--set=config.ipvs.scheduler=lc", "--wait", "--timeout=4m")
    assert "scheduler: lc" in release4.get("configmap", "ipvsproxy")["data"]["config.conf"]
    assert {pod["metadata"]["uid"] for pod in release4.pods().values()} == before


def test_helm_test_looks_on_every_node_and_leaves_nothing(release: Release):
    release.do("install", str(helm.CHART), HOST, "--wait", "--timeout=4m")
    release.do("test", "--timeout=4m")
    eventually(lambda: not [item for item in release.get("daemonsets")["items"] if "test" in item["metadata"]["name"]])
    assert [item for item in release.get("roles")["items"] if "test" in item["metadata"]["name"]] == []


@pytest.mark.parametrize(
    "component, code, said",
    [
        pytest.param("", 0, "3 nodes have what the cluster asks for", id="all are ready"),
        pytest.param("-test", 1, "These nodes have not got what the cluster asks for", id="none is"),
    ],
)
def test_the_waiting_pod_tells_when_all_nodes_are_done(
    release4: Release, tmp_path: Path, component: str, code: int, said: str
):
    """Its script, as the chart's ServiceAccount; a DaemonSet whose nodes all wait stands for one that differs."""
    plane = release4.plane
    release4.do("install", str(helm.CHART), HOST, "--wait", "--timeout=4m")
    hooks = [item for item in objects(golden("defaults")) if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    rights = [item for item in hooks if item["kind"] in {"Role", "RoleBinding"}]
    rights[0]["rules"][0]["resourceNames"].append("ipvsproxy")
    waits = next(item for item in hooks if item["kind"] == "DaemonSet")
    waits["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.net/never"}]
    plane.apply(*rights, waits)
    token = plane.kubectl("create", "token", "ipvsproxy", SYSTEM).strip()
    access = plane.write_kubeconfig(tmp_path / "kubeconfig", {"token": token})
    config = tmp_path / "config.conf"
    config.write_text(json.dumps({"clientConnection": {"kubeconfig": str(access)}}))
    script = helm.CHART / "files" / "wait_for_nodes.py"
    words = [sys.executable, str(script), str(config), "kube-system", f"ipvsproxy{component}", "5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    plane.kubectl("delete", "daemonset/ipvsproxy-test", "role/ipvsproxy-test", "rolebinding/ipvsproxy-test", SYSTEM)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


def test_a_label_moves_a_node_from_the_daemon_to_the_clean_up_and_back(release4: Release):
    plane = release4.plane
    release4.do("install", str(helm.CHART), HOST, "--wait", "--timeout=4m")
    plane.kubectl("label", "node", "n2", "ipvsproxy.io/clean-up=true")
    eventually(lambda: release4.pods().keys() == {"n1", "n3"})
    eventually(lambda: release4.pods("clean-up").keys() == {"n2"})
    plane.kubectl("label", "node", "n2", "ipvsproxy.io/clean-up-")
    eventually(lambda: release4.pods("clean-up").keys() == set())
    eventually(lambda: release4.pods().keys() == set(NODES))


def test_the_api_servers_address_is_the_one_in_kubeadms_config_map(release: Release):
    release.do("install", str(helm.CHART))
    found = environment_of(release)
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("192.0.2.21", "6443")


@contextlib.contextmanager
def replaced(plane: ControlPlane, namespace: str, name: str, **data: str) -> Iterator[None]:
    """Another ConfigMap in the place of one, or none."""
    kept = json.loads(plane.kubectl("get", "configmap", name, f"--namespace={namespace}", "--output=json"))
    plane.kubectl("delete", "configmap", name, f"--namespace={namespace}")
    try:
        if data:
            plane.apply(config_map(namespace, name, **data))
        yield
    finally:
        plane.kubectl("delete", "configmap", name, f"--namespace={namespace}", "--ignore-not-found")
        plane.apply({**config_map(namespace, name), "data": kept["data"]})


def test_without_kubeadms_config_map_cluster_info_tells_the_address(release4: Release):
    with replaced(release4.plane, "kube-system", "kube-proxy"):
        release4.do("install", str(helm.CHART))
        found = environment_of(release4)
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("2001:db8::21", "443")


def test_without_any_address_an_install_is_refused(release: Release):
    with replaced(release.plane, "kube-system", "kube-proxy"), replaced(release.plane, "kube-public", "cluster-info"):
        answer = release.run("install", str(helm.CHART))
    assert answer.code != 0
    assert "No address of the API server is known" in answer.err


def service_address(plane: ControlPlane) -> str:
    return plane.kubectl("get", "service", "kubernetes", "--output=jsonpath={.spec.clusterIP}")


def test_the_address_of_the_kubernetes_service_is_refused_wherever_it_stands(release4: Release):
    address = service_address(release4.plane)
    answer = release4.run("install", str(helm.CHART), f"--set=apiServer.host={address}")
    assert f"apiServer.host is {address}, which is the Service `kubernetes`" in answer.err
    kubeconfig = kubeconfig_of(f"https://{address}:443")
    with replaced(release4.plane, "kube-system", "kube-proxy", config_conf="{}", kubeconfig_conf=kubeconfig):
        answer = release4.run("install", str(helm.CHART))
    assert f"the ConfigMap kube-system/kube-proxy is {address}, which is the Service" in answer.err


def test_a_server_behind_a_path_is_refused(release4: Release):
    kubeconfig = kubeconfig_of("https://192.0.2.30/k8s/clusters/c-1")
    with replaced(release4.plane, "kube-system", "kube-proxy", config_conf="{}", kubeconfig_conf=kubeconfig):
        answer = release4.run("install", str(helm.CHART))
    assert "https://192.0.2.30/k8s/clusters/c-1, which is no https://HOST:PORT" in answer.err


def test_kubeadms_config_map_is_used_as_it_is_with_its_own_ports(release4: Release):
    config = "kind: KubeProxyConfiguration\nclientConnection: {kubeconfig: /x}\nhealthzBindAddress: 127.0.0.1:11256\n"
    with replaced(release4.plane, "kube-system", "kube-proxy", config_conf=config, kubeconfig_conf="{}"):
        release4.do("install", str(helm.CHART), "--set=existingConfigMap.name=kube-proxy")
    daemon = release4.get("daemonset", "ipvsproxy")["spec"]["template"]["spec"]
    assert daemon["containers"][0]["ports"][0]["containerPort"] == 11256
    assert environment_of(release4)["KUBERNETES_SERVICE_HOST"] == ""
    assert {"name": "kube-proxy", "defaultMode": 420} in [volume.get("configMap") for volume in daemon["volumes"]]


def test_notes_warn_while_kube_proxy_runs(release4: Release):
    plane = release4.plane
    container = {"name": "kube-proxy", "image": "kube-proxy"}
    labels = {"k8s-app": "kube-proxy"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    about = {"name": "kube-proxy", "namespace": "kube-system"}
    plane.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": about, "spec": spec})
    plane.kubectl("rollout", "status", "daemonset/kube-proxy", SYSTEM, "--timeout=4m")
    try:
        assert "WARNING: kube-proxy still runs on 3 nodes" in release4.do("install", str(helm.CHART))
        by_label = ["--set-string", r"nodeSelector.ipvsproxy\.io/serve=true"]  # as docs/migrate.md has it
        assert "WARNING" not in release4.do("upgrade", str(helm.CHART), *by_label)
    finally:
        plane.kubectl("delete", "daemonset", "kube-proxy", SYSTEM)


@pytest.mark.parametrize(
    "option, warning",
    [
        pytest.param("name=kube-proxi", "there is no ConfigMap kube-system/kube-proxi", id="no such ConfigMap"),
        pytest.param("key=config.yaml", "that ConfigMap has no key config.yaml", id="no such key"),
    ],
)
def test_notes_warn_of_a_configuration_that_is_not_there(release4: Release, option: str, warning: str):
    """No Pod starts, and only its events would tell why."""
    words = [str(helm.CHART), "--set=existingConfigMap.name=kube-proxy"]
    assert f"WARNING: {warning}" in release4.do("install", *words, f"--set=existingConfigMap.{option}")
    assert "WARNING" not in release4.do("upgrade", *words)
