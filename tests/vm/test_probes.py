"""What probes and scrapes are told by a daemon at work: over real sockets, from the node and from outside."""

from __future__ import annotations

import json
from http import HTTPStatus

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Namespace
from tests.lab.traffic import Conversation
from tests.vm.nodes import ProxyNode, bound, knowing_nodes, virtual_servers
from tests.vm.places import A1, B1, ready

HEALTH, METRICS = 10256, 10249
WEB = Svc("web", ("10.96.0.20", "2001:db8:96::20"), ((80, "TCP"),), ready(A1, B1))


def get(host: Namespace, path: str, port: int, address: str = "127.0.0.1") -> tuple[int, bytes]:
    """Status and body that somebody at `host` is told. Raises OSError."""
    with Conversation(host, address, port) as talk:
        talk.send(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        head, _, body = b"".join(iter(talk.receive, b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def scraped(host: Namespace) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    text = get(host, "/metrics", METRICS)[1].decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_k52_a_node_that_serves_is_healthy_and_one_that_nobody_knows_is_not_eligible(node: ProxyNode):
    node.sync(WEB)
    told = {path: get(node.host, path, HEALTH) for path in ("/healthz", "/livez", "/readyz")}
    assert [status for status, _ in told.values()] == [503, 200, 200]
    assert json.loads(told["/healthz"][1])["healthy"] is True
    with knowing_nodes(node):
        assert get(node.host, "/healthz", HEALTH)[0] == HTTPStatus.OK


@pytest.mark.parametrize("address", NODE_ADDRESSES)
def test_health_is_answered_to_load_balancers_in_both_families(node: ProxyNode, address: str):
    node.sync(WEB)
    status, body = get(node.hosts["outside"], "/livez", HEALTH, address)
    assert (status, set(json.loads(body)["status"])) == (HTTPStatus.OK, {"IPv4", "IPv6"})


def test_metrics_are_for_the_node_alone(node: ProxyNode):
    with pytest.raises(ConnectionRefusedError):
        get(node.hosts["outside"], "/metrics", METRICS, NODE_ADDRESSES[0])
    assert get(node.host, "/proxyMode", METRICS) == (HTTPStatus.OK, b"ipvs")


def test_metrics_count_what_is_in_the_kernel(node: ProxyNode):
    node.sync(WEB, msgspec.structs.replace(WEB, name="other", ips=("10.96.0.21",)))
    values = scraped(node.host)
    stand = sum(line.startswith("-A ") for line in virtual_servers(node.host))  # an earlier test's address may linger
    assert values["ipvsproxy_objects", "virtual server"] == stand >= 3
    assert values["ipvsproxy_objects", "address"] == len(bound(node.host)) >= 3
    assert values["ipvsproxy_services",] == 2
    assert sum(values["ipvsproxy_objects_refused", kind] for kind in ("virtual server", "set", "rules")) == 0
