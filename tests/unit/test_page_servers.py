"""The two servers as the daemon has them: a real client asks them over loopback."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ipvsproxy.cluster.events import Changed, Listed, ObjectRef
from ipvsproxy.config.command_line import read_config
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.vitals import Heard
from ipvsproxy.page_servers import page_servers
from ipvsproxy.serve.page_server import PageServer
from ipvsproxy.sync.runner import Message, Periods, Runner, Signal
from tests.clusters import NODE, Node, Svc, cluster

PATIENCE_S = 10.0
"""A safety limit: nothing here waits, but for the machine."""
ALL = (
    *(Changed(ref, found) for ref, found in cluster(Svc("a")).items()),
    Changed(ObjectRef("Node", "", NODE), api.Node(metadata=api.Metadata(name=NODE))),
    Listed("Service"),
    Listed("EndpointSlice"),
)


class Inbox:
    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.arrived_at = 0.0

    def get(self, timeout_s: float) -> Message | None:  # noqa: ARG002
        message = self.messages.pop(0)
        return None if message == () else message


class Daemon:
    """The sync thread's part on a fake kernel, and both servers."""

    def __init__(self, **flags: Any) -> None:
        self.ports = {"healthz": free_port(), "metrics": free_port()}
        binds = {f"--{name}-bind-address": f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.config = read_config(binds | flags)
        self.node = Node()
        self.heard: Mapping[str, Heard] = {"Service": Heard(is_connected=True)}
        self.runner = Runner(Inbox(), self.node.tracker, self.node.reconciler, self.node.clock, Periods(0, 30))
        self.servers: dict[str, PageServer] = dict(
            page_servers(self.config, NODE, self.runner, self.node.clock, lambda _: self.heard)
        )

    def hears(self, *messages: Message) -> None:
        self.runner._inbox = Inbox(*messages, (), Signal.STOP)
        self.runner.run()

    def get(self, server: str, target: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.ports[server], PATIENCE_S)) as connection:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()  # type: ignore[return-value]

    def codes(self) -> tuple[int, ...]:
        return tuple(self.get("healthz", path)[0] for path in ("/healthz", "/livez", "/readyz"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    with ExitStack() as stack:
        for server in daemon.servers.values():
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            stack.callback(server.close)
            stack.callback(thread.join, PATIENCE_S)
            stack.callback(server.stop)
        deadline = time.monotonic() + PATIENCE_S
        while not all(server._loop.listeners for server in daemon.servers.values()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        yield daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with running(Daemon()) as found:
        yield found


def test_k52_probes_follow_what_becomes_of_the_node(daemon):
    told = [daemon.codes()]
    daemon.hears(ALL)
    told.append(daemon.codes())
    daemon.heard = {"Service": Heard(is_connected=False)}
    told.append(daemon.codes())
    leaving = api.Node(
        metadata=api.Metadata(name=NODE), spec=api.NodeSpec(taints=(api.Taint("ToBeDeletedByClusterAutoscaler"),))
    )
    daemon.hears((Changed(ObjectRef("Node", "", NODE), leaving),))
    told.append(daemon.codes())
    assert told == [(503, 200, 503), (200, 200, 200), (200, 200, 503), (503, 200, 503)]


def test_the_health_server_has_no_other_pages(daemon):
    assert {daemon.get("healthz", path)[0] for path in ("/", "/metrics", "/configz", "/healthz/ping")} == {404}


@pytest.mark.parametrize(
    "path,content_type",
    [
        pytest.param("/metrics", "text/plain; version=0.0.4; charset=utf-8", id="metrics"),
        pytest.param("/metrics/slis", "text/plain; version=0.0.4; charset=utf-8", id="service levels"),
        pytest.param("/healthz", "text/plain; charset=utf-8", id="healthz"),
        pytest.param("/healthz/ping", "text/plain; charset=utf-8", id="ping"),
        pytest.param("/proxyMode", "text/plain; charset=utf-8", id="proxyMode"),
        pytest.param("/configz", "application/json", id="configz"),
        pytest.param("/flagz", "text/plain; charset=utf-8", id="flagz"),
        pytest.param("/statusz", "text/plain; charset=utf-8", id="statusz"),
    ],
)
def test_the_metrics_server_has(daemon, path, content_type):
    status, headers, body = daemon.get("metrics", path)
    assert (status, headers["Content-Type"], headers["Content-Length"]) == (200, content_type, str(len(body)))


@pytest.mark.parametrize("path", ["/", "/debug/pprof/", "/debug/flags/v", "/livez", "/readyz"])
def test_the_metrics_server_has_no(daemon, path):
    assert daemon.get("metrics", path)[0] == 404


def test_metrics_are_what_the_sync_thread_has_done(daemon):
    daemon.hears(ALL)
    daemon.codes()
    body = daemon.get("metrics", "/metrics")[2].decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }
    assert found["ipvsproxy_objects", "virtual server"] == 1
    assert found["kubeproxy_sync_proxy_rules_duration_seconds_count", "IPv4"] == 1
    assert found["kubeproxy_proxy_healthz_total", "200"] == 1


def test_configz_is_the_configuration_in_force_as_it_is_written():
    with running(Daemon(**{"--ipvs-scheduler": "lc", "--ipvs-exclude-cidrs": ("192.0.2.0/24",)})) as daemon:
        document = json.loads(daemon.get("metrics", "/configz")[2])["kubeproxy.config.k8s.io"]
    assert document["kind"] == "KubeProxyConfiguration"
    assert document["ipvs"]["excludeCIDRs"] == ["192.0.2.0/24"]
    assert document["ipvs"]["scheduler"] == "lc"
    assert document["metricsBindAddress"] == f"127.0.0.1:{daemon.ports['metrics']}"


def test_metrics_are_served_on_loopback_and_health_everywhere_unless_somebody_asks_otherwise():
    config = read_config({})
    assert config.metrics is not None
    assert config.healthz is not None
    assert (config.metrics.address, config.metrics.port) == (b"\x7f\0\0\1", 10249)
    assert (config.healthz.address, config.healthz.port) == (b"\0\0\0\0", 10256)


def test_health_port_0_is_no_health_server():
    node = Node()
    runner = Runner(Inbox(), node.tracker, node.reconciler, node.clock, Periods())
    config = read_config({"--healthz-port": 0})
    servers = dict(page_servers(config, NODE, runner, node.clock, lambda _: {}))
    for server in servers.values():
        server.close()
    assert list(servers) == ["metrics"]
