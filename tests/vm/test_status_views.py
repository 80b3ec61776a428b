"""`ipvsproxy status` with names, beside a running proxy and real connections (K53).

On a node of its own: what drains here would change under other tests.
"""

from __future__ import annotations

import json
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipvsproxy.serve.local_socket import socket_path
from ipvsproxy.status import document
from tests.clusters import Svc
from tests.lab import traffic
from tests.lab.hosts import Cluster
from tests.vm.nodes import ProxyNode, program, proxy_node, small_cluster
from tests.vm.places import A1, A2, ready

VIP = "10.96.0.70"
QUIET = Svc("quiet", ("10.96.0.71",), endpoints=ready(A2))
"""Nobody asks it but the test that counts."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def node(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    flags = ("--service-metrics=10", "--ipvs-sync-period=1s")
    with proxy_node(hosts, tmp_path_factory.mktemp("views"), *flags) as node:
        yield node


def web(*pods: tuple[str, str]) -> Svc:
    return Svc("web", (VIP,), endpoints=ready(*pods))


def shown(node: ProxyNode, *words: str) -> list[dict[str, Any]]:
    code, text = program(node.host, "status", "-o", "json", *words)
    assert code == 0
    return json.loads(text)["virtualServers"]


def test_k53_names_of_the_running_daemon_stand_beside_the_kernels_servers(node):
    node.sync(web(A1, A2))
    (server,) = shown(node, "--service", "default/web")
    assert (server["address"], server["service"]["portName"], server["ours"]) == (VIP, "p80tcp", True)
    assert {real["address"]: (real["state"], real["node"]) for real in server["realServers"]} == {
        A1[0]: ("ready", "n1"),
        A2[0]: ("ready", "n1"),
    }


def test_k53_statistics_are_the_kernels(node):
    """Which it adds up every other second."""
    node.sync(web(A1), QUIET)
    assert statistics(node)["connections"] == 0
    for _ in range(5):
        traffic.ask(node.hosts["outside"], QUIET.ips[0], 80)
    node.proxy.wait_until(lambda: statistics(node)["connections"] == 5)
    assert statistics(node)["bytesIn"] > 5 * 40


def statistics(node: ProxyNode) -> dict[str, int]:
    """What the quiet Service has been asked."""
    (server,) = shown(node, "--service", "default/quiet")
    return server["statistics"]


def test_k08_what_drains_tells_for_how_long_it_may(node):
    node.sync(web(A1, A2))
    with traffic.stream_to("a1", node.hosts["outside"], VIP, 80):
        node.sync(web(A2))
        (server,) = shown(node, "--draining", "--service", "default/web")
        (real,) = server["realServers"]
        assert (real["address"], real["weight"], real["state"]) == (A1[0], 0, "draining")
        assert 0 < real["drainSecondsLeft"] <= 15 * 60


def test_somebody_elses_virtual_server_is_not_ours(node):
    node.sync(web(A1))
    node.host.run("ipvsadm", "-A", "-t", "203.0.113.99:443", "-s", "wlc")
    assert [server["address"] for server in shown(node, "--not-ours")] == ["203.0.113.99"]
    assert [server["address"] for server in shown(node, "--not-ours", "--empty")] == ["203.0.113.99"]
    node.host.run("ipvsadm", "-D", "-t", "203.0.113.99:443")


def test_only_root_may_ask_the_daemon(node):
    with node.host.inside():
        path = Path(socket_path())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == 0


def test_a_document_holds_what_the_kernel_holds(node, tmp_path):
    node.sync(web(A1, A2))
    _, text = program(node.host, "status", "-o", "json")
    assert document.read_table(text).virtual_servers
    saved = tmp_path / "status.json"
    saved.write_text(text)
    assert program(node.host, "status", "-S", "-n", "--from", str(saved)) == (0, node.host.run("ipvsadm", "-S", "-n"))


def test_k53_metrics_of_a_service_follow_its_traffic(node):
    node.sync(web(A1))
    traffic.ask(node.hosts["outside"], VIP, 80)
    name = 'ipvsproxy_service_connections_total{namespace="default",port="p80tcp",protocol="TCP",service="web"} '

    def counts() -> bool:
        with node.host.inside(), urllib.request.urlopen("http://127.0.0.1:10249/metrics") as response:
            lines = response.read().decode().splitlines()
        return any(float(line.removeprefix(name)) > 0 for line in lines if line.startswith(name))

    node.proxy.wait_until(counts)
