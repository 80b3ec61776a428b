"""Waits until every node has found nothing to change: `helm test` runs it, beside a DaemonSet that looks on each node.

    python3 wait_for_nodes.py CONFIG-FILE NAMESPACE DAEMONSET SECONDS

A Pod of that DaemonSet becomes ready when `ipvsproxy diff` has found no difference; a change in flight is tried again.
Exit code 1, with the nodes that are left, when the time is over.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ipvsproxy.kube.client import Access, ApiServer

ANSWER_S = 10.0


def kubeconfig(config_file: str) -> str:
    """The kubeconfig that the daemon's configuration names; empty where it uses the Pod's ServiceAccount."""
    document = yaml.safe_load(Path(config_file).read_text())
    return (document.get("clientConnection") or {}).get("kubeconfig") or ""


def get(server: ApiServer, path: str, **query: str) -> Any:  # noqa: ANN401  # an object as the API server has it
    """An object of the API server."""
    with server.connect() as session, session.get(path, query, ANSWER_S) as answer:
        return json.loads(answer.read())


def is_done(item: dict[str, Any]) -> bool:
    """Whether the status tells of this very object, and all its Pods are ready."""
    status = item.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    is_new = status.get("observedGeneration") == item["metadata"]["generation"]
    return is_new and wanted > 0 and status.get("numberReady", 0) == wanted


def waiting(pods: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each Pod that is not ready: its node, and what to look at."""
    for pod in pods:
        conditions = {part["type"]: part["status"] for part in pod["status"].get("conditions", [])}
        if conditions.get("Ready") != "True":
            node = pod["spec"].get("nodeName", "no node")
            yield f"{node}: kubectl --namespace {pod['metadata']['namespace']} logs {pod['metadata']['name']} -c diff"


def main(config_file: str, namespace: str, name: str, seconds: str) -> int:
    """Wait; the exit code."""
    server = ApiServer(Access(kubeconfig=kubeconfig(config_file)))
    deadline = time.monotonic() + float(seconds)
    while not is_done(item := get(server, f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")):
        if time.monotonic() > deadline:
            labels = item["spec"]["selector"]["matchLabels"]
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            pods = get(server, f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)["items"]
            print("These nodes have not got what the cluster asks for:", *waiting(pods), sep="\n")
            return 1
        time.sleep(1)
    print(f"{item['status']['numberReady']} nodes have what the cluster asks for, and nothing of ours beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
