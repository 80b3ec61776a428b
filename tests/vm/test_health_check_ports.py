"""Load balancers' probes as real packets: who is answered, what the answer says, and where nobody may answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster, Namespace
from tests.lab.proxies import LOOK_AGAIN_S, WAIT_S
from tests.lab.traffic import Conversation, Transport, ask, serving
from tests.vm.nodes import ProxyNode
from tests.vm.places import A1, A2, B1, every_family, ready

LOAD_BALANCER = ("203.0.113.10", "2001:db8:113::10")
PORT = 32100
WEB = Svc(
    "web",
    ("10.96.0.20", "2001:db8:96::20"),
    ((80, "TCP"),),
    ready(A1, A2, B1),
    ingress=tuple((ip, "VIP") for ip in LOAD_BALANCER),
    external_policy="Local",
    health_port=PORT,
)
ELSEWHERE = msgspec.structs.replace(WEB, endpoints=ready(B1))
"""The same with an endpoint on another node alone."""

every_way = pytest.mark.parametrize(
    "addresses", [pytest.param(LOAD_BALANCER, id="load-balancer IP"), pytest.param(NODE_ADDRESSES, id="node address")]
)


@pytest.fixture(scope="module", autouse=True)
def _sshd(hosts: Cluster) -> Iterator[None]:
    """The node listens on port 22 of all its addresses."""
    with serving((hosts.node, "sshd", "::", 22, Transport.TCP)):
        yield


def probe(host: Namespace, address: str, port: int = PORT) -> tuple[int, int]:
    """Status and number of local endpoints that a load balancer at `host` is told. Raises OSError."""
    with Conversation(host, address, port) as talk:
        talk.send(f"GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        head, _, body = b"".join(iter(talk.receive, b"")).partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError("closed without an answer")
    told = json.loads(body)
    assert told["service"] == {"namespace": "default", "name": "web"}
    return int(head.split()[1]), told["localEndpoints"]


def wait_until_open(node: ProxyNode, port: int = PORT) -> None:
    """The server has a thread of its own, which may be behind the sync; on the node itself nothing else refuses."""
    wait(lambda: refusal(node.host, NODE_ADDRESSES[0], port) is None)
    wait(lambda: refusal(node.host, NODE_ADDRESSES[1], port) is None)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(LOOK_AGAIN_S)


def refusal(host: Namespace, address: str, port: int = PORT) -> type[OSError] | None:
    """How a probe fails; None if it is answered."""
    try:
        probe(host, address, port)
    except OSError as error:
        return type(error)
    return None


@pytest.fixture
def answering(node: ProxyNode) -> ProxyNode:
    """The node with the Service."""
    node.sync(WEB)
    wait_until_open(node)
    return node


@every_way
@every_family
@pytest.mark.parametrize("client", ["outside", "remote", "node", "a1"])
def test_k29_a_probe_is_answered_with_the_number_of_endpoints_here(answering, client, addresses, family):
    assert probe(answering.hosts[client], addresses[family]) == (200, 2)


@every_way
@every_family
def test_k25_a_probe_of_a_node_without_endpoints_is_told_to_go_elsewhere(answering, addresses, family):
    answering.sync(ELSEWHERE)
    assert probe(answering.hosts["outside"], addresses[family]) == (503, 0)


@every_family
def test_k29_a_port_of_the_node_stays_closed_at_the_load_balancers_address(answering, family):
    assert ask(answering.hosts["outside"], NODE_ADDRESSES[family], 22).server == "sshd"
    with pytest.raises(ConnectionRefusedError):
        ask(answering.hosts["outside"], LOAD_BALANCER[family], 22)


@every_family
def test_k29_the_port_closes_with_its_service(answering, family):
    answering.sync(Svc("other", ("10.96.0.21", "2001:db8:96::21")))
    wait(lambda: refusal(answering.hosts["outside"], NODE_ADDRESSES[family]) is ConnectionRefusedError)
    assert refusal(answering.hosts["outside"], LOAD_BALANCER[family])


@every_family
def test_k29_the_port_follows_its_service(answering, family):
    answering.sync(msgspec.structs.replace(WEB, health_port=PORT + 1))
    wait_until_open(answering, PORT + 1)
    assert probe(answering.hosts["outside"], LOAD_BALANCER[family], PORT + 1) == (200, 2)
    wait(lambda: refusal(answering.hosts["outside"], NODE_ADDRESSES[family]) is ConnectionRefusedError)
    assert refusal(answering.hosts["outside"], LOAD_BALANCER[family]) is ConnectionRefusedError
