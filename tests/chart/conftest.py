"""A cluster for the chart: a real API server with controllers, three Nodes, and what kubeadm leaves in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import controllers
from tests.lab.apiserver import ControlPlane, running

NODES = ("n1", "n2", "n3")
KUBEADM = Path(__file__).parents[1] / "data" / "kubeadm"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The cluster; kube-proxy's ConfigMap and cluster-info name an address that nobody has."""
    folder = tmp_path_factory.mktemp("cluster")
    with running(folder, disable_admission_plugins="", allow_privileged="true") as plane, controllers.running(plane):
        plane.apply(*(node(name) for name in NODES), *kubeadm_objects())
        yield plane


def node(name: str) -> dict[str, object]:
    """A Node that Pods may be placed on."""
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"allocatable": room, "capacity": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def kubeconfig_of(server: str) -> str:
    """A kubeconfig as kubeadm writes it, as far as the server goes."""
    cluster = {"name": "default", "cluster": {"server": server, "certificate-authority-data": ""}}
    return json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [cluster]})


def config_map(namespace: str, name: str, **data: str) -> dict[str, object]:
    """A ConfigMap; `_` in a key stands for a dot."""
    content = {key.replace("_", "."): value for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": content,
    }


def kubeadm_objects() -> tuple[dict[str, object], ...]:
    """Its ConfigMaps for kube-proxy and for nodes that join."""
    config = (KUBEADM / "config.conf").read_text()
    kubeconfig = kubeconfig_of("https://192.0.2.21:6443")
    return (
        config_map("kube-system", "kube-proxy", config_conf=config, kubeconfig_conf=kubeconfig),
        config_map("kube-public", "cluster-info", kubeconfig=kubeconfig_of("https://[2001:db8::21]")),
    )
