"""Somebody follows docs/migrate.md in a cluster of kubeadm: kube-proxy as kubeadm leaves it, and the page's steps."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chart.conftest import NODES
from tests.chart.pages import Terminal
from tests.chart.release import SYSTEM, Release, release_of
from tests.documented import ROOT, documented
from tests.kube.following import eventually
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

PAGE = "docs/migrate.md"
KUBEADM = [
    documented(PAGE, heading, in_block=True)
    for heading in re.findall(r"^### (\d\. .*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
]
"""The commands of each step."""
BACK = documented(PAGE, "Back, at any time", in_block=True)
(END,) = documented(PAGE, "Back, at any time", program="helm")
OLD_KUBEADM = documented(PAGE, "With kubeadm before 1.31", in_block=True)
OLD_KUBEADM_BACK, BACK_IN_THE_END = (documented(PAGE, "Back, after step 7", block=block) for block in (1, 2))
ALL = set(NODES)
LIMIT_S = 240.0


def kube_proxy() -> dict[str, Any]:
    """The DaemonSet as kubeadm makes it."""
    labels = {"k8s-app": "kube-proxy"}
    config = "/var/lib/kube-proxy"
    container = {
        "name": "kube-proxy",
        "image": "kube-proxy:v1.37.2",
        "command": ["/usr/local/bin/kube-proxy", f"--config={config}/config.conf", "--hostname-override=$(NODE_NAME)"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            {"name": "kube-proxy", "mountPath": config},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True},
        ],
    }
    spec = {
        "containers": [container],
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priorityClassName": "system-node-critical",
        "serviceAccountName": "kube-proxy",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [
            {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
            {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
            {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
        ],
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

        self.follow = self.terminal.follow

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
        eventually(lambda: self.served() == (theirs, ours), LIMIT_S)

    def leaves(self, theirs: set[str]) -> None:
        """Wait until kube-proxy has these nodes."""
        eventually(lambda: self.kube_proxies().keys() == theirs, LIMIT_S)

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
            plane.kubectl("delete", "configmap", "ipvsproxy-config", SYSTEM, "--ignore-not-found")
            migration.label("--all", "ipvsproxy.io/serve-", "ipvsproxy.io/check-")
