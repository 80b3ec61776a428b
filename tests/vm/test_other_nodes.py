"""Real packets to another node whose address a Service names as its own (K33)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import Svc
from tests.kube.following import eventually
from tests.lab.hosts import REMOTE_ADDRESSES, Cluster
from tests.lab.traffic import Transport, ask, ping, serving
from tests.vm.nodes import ProxyNode, bound, knowing_nodes, sets, virtual_servers
from tests.vm.places import A1, A2, B1, every_family, ready

CLAIMING = Svc("claiming", ("10.96.0.23", "2001:db8:96::23"), endpoints=ready(A1, A2), external_ips=REMOTE_ADDRESSES)
BALANCED = Svc(
    "balanced",
    ("10.96.0.24", "2001:db8:96::24"),
    ((443, "TCP"),),
    ready(A1, A2),
    ingress=tuple((address, "VIP") for address in (*REMOTE_ADDRESSES, *B1)),
)
BYSTANDER = Svc("bystander", ("10.96.0.25", "2001:db8:96::25"), endpoints=ready(A1))
PREFIXES = tuple(f"{address}/{length}" for address, length in zip(REMOTE_ADDRESSES, (32, 128), strict=True))

every_inside_client = pytest.mark.parametrize(
    "client", [pytest.param("node", id="the node itself"), pytest.param("a3", id="a pod")]
)


@pytest.fixture(scope="module", autouse=True)
def _other_node_listens(hosts: Cluster) -> Iterator[None]:
    """The other node serves ports 22 and 80."""
    places = [
        (hosts["remote"], name, address, port, Transport.TCP)
        for address in REMOTE_ADDRESSES
        for name, port in (("sshd", 22), ("own", 80))
    ]
    with serving(*places):
        yield


@pytest.fixture
def claimed(node: ProxyNode) -> ProxyNode:
    """Two Services name the other node's addresses, the second one a pod's too."""
    node.sync(CLAIMING, BALANCED)
    return node


@pytest.fixture
def protected(claimed: ProxyNode) -> Iterator[ProxyNode]:
    """The same, and the Nodes are known."""
    with knowing_nodes(claimed):
        yield claimed


@every_family
@every_inside_client
def test_k33_the_other_node_can_be_reached_though_services_name_its_address(protected, client, family):
    host, address = protected.hosts[client], REMOTE_ADDRESSES[family]
    assert ping(host, address)
    assert ask(host, address, 22).server == "sshd"
    assert ask(host, address, 80).server == "own"  # it serves the port itself, as it likes


def test_k33_nothing_in_the_kernel_bears_the_other_nodes_or_the_pods_address(protected):
    lines = [*bound(protected.host), *sets(protected.host), *virtual_servers(protected.host)]
    assert [line for line in lines if "10.96.0.24" in line]
    assert not [line for line in lines if any(address in line for address in (*REMOTE_ADDRESSES, *B1))]


@every_family
def test_k33_a_node_that_is_added_later_gets_its_bound_address_back_in_one_pass(claimed, family):
    host, address = claimed.host, REMOTE_ADDRESSES[family]
    assert set(PREFIXES) <= bound(host)
    assert ask(host, address, 80).server in {"a1", "a2"}
    with pytest.raises(ConnectionRefusedError):
        ask(host, address, 22)  # this node takes itself for the other one: that is K33
    with knowing_nodes(claimed):
        assert not set(PREFIXES) & bound(host)
        assert ping(host, address)
        assert ask(host, address, 22).server == "sshd"
        assert ask(host, "10.96.0.23", 80).server in {"a1", "a2"}
    assert set(PREFIXES) <= bound(host)


@every_family
def test_k33_the_gateway_of_a_default_route_is_left_alone_for_as_long_as_it_is_one(claimed, family):
    """The route is there first: to an address that is bound here the kernel itself lets no route lead."""
    host, address = claimed.host, REMOTE_ADDRESSES[family]
    route = f"{('0.0.0.0/0', '::/0')[family]} via {address}"
    claimed.sync(BYSTANDER)
    host.ip(f"route add {route}")
    try:
        claimed.sync(CLAIMING, BALANCED)
        eventually(lambda: set(PREFIXES) - bound(host) == {PREFIXES[family]})
        assert ping(host, address)
        assert ask(host, address, 22).server == "sshd"
    finally:
        host.ip(f"route del {route}")
    eventually(lambda: set(PREFIXES) <= bound(host))


def test_k33_it_is_said_which_service_names_whose_address(claimed):
    with knowing_nodes(claimed):
        said = [line for line in claimed.proxy.lines() if line["event"] == "object_rejected"]
    reasons = {line["object"]: line["reason"] for line in said}
    assert "external IP 192.0.2.12 is an address of Node n2" in reasons["Service default/claiming"]
    assert "load-balancer IP 10.244.2.5 is in the pod network 10.244.0.0/16" in reasons["Service default/balanced"]
