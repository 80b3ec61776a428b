"""A release of the chart in a cluster, by one of the Helms."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.lab import helm
from tests.lab.apiserver import ControlPlane

SYSTEM = "--namespace=kube-system"


class Release:
    """A release of the chart in the cluster, by one of the Helms."""

    def __init__(self, plane: ControlPlane, program: helm.Helm) -> None:
        self.plane = plane
        self._program = program

    def run(self, verb: str, *arguments: str) -> helm.Answer:
        """Run Helm on the cluster."""
        environment = {"KUBECONFIG": str(self.plane.kubeconfig)}
        return helm.run(self._program, verb, "ipvsproxy", *arguments, SYSTEM, environ=environment)

    def do(self, verb: str, *arguments: str) -> str:
        """The same, and it must succeed."""
        answer = self.run(verb, *arguments)
        assert answer.code == 0, answer.err
        return answer.out

    def get(self, kind: str, *names: str) -> Any:
        """An object, or all of a kind that are the release's."""
        chosen = names or ("--selector=app.kubernetes.io/instance=ipvsproxy",)
        return json.loads(self.plane.kubectl("get", kind, *chosen, SYSTEM, "--output=json"))

    def pods(self, component: str = "proxy") -> dict[str, dict[str, Any]]:
        """The ready Pods of a component that are not about to go, by node."""
        return {
            pod["spec"]["nodeName"]: pod
            for pod in self.get("pods")["items"]
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
            and "deletionTimestamp" not in pod["metadata"]
            and any((part["type"], part["status"]) == ("Ready", "True") for part in pod["status"].get("conditions", ()))
        }

    def images(self) -> set[str]:
        """The images of all daemons."""
        return {container["image"] for pod in self.pods().values() for container in pod["spec"]["containers"]}


@contextlib.contextmanager
def release_of(plane: ControlPlane, program: helm.Helm) -> Iterator[Release]:
    """Nothing of it is left behind."""
    release = Release(plane, program)
    try:
        yield release
    finally:
        release.run("uninstall", "--wait", "--ignore-not-found")
