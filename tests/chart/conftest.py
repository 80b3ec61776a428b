"""A cluster for the chart: a real API server with controllers, three Nodes, and what kubeadm leaves in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.node import Objects
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


@pytest.fixture
def objects(cluster: ControlPlane) -> Iterator[Objects]:
    """Makes objects, and removes those that are left at the end."""
    objects = Objects(cluster)
    yield objects
    objects.remove_all()


def node(name: str) -> dict[str, object]:
    """A Node that Pods may be placed on."""
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"allocatable": room, "capacity": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def kubeconfig_of(server: str) -> str:
    """A kubeconfig as kubeadm writes it for kube-proxy: who reads it is its Pod's ServiceAccount."""
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    cluster = {"server": server, "certificate-authority": f"{account}/ca.crt"}
    context = {"cluster": "default", "namespace": "default", "user": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": cluster}],
        "contexts": [{"name": "default", "context": context}],
        "current-context": "default",
        "users": [{"name": "default", "user": {"tokenFile": f"{account}/token"}}],
    }
    return json.dumps(document)


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
    """Its ConfigMaps for kube-proxy and for nodes that join, and kube-proxy's account."""
    config = (KUBEADM / "config.conf").read_text()
    kubeconfig = kubeconfig_of("https://192.0.2.21:6443")
    account = {"name": "kube-proxy", "namespace": "kube-system"}
    rights = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubeadm:node-proxier"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        rights,
        config_map("kube-system", "kube-proxy", config_conf=config, kubeconfig_conf=kubeconfig),
        config_map("kube-public", "cluster-info", kubeconfig=kubeconfig_of("https://[2001:db8::21]")),
    )
