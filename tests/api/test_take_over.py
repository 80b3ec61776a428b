"""The real kube-proxy and ipvsproxy in turn on one node of the VM, while clients ask without a pause."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import machine, programs
from tests.lab.apiserver import ADMIN_TOKEN, HOST_FROM_VM, ControlPlane, running
from tests.lab.hosts import NODE_ADDRESSES, NODE_NAME, REMOTE_ADDRESSES
from tests.lab.take_over import CLUSTER_IPS, ENDPOINTS, NODE_PORT, OUTSIDE_IPS, PORT, TARGET_PORT

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

OUT = Path(__file__).resolve().parents[2] / "build" / "take-over"
MACHINE_S = 1200.0
NETWORKS = "10.96.0.0/16,2001:db8:96::/112"
PROTOCOLS = ("TCP", "UDP")
CLIENTS = ("pod to cluster IP", "node to cluster IP", "outside to load-balancer IP", "another node to node port")


def service() -> dict[str, Any]:
    """default/web: TCP and UDP, both families, reachable in every way."""
    ports = [
        {"name": name.lower(), "port": PORT, "protocol": name, "nodePort": NODE_PORT, "targetPort": TARGET_PORT}
        for name in PROTOCOLS
    ]
    families = {"clusterIP": CLUSTER_IPS[0], "clusterIPs": CLUSTER_IPS, "ipFamilies": ["IPv4", "IPv6"]}
    spec = {"type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", **families, "ports": ports}
    ingress = [{"ip": address} for address in OUTSIDE_IPS]
    status = {"loadBalancer": {"ingress": ingress}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec, "status": status}


def endpoint_slice(family: int) -> dict[str, Any]:
    """Its endpoints in a family."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"web-{family}", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": ("IPv4", "IPv6")[family],
        "ports": [{"name": name.lower(), "port": TARGET_PORT, "protocol": name} for name in PROTOCOLS],
        "endpoints": [
            {
                "addresses": [found[family]],
                "nodeName": "n2" if name == "b1" else NODE_NAME,
                "conditions": {"ready": True},
            }
            for name, found in ENDPOINTS.items()
        ],
    }


def node(name: str, addresses: tuple[str, str]) -> dict[str, Any]:
    """A Node with these internal addresses."""
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """What tests/lab/take_over.py saw."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with running(tmp_path_factory.mktemp("plane"), service_cluster_ip_range=NETWORKS) as plane:
        make(plane)
        kubeconfig = plane.write_kubeconfig(OUT / "kubeconfig", {"token": ADMIN_TOKEN}, HOST_FROM_VM)
        program = [sys.executable, "-m", "tests.lab.take_over", str(programs.find_program("kube-proxy"))]
        argv = [*program, str(kubeconfig), str(OUT / "result.json")]
        assert machine.run(argv, OUT, shape=machine.Shape(network=True), timeout_s=MACHINE_S) == 0
        yield json.loads((OUT / "result.json").read_text())


def make(plane: ControlPlane) -> None:
    items = [node(NODE_NAME, NODE_ADDRESSES), node("n2", REMOTE_ADDRESSES), service(), *map(endpoint_slice, range(2))]
    plane.apply(*items)
    for item in items:
        plane.put_status(item)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_request_fails_from_kube_proxy_to_ipvsproxy_and_back(seen: Mapping[str, Any], client: str):
    assert seen["errors"][client] == [], seen["in_force"]
    assert seen["succeeded"][client] == seen["asked"][client] > 0


def test_streams_that_began_under_kube_proxy_live_on_through_every_change(seen: Mapping[str, Any]):
    assert seen["answers_on_held_streams"] == 2 * 4


def test_diff_on_a_live_node_of_kube_proxy_says_what_would_change_and_changes_nothing(seen: Mapping[str, Any]):
    assert seen["changed_by_diff"] == []
    first, last = seen["diff_codes"]
    assert first in {0, 1}, seen["diffs"][0]
    assert last == 0, seen["diffs"][1]


def test_the_virtual_servers_are_the_same_under_both(seen: Mapping[str, Any]):
    assert seen["exit_codes"]["ipvsproxy"] == seen["exit_codes"]["ipvsproxy again"] == 0
    states = list(seen["servers"].values())
    assert len(states) == 4
    assert all(state == states[0] for state in states), seen["servers"]
