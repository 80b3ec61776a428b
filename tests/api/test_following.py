"""A real API server followed from end to end: what kubectl makes is programmed, whatever happens in between.

The follower is the chart's ServiceAccount, with the rights that the chart gives to it and no others.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import Changed, ClusterEvent
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.recovery import Cause, Timing
from ipvsproxy.kube.resources import SERVICES, watched
from ipvsproxy.kube.watch import Watch
from tests.api.node import NODE, Objects, node_with
from tests.kube.following import eventually
from tests.lab.apiserver import ControlPlane


def server_line(address: str, port: int = 80) -> str:
    return f"-A -t {address}:{port} -s rr"


def real_line(address: str, endpoint: str, port: int = 80) -> str:
    return f"-a -t {address}:{port} -r {endpoint}:8080 -m -w 1"


def refused_kinds(logs: Sequence[EventDict]) -> set[str]:
    return {entry["kind"] for entry in logs if entry["event"] == "watch_lost"}


def test_service_follows_create_update_and_delete(objects: Objects, proxy: Path):
    name, address = objects.service()
    with node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        objects.slice(name, "10.244.1.5", "10.244.1.6")
        both = [real_line(address, endpoint) for endpoint in ("10.244.1.5", "10.244.1.6")]
        node.wait_for(address, server_line(address), *both)
        objects.slice(name, "10.244.1.6")
        node.wait_for(address, server_line(address), both[1])
        objects.put_service(name, address, ports=[{"name": "http", "port": 81, "protocol": "TCP"}])
        node.wait_for(address, server_line(address, 81), real_line(address, "10.244.1.6", 81))
        objects.remove("EndpointSlice", name)
        node.wait_for(address, server_line(address, 81))
        objects.remove("Service", name)
        node.wait_for(address)


def test_server_sends_the_list_as_a_stream_and_takes_our_selectors(objects: Objects, proxy: Path):
    _, address = objects.service()
    with capture_logs() as logs, node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        eventually(lambda: all(watch.heard_at is not None for watch in node.watches))
    connected = [entry for entry in logs if entry["event"] == "watch_connected"]
    assert sorted(entry["kind"] for entry in connected) == ["EndpointSlice", "Node", "Service"]
    assert all(entry["lists"] for entry in connected)
    assert not [entry for entry in logs if entry["event"] in {"watch_simplified", "watch_lost"}]


def test_headless_and_foreign_services_do_not_come_over_the_wire(objects: Objects, proxy: Path):
    objects.put_service("headless", "None")
    told: list[ClusterEvent] = []
    Watch(ApiServer(Access(kubeconfig=str(proxy))), SERVICES, SystemClock()).read_once(told.extend)
    names = {event.ref.name for event in told if isinstance(event, Changed)}
    assert "kubernetes" in names
    assert "headless" not in names


def test_service_that_is_given_to_another_proxy_is_removed(plane: ControlPlane, objects: Objects, proxy: Path):
    name, address = objects.service()
    with node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        plane.kubectl("label", "service", name, "service.kubernetes.io/service-proxy-name=other")
        node.wait_for(address)


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, id="in good order"), pytest.param(signal.SIGKILL, id="killed")]
)
def test_restart_of_the_server_loses_nothing(plane: ControlPlane, objects: Objects, proxy: Path, how: signal.Signals):
    name, address = objects.service()
    with node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        standing = node.servers(address)
        plane.stop_server(how)
        time.sleep(0.5)
        assert node.servers(address) == standing
        plane.start_server()
        objects.slice(name, "10.244.1.5")
        node.wait_for(address, server_line(address), real_line(address, "10.244.1.5"))
        objects.remove("Service", name)
        node.wait_for(address)


def test_refused_streaming_list_of_a_real_server_is_read_in_pages(plane: ControlPlane, objects: Objects, proxy: Path):
    _, address = objects.service()
    plane.stop_server()
    plane.start_server(feature_gates="WatchList=false")
    try:
        with capture_logs() as logs, node_with(proxy) as node:
            node.wait_for(address, server_line(address))
        simplified = [entry for entry in logs if entry["event"] == "watch_simplified"]
        assert {(entry["kind"], *entry["without"]) for entry in simplified} == {
            ("Service", "streaming"),
            ("EndpointSlice", "streaming"),
            ("Node", "streaming"),
        }
    finally:
        plane.stop_server()
        plane.start_server()


def test_all_pages_of_a_real_server_are_read(plane: ControlPlane, objects: Objects, proxy: Path):
    for _ in range(5):
        objects.service()
    batches: list[Sequence[ClusterEvent]] = []
    server = ApiServer(Access(kubeconfig=str(proxy)))
    Watch(server, SERVICES, SystemClock(), timing=Timing(page_size=2)).read_once(batches.append)
    told = [event.ref.name for batch in batches for event in batch if isinstance(event, Changed)]
    assert len(batches) >= 3
    assert sorted(told) == sorted(
        plane.kubectl("get", "services", "--output=jsonpath={.items[*].metadata.name}").split()
    )


def test_version_that_storage_has_forgotten_is_listed_again(plane: ControlPlane, objects: Objects, proxy: Path):
    """The real 410: the server starts with an empty cache, and storage was compacted beyond our place."""
    name, address = objects.service()
    with capture_logs() as logs, node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        for number in range(3):  # news that no watch of ours is told of
            plane.kubectl("create", "configmap", f"{name}-{number}")
        plane.stop_server(signal.SIGKILL)
        plane.compact_storage()
        plane.start_server()
        objects.slice(name, "10.244.1.5")
        node.wait_for(address, server_line(address), real_line(address, "10.244.1.5"))
    expired = [entry for entry in logs if entry["event"] == "watch_lost" and entry["reason"].startswith(Cause.EXPIRED)]
    assert "EndpointSlice" in {entry["kind"] for entry in expired}


def test_watch_stops_at_once_on_a_quiet_connection_with_tls(objects: Objects, proxy: Path):
    _, address = objects.service()
    with node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        started = time.monotonic()
    assert time.monotonic() - started < 5


def test_role_of_kube_proxy_is_enough_and_its_token_is_read_again(
    plane: ControlPlane, objects: Objects, tmp_path: Path
):
    plane.kubectl("create", "serviceaccount", "proxy", "--namespace=kube-system")
    binding = ["--clusterrole=system:node-proxier", "--serviceaccount=kube-system:proxy"]
    plane.kubectl("create", "clusterrolebinding", "proxy", *binding)
    token = tmp_path / "token"
    token.write_text("not a token")
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", {"tokenFile": str(token)})
    _, address = objects.service()
    with capture_logs() as logs, node_with(kubeconfig) as node:
        eventually(lambda: refused_kinds(logs) == {resource.kind for resource in watched(NODE)})
        assert node.servers(address) == []
        token.write_text(plane.kubectl("create", "token", "proxy", "--namespace=kube-system"))
        node.wait_for(address, server_line(address))
    lost = [entry for entry in logs if entry["event"] == "watch_lost"]
    assert {entry["reason"] for entry in lost} == {"refused (401): Unauthorized"}
    assert token.read_text().strip() not in str(logs)


def test_missing_role_says_what_is_missing(plane: ControlPlane, tmp_path: Path):
    plane.kubectl("create", "serviceaccount", "nobody", "--namespace=kube-system")
    token = plane.kubectl("create", "token", "nobody", "--namespace=kube-system").strip()
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", {"token": token})
    with capture_logs() as logs, node_with(kubeconfig):
        eventually(lambda: "Service" in refused_kinds(logs))
    reasons = {entry["kind"]: entry["reason"] for entry in logs if entry["event"] == "watch_lost"}
    assert reasons["Service"].startswith("refused (403): services is forbidden")
    assert token not in str(logs)


def rejections(logs: Sequence[EventDict]) -> list[EventDict]:
    return [entry for entry in logs if entry["event"] == "object_rejected"]


def test_a_node_name_that_the_cluster_does_not_know_is_told_and_the_right_one_is_not(objects: Objects, proxy: Path):
    _, address = objects.service()
    for is_there in (False, True):
        if is_there:
            objects.node(NODE, "192.0.2.11")
        with capture_logs() as logs, node_with(proxy) as node:
            node.wait_for(address, server_line(address))
        said = [entry["hint"] for entry in rejections(logs) if entry["object"] == f"Node {NODE}"]
        assert said == ([] if is_there else ["Give --hostname-override the name that `kubectl get nodes` shows"])


def test_k33_an_address_of_another_node_is_served_only_while_no_node_has_it(objects: Objects, proxy: Path):
    other, free = "192.0.2.12", "203.0.113.12"
    objects.node("n2", other)
    _, address = objects.service(externalIPs=[other, free])
    with capture_logs() as logs, node_with(proxy) as node:
        node.wait_for(address, server_line(address))
        node.wait_for(free, server_line(free))
        assert node.servers(other) == []
        objects.remove("Node", "n2")
        node.wait_for(other, server_line(other))
        objects.node("n3", "192.0.2.13", other)
        node.wait_for(other)
        assert node.servers(free) == [server_line(free)]
    said = [entry["reason"] for entry in rejections(logs) if entry["object"].startswith("Service")]
    assert said == [f"external IP {other} is an address of Node {name}" for name in ("n2", "n3")]


def test_k33_external_ips_are_served_without_the_right_to_list_nodes_and_it_is_said(
    plane: ControlPlane, objects: Objects, tmp_path: Path
):
    plane.kubectl("create", "serviceaccount", "narrow", "--namespace=kube-system")
    for resource in ("services", "endpointslices"):
        plane.kubectl("create", "clusterrole", f"see-{resource}", "--verb=list,watch", f"--resource={resource}")
        account = "--serviceaccount=kube-system:narrow"
        plane.kubectl("create", "clusterrolebinding", f"see-{resource}", f"--clusterrole=see-{resource}", account)
    token = plane.kubectl("create", "token", "narrow", "--namespace=kube-system").strip()
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", {"token": token})
    external = "203.0.113.13"
    objects.service(externalIPs=[external])
    with capture_logs() as logs, node_with(kubeconfig) as node:
        node.wait_for(external, server_line(external))
    said = rejections(logs)
    assert sorted(entry["object"] for entry in said) == [f"Node {NODE}", "other Nodes"]
    assert all("is forbidden" in entry["reason"] for entry in said)
