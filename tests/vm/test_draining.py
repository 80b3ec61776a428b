"""Streams through real servers, Services and proxies that go: they work on, end in time, and never meet silence.

On a node of its own: what drains here would change under other tests. Clients end their connections by a reset, since
IPVS counts one that was closed for two minutes more.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from tests.clusters import Svc
from tests.lab import traffic
from tests.lab.hosts import NODE_ADDRESSES, Cluster
from tests.lab.traffic import Conversation, Transport, serving
from tests.vm.nodes import ProxyNode, bound, proxy_node, sets, small_cluster, virtual_servers, weights
from tests.vm.places import A1, A2, B1, every_family, ready

LONG, SHORT = "15m", "4s"
A4 = ("10.244.1.8", "2001:db8:244:1::8")
fresh_vips = ((f"10.96.0.{n}", f"2001:db8:96::{n}") for n in itertools.count(40))
every_client = pytest.mark.parametrize(
    "client",
    [
        pytest.param("a3", id="from a pod"),
        pytest.param("node", id="from the node itself"),
        pytest.param("outside", id="from outside"),
    ],
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def node(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    with proxy_node(hosts, tmp_path_factory.mktemp("draining")) as node:
        yield node


@pytest.fixture
def vips() -> tuple[str, str]:
    """Addresses that no other test uses: one for each family."""
    return next(fresh_vips)


def web(vips: tuple[str, str], *pods: tuple[str, str], drain: str = LONG, **fields) -> Svc:
    return Svc("web", vips, endpoints=ready(*pods), drain=drain, **fields)


def ask(node: ProxyNode, client: str, address: str) -> str:
    """Who answers on a new connection, which leaves no trace for long."""
    return traffic.ask(node.hosts[client], address, 80, aborts=True).server


def stream(node: ProxyNode, server: str, client: str, address: str, port: int = 80):
    """A stream from this client that this server holds."""
    return traffic.stream_to(server, node.hosts[client], address, port)


# An endpoint leaves


@every_family
@every_client
def test_k08_a_held_stream_goes_on_and_new_ones_reach_the_other_endpoint(node: ProxyNode, vips, client, family):
    node.sync(web(vips, A1, A2))
    with stream(node, "a1", client, vips[family]) as talk:
        node.sync(web(vips, A2))
        assert weights(node.host, vips[family]) == {A1[family]: 0, A2[family]: 1}
        assert talk.ask().server == "a1"
        assert {ask(node, client, vips[family]) for _ in range(20)} == {"a2"}
        assert talk.ask().server == "a1"


@every_family
def test_k25_a_stream_from_outside_goes_on_while_the_last_endpoint_here_drains(node: ProxyNode, vips, family):
    """With policy Local: what is dropped from then on is the beginning of streams."""
    addresses = ("203.0.113.70", "2001:db8:113::70")
    fields = {"external_policy": "Local", "ingress": tuple((address, "VIP") for address in addresses)}
    node.sync(web(vips, A1, B1, **fields))
    with stream(node, "a1", "outside", addresses[family]) as talk:
        node.sync(web(vips, B1, **fields))
        assert talk.ask().server == "a1"


def test_k08_an_endpoint_is_gone_when_its_last_stream_has_ended(node: ProxyNode, vips):
    node.sync(web(vips, A1, A2))
    with stream(node, "a1", "a3", vips[0]):
        node.sync(web(vips, A2))
        assert weights(node.host, vips[0]) == {A1[0]: 0, A2[0]: 1}
        assert weights(node.host, vips[1]) == {A2[1]: 1}  # nobody is connected to that one
    node.proxy.wait_until(lambda: weights(node.host, vips[0]) == {A2[0]: 1})


@every_family
@every_client
def test_k08_at_the_drain_limit_a_living_stream_hears_a_reset(node: ProxyNode, vips, client, family):
    node.sync(web(vips, A1, A2, drain=SHORT))
    with stream(node, "a1", client, vips[family]) as talk:
        node.sync(web(vips, A2, drain=SHORT))
        assert talk.ask().server == "a1"
        node.proxy.wait_until(lambda: weights(node.host, vips[family]) == {A2[family]: 1})
        with pytest.raises(ConnectionResetError):
            talk.ask()


@every_client
def test_k08_a_stream_survives_the_return_of_its_endpoint_which_then_serves_again(node: ProxyNode, vips, client):
    node.sync(web(vips, A1, A2))
    with stream(node, "a1", client, vips[0]) as talk:
        node.sync(web(vips, A2))
        node.sync(web(vips, A1, A2))
        assert talk.ask().server == "a1"
        assert {ask(node, client, vips[0]) for _ in range(4)} == {"a1", "a2"}


def test_k09_a_busy_client_with_few_ports_does_not_keep_a_dead_pod_alive(node: ProxyNode, vips):
    pod = node.hosts.add_pod("a4", *A4)
    ports = range(20000, 20200)
    with serving((pod, "a4", A4[0], 8080, Transport.TCP)):
        node.sync(web(vips, A1, A4, drain=SHORT))
        for port in ports:
            get(node, vips[0], port)
        pod.ip("link set eth0 down")
        for _ in node.syncing(web(vips, A1, drain=SHORT)):
            pass
        assert {get(node, vips[0], port) for port in ports} == {"a1"}
        node.proxy.wait_until(lambda: weights(node.host, vips[0]) == {A1[0]: 1})


def get(node: ProxyNode, address: str, source_port: int) -> str:
    """Who answers over HTTP; the server closes first, so that IPVS still knows the client's port a while."""
    with Conversation(node.hosts["outside"], address, 80, source_port=source_port) as talk:
        talk.send(b"GET / HTTP/1.1\r\n\r\n")
        received = b"".join(iter(talk.receive, b""))
    return received.rpartition(b"\r\n\r\n")[2].decode().partition(" ")[0]


@every_client
def test_k11_session_affinity_moves_a_client_on_when_its_endpoint_leaves(node: ProxyNode, vips, client):
    sticky = {"affinity_s": 10800}
    node.sync(web(vips, A1, A2, **sticky))
    pods = {"a1": A1, "a2": A2}
    pinned = ask(node, client, vips[0])
    (other,) = set(pods) - {pinned}
    with Conversation(node.hosts[client], vips[0], 80, aborts=True) as talk:
        assert talk.ask().server == pinned
        node.sync(web(vips, pods[other], **sticky))
        assert {ask(node, client, vips[0]) for _ in range(3)} == {other}
        assert talk.ask().server == pinned
    node.proxy.wait_until(lambda: weights(node.host, vips[0]) == {pods[other][0]: 1})
    node.proxy.wait_until(lambda: not [line for line in connections(node, vips[0]) if pods[pinned][0] in line])
    node.sync(web(vips, A1, A2, **sticky))
    assert len({ask(node, client, vips[0]) for _ in range(3)}) == 1


def connections(node: ProxyNode, address: str) -> list[str]:
    """IPVS' connections through an address, templates of session affinity among them."""
    return [line for line in node.host.run("ipvsadm", "-L", "-n", "-c").splitlines() if f" {address}:" in line]


def test_k08_k25_a_stream_from_outside_to_the_last_endpoint_here_goes_on_under_policy_local(node: ProxyNode, vips):
    """New ones are dropped: the others are on another node."""
    balanced = {"ingress": (("203.0.113.40", "VIP"),), "external_policy": "Local", "health_port": 32140}
    node.sync(web(vips, A1, B1, **balanced))
    with stream(node, "a1", "outside", "203.0.113.40") as talk:
        node.sync(web(vips, B1, **balanced))
        assert talk.ask().server == "a1"
        with pytest.raises(TimeoutError), Conversation(node.hosts["outside"], "203.0.113.40", 80, timeout_s=1):
            pass
        assert talk.ask().server == "a1"


# A Service is deleted


@every_family
@every_client
def test_k12_a_held_stream_goes_on_when_its_service_is_deleted_and_new_ones_are_refused(
    node: ProxyNode, vips, client, family
):
    node.sync(web(vips, A1))
    with stream(node, "a1", client, vips[family]) as talk:
        node.sync()
        with pytest.raises(ConnectionRefusedError):
            ask(node, client, vips[family])
        assert talk.ask().server == "a1"
        assert weights(node.host, vips[family]) == {A1[family]: 0}
        assert weights(node.host, vips[1 - family]) is None


@every_client
def test_k12_k28_a_held_stream_goes_on_where_input_is_dropped_by_policy(node: ProxyNode, vips, client):
    node.sync(web(vips, A1))
    with stream(node, "a1", client, vips[0]) as talk, input_dropped(node):
        node.sync()
        assert talk.ask().server == "a1"


@contextlib.contextmanager
def input_dropped(node: ProxyNode) -> Iterator[None]:
    """What nobody accepts is dropped by the node in the `with` block."""
    node.host.run("iptables-legacy", "-P", "INPUT", "DROP")
    try:
        yield
    finally:
        node.host.run("iptables-legacy", "-P", "INPUT", "ACCEPT")


def test_k12_when_the_last_stream_of_a_deleted_service_has_ended_nothing_of_it_is_left(node: ProxyNode, vips):
    node.sync(web(vips, A1))
    with stream(node, "a1", "a3", vips[0]):
        node.sync()
        assert f"{vips[0]}/32" in bound(node.host)
    node.proxy.wait_until(lambda: weights(node.host, vips[0]) is None)
    node.proxy.wait_until(lambda: f"{vips[0]}/32" not in bound(node.host))
    node.proxy.wait_until(lambda: not [line for line in sets(node.host) if vips[0] in line])


@every_family
@every_client
def test_k12_at_the_drain_limit_a_stream_to_a_deleted_service_hears_a_reset(node: ProxyNode, vips, client, family):
    node.sync(web(vips, A1, drain=SHORT))
    with stream(node, "a1", client, vips[family]) as talk:
        node.sync()
        assert talk.ask().server == "a1"
        node.proxy.wait_until(lambda: weights(node.host, vips[family]) is None)
        with pytest.raises(ConnectionResetError):
            talk.ask()
        with pytest.raises(ConnectionRefusedError):
            ask(node, client, vips[family])


def test_k12_an_endpoint_that_drains_already_when_its_service_goes_works_on_to_its_limit(node: ProxyNode, vips):
    node.sync(web(vips, A1, A2, drain=SHORT))
    with stream(node, "a1", "a3", vips[0]) as first, stream(node, "a2", "outside", vips[0]) as second:
        node.sync(web(vips, A2, drain=SHORT))
        node.sync()
        for talk, server in ((first, "a1"), (second, "a2")):
            assert talk.ask().server == server
        node.proxy.wait_until(lambda: weights(node.host, vips[0]) is None)
        for talk in (first, second):
            with pytest.raises(ConnectionResetError):
                talk.ask()


@every_client
def test_k12_a_service_that_does_not_drain_is_ended_by_a_reset(node: ProxyNode, vips, client):
    node.sync(web(vips, A1, drain="0"))
    with stream(node, "a1", client, vips[0]) as talk:
        node.sync()
        assert weights(node.host, vips[0]) is None
        with pytest.raises(ConnectionResetError):
            talk.ask()


@pytest.mark.parametrize("client", ["node", "outside"])
def test_k12_a_stream_through_a_node_port_is_ended_by_a_reset_when_its_service_is_deleted(
    node: ProxyNode, vips, client
):
    node.sync(web(vips, A1, node_ports=(30090,)))
    with stream(node, "a1", client, NODE_ADDRESSES[0], 30090) as talk:
        node.sync()
        assert not [line for line in virtual_servers(node.host) if ":30090" in line]
        with pytest.raises(ConnectionResetError):
            talk.ask()


def test_a_service_that_comes_back_while_it_drains_keeps_its_streams_and_serves_again(node: ProxyNode, vips):
    node.sync(web(vips, A1))
    with stream(node, "a1", "outside", vips[0]) as talk:
        node.sync()
        node.sync(web(vips, A1))
        assert ask(node, "outside", vips[0]) == "a1"
        assert talk.ask().server == "a1"
