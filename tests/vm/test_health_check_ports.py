"""Load balancers' probes as real packets: who is answered, what the answer says, and where nobody may answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, OUTSIDE_ADDRESSES, Cluster
from tests.lab.proxies import LOOK_AGAIN_S, WAIT_S
from tests.lab.traffic import Conversation, Transport, ask, serving, stream_to
from tests.vm.health import probe, refusal
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
SILENCE_S = 0.5
"""How long a client listens where nothing should come."""

every_way = pytest.mark.parametrize(
    "addresses", [pytest.param(LOAD_BALANCER, id="load-balancer IP"), pytest.param(NODE_ADDRESSES, id="node address")]
)


@pytest.fixture(scope="module", autouse=True)
def _sshd(hosts: Cluster) -> Iterator[None]:
    """The node listens on port 22 of all its addresses."""
    with serving((hosts.node, "sshd", "::", 22, Transport.TCP)):
        yield


def wait_until_open(node: ProxyNode, port: int = PORT) -> None:
    """The server has a thread of its own, which may be behind the sync; on the node itself nothing else refuses."""
    wait(lambda: refusal(node.host, NODE_ADDRESSES[0], port) is None)
    wait(lambda: refusal(node.host, NODE_ADDRESSES[1], port) is None)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(LOOK_AGAIN_S)


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
    assert probe(answering.hosts[client], addresses[family], PORT) == (200, 2)


@every_way
@every_family
def test_k25_a_probe_of_a_node_without_endpoints_is_told_to_go_elsewhere(answering, addresses, family):
    answering.sync(ELSEWHERE)
    assert probe(answering.hosts["outside"], addresses[family], PORT) == (503, 0)


@every_family
def test_k29_a_port_of_the_node_stays_closed_at_the_load_balancers_address(answering, family):
    assert ask(answering.hosts["outside"], NODE_ADDRESSES[family], 22).server == "sshd"
    with pytest.raises(ConnectionRefusedError):
        ask(answering.hosts["outside"], LOAD_BALANCER[family], 22)


@every_family
def test_k29_the_port_closes_with_its_service(answering, family):
    answering.sync(Svc("other", ("10.96.0.21", "2001:db8:96::21")))
    wait(lambda: refusal(answering.hosts["outside"], NODE_ADDRESSES[family], PORT) is ConnectionRefusedError)
    assert refusal(answering.hosts["outside"], LOAD_BALANCER[family], PORT)


@every_family
def test_k29_the_port_follows_its_service(answering, family):
    answering.sync(msgspec.structs.replace(WEB, health_port=PORT + 1))
    wait_until_open(answering, PORT + 1)
    assert probe(answering.hosts["outside"], LOAD_BALANCER[family], PORT + 1) == (200, 2)
    wait(lambda: refusal(answering.hosts["outside"], NODE_ADDRESSES[family], PORT) is ConnectionRefusedError)
    assert refusal(answering.hosts["outside"], LOAD_BALANCER[family], PORT) is ConnectionRefusedError


# Endpoints that stop (K17)


@every_family
def test_k17_the_last_endpoint_here_serves_new_clients_while_it_stops_and_load_balancers_hear_503(answering, family):
    answering.sync(msgspec.structs.replace(WEB, endpoints=ready(A1, B1), stopping=A1))
    outside = answering.hosts["outside"]
    wait(lambda: probe(outside, NODE_ADDRESSES[family], PORT) == (503, 0))
    answer = ask(outside, LOAD_BALANCER[family], 80)
    assert (answer.server, answer.client) == ("a1", OUTSIDE_ADDRESSES[family])


@every_family
def test_k17_beside_a_ready_endpoint_one_that_stops_keeps_its_streams_and_gets_no_new_ones(answering, family):
    draining = msgspec.structs.replace(WEB, drain="1m")
    answering.sync(draining)
    outside = answering.hosts["outside"]
    with stream_to("a1", outside, LOAD_BALANCER[family], 80) as talk:
        answering.sync(msgspec.structs.replace(draining, stopping=A1))
        assert {ask(outside, LOAD_BALANCER[family], 80).server for _ in range(4)} == {"a2"}
        assert talk.ask().server == "a1"
    answering.sync(WEB)  # nothing may drain behind the next test's back


@every_family
def test_k17_an_endpoint_that_stops_and_does_not_serve_is_not_used_where_there_is_no_other_either(answering, family):
    not_serving = tuple((address, False) for address in A1)
    answering.sync(msgspec.structs.replace(WEB, endpoints=(*not_serving, *ready(B1)), stopping=A1))
    assert ask(answering.hosts["a3"], LOAD_BALANCER[family], 80).server == "b1"
    with (
        pytest.raises(TimeoutError),
        Conversation(answering.hosts["outside"], LOAD_BALANCER[family], 80, timeout_s=SILENCE_S),
    ):
        pass


@every_family
def test_k17_where_all_endpoints_of_the_cluster_stop_all_that_serve_stand_in(answering, family):
    answering.sync(msgspec.structs.replace(WEB, stopping=(*A1, *A2, *B1)))
    assert {ask(answering.hosts["a3"], WEB.ips[family], 80).server for _ in range(3)} == {"a1", "a2", "b1"}
