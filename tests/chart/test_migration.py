"""docs/migrate.md, followed to the letter on a real control plane: both DaemonSets' Pods come and go as it says."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tests.chart.conftest import NODES
from tests.chart.pages import ROOT, Terminal, sections
from tests.chart.test_installs import SYSTEM, Release, environment_of, eventually, release_of
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

pytestmark = pytest.mark.timeout(900)

PAGE = "docs/migrate.md"
BLOCKS = sections(PAGE)
HELMS = get_args(helm.Helm)
ALL = set(NODES)
KUBEADM = [heading for heading in BLOCKS if re.match(r"\d\. ", heading)]
ON_NODES = ("systemctl", "rm -f")


def kube_proxy() -> dict[str, Any]:
    """The DaemonSet as kubeadm makes it, as far as its Pods' places go."""
    labels = {"k8s-app": "kube-proxy"}
    container = {"name": "kube-proxy", "image": "kube-proxy:v1.37.2"}
    spec = {
        "containers": [container],
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


class Migration:
    """A cluster of kubeadm in which somebody follows the page."""

    def __init__(self, release: Release, program: helm.Helm, tools: Path) -> None:
        self.release = release
        self.plane = release.plane
        self.terminal = Terminal(release.plane, program, tools)

    def follow(self, heading: str) -> None:
        """Run what stands below a heading, but for what is run on a node."""
        for block in BLOCKS[heading]:
            if not any(word in block for word in ON_NODES):
                self.terminal.run(block)

    def kube_proxies(self) -> dict[str, dict[str, Any]]:
        """The ready Pods of kube-proxy that are not about to go, by node."""
        found = json.loads(self.plane.kubectl("get", "pods", SYSTEM, "--selector=k8s-app=kube-proxy", "--output=json"))
        return {
            pod["spec"]["nodeName"]: pod
            for pod in found["items"]
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"
        }

    def served(self) -> tuple[set[str], set[str]]:
        """The nodes of kube-proxy, and ours."""
        return set(self.kube_proxies()), set(self.release.pods())

    def comes_to(self, theirs: set[str], ours: set[str]) -> None:
        """Wait until each has its nodes."""
        eventually(lambda: self.served() == (theirs, ours))

    def label(self, *words: str) -> None:
        """Set or take a label of nodes."""
        self.plane.kubectl("label", "nodes", *words)


@contextlib.contextmanager
def migration_of(plane: ControlPlane, program: helm.Helm, tools: Path) -> Iterator[Migration]:
    """One that begins with kube-proxy everywhere and leaves nothing behind."""
    with release_of(plane, program) as release:
        migration = Migration(release, program, tools)
        plane.apply(kube_proxy())
        try:
            migration.comes_to(ALL, set())
            yield migration
        finally:
            plane.kubectl("delete", "daemonset", "kube-proxy", SYSTEM, "--ignore-not-found")
            migration.label("--all", "ipvsproxy.io/serve-", "ipvsproxy.io/check-")


@pytest.fixture(params=HELMS)
def migration(cluster: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Migration]:
    """By each Helm."""
    with migration_of(cluster, request.param, tmp_path) as migration:
        yield migration


@pytest.fixture
def migration4(cluster: ControlPlane, tmp_path: Path) -> Iterator[Migration]:
    """By Helm 4 alone, where the Helms have no say."""
    with migration_of(cluster, "helm4", tmp_path) as migration:
        yield migration


def uids(pods: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {node: pod["metadata"]["uid"] for node, pod in pods.items()}


def test_the_way_of_kubeadm_leads_from_kube_proxy_on_all_nodes_to_ipvsproxy_on_all(migration: Migration):
    steps = iter(KUBEADM)
    before = uids(migration.kube_proxies())
    migration.follow(next(steps))  # kube-proxy learns to step aside: replaced once, still everywhere
    migration.comes_to(ALL, set())
    assert before.items().isdisjoint(uids(migration.kube_proxies()).items())
    stay = uids(migration.kube_proxies())
    migration.follow(next(steps))  # installed, and nowhere
    migration.follow(next(steps))  # checked
    assert migration.served() == (ALL, set())
    assert uids(migration.kube_proxies()) == stay
    migration.follow(next(steps))  # n1
    migration.comes_to({"n2", "n3"}, {"n1"})
    migration.follow(next(steps))  # verified
    assert migration.served() == ({"n2", "n3"}, {"n1"})
    migration.follow(next(steps))  # the others
    migration.comes_to(set(), ALL)
    migration.follow("Back, at any time")
    migration.comes_to({"n1"}, {"n2", "n3"})
    migration.label("n1", "ipvsproxy.io/serve=true")
    migration.comes_to(set(), ALL)
    migration.follow(next(steps))  # kube-proxy goes, and the selector
    migration.comes_to(set(), ALL)
    assert next(steps, None) is None
    selector = migration.release.get("daemonset", "ipvsproxy")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"kubernetes.io/os": "linux"}


def test_both_are_upgraded_in_a_mixed_cluster_each_on_its_own_nodes(migration4: Migration):
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow(KUBEADM[3])
    migration4.comes_to({"n2", "n3"}, {"n1"})
    plane, release = migration4.plane, migration4.release
    theirs, ours = uids(migration4.kube_proxies()), uids(release.pods())
    plane.kubectl("set", "image", "daemonset/kube-proxy", "kube-proxy=kube-proxy:next", SYSTEM)
    release.do("upgrade", str(helm.CHART), "--reuse-values", "--set=image.tag=next", "--wait", "--timeout=4m")
    plane.kubectl("rollout", "status", "daemonset/kube-proxy", SYSTEM, "--timeout=4m")
    migration4.comes_to({"n2", "n3"}, {"n1"})
    assert release.images() == {"ipvsproxy:next"}
    assert theirs.items().isdisjoint(uids(migration4.kube_proxies()).items())
    assert ours.items().isdisjoint(uids(release.pods()).items())


def test_a_daemon_set_that_kubeadm_writes_anew_is_back_on_every_node(migration4: Migration):
    """Hence the table of step 7."""
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow(KUBEADM[3])
    migration4.comes_to({"n2", "n3"}, {"n1"})
    migration4.plane.kubectl("replace", "--filename=-", objects=[kube_proxy()])
    migration4.comes_to(ALL, {"n1"})


def test_a_node_of_another_mode_is_emptied_switched_and_taken_back(migration4: Migration):
    for step in KUBEADM[:2]:
        migration4.follow(step)
    migration4.follow("From the iptables or nftables mode")
    migration4.comes_to({"n2", "n3"}, {"n1"})
    assert "unschedulable" not in migration4.release.get("node", "n1")["spec"]


def test_on_k3s_the_api_server_is_at_the_nodes_own_port(migration4: Migration):
    migration4.follow("k3s and rke2")
    found = environment_of(migration4.release)
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6444")
    assert migration4.release.pods() == {}
    config = yaml.safe_load(migration4.release.get("configmap", "ipvsproxy")["data"]["config.conf"])
    assert config["clusterCIDR"] == "10.42.0.0/16"


def test_the_containers_whose_logs_it_reads_are_the_charts(migration4: Migration):
    migration4.release.do("install", str(helm.CHART), "--set=existingConfigMap.name=kube-proxy")
    asked = set(re.findall(r"(?:logs|exec) (daemonset/\S+)(?: --container (\S+))?", (ROOT / PAGE).read_text()))
    assert asked == {("daemonset/ipvsproxy-check", "check"), ("daemonset/ipvsproxy", "")}
    for target, container in asked:
        template = migration4.release.get(*target.split("/"))["spec"]["template"]
        default = template["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/default-container")
        assert (container or default) in [
            item["name"] for kind in ("initContainers", "containers") for item in template["spec"][kind]
        ]


def test_what_is_run_on_a_node_is_shell():
    blocks = [block for blocks in BLOCKS.values() for block in blocks if any(word in block for word in ON_NODES)]
    assert len(blocks) == 1
    for block in blocks:
        assert subprocess.run(["bash", "-n", "-c", block], check=False).returncode == 0
