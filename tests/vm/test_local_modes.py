"""Packets under every way to tell local traffic: who asks a Service gets an answer, whatever the mode (K02)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.clusters import Svc
from tests.lab.hosts import BRIDGE, NODE_ADDRESSES, NODE_NAME, Cluster
from tests.lab.traffic import Transport, ask
from tests.vm.nodes import FLAGS, ProxyNode, proxy_node, small_cluster
from tests.vm.places import A1, B1, every_family, every_transport, ready

CLUSTER_IP = (("10.96.0.20", "2001:db8:96::20"), 80)
LOAD_BALANCER = (("203.0.113.10", "2001:db8:113::10"), 80)
NODE_PORT = (NODE_ADDRESSES, 30080)
WEB = Svc(
    "web",
    CLUSTER_IP[0],
    ((80, "TCP"), (80, "UDP")),
    ready(A1, B1),
    node_ports=(30080, 30080),
    ingress=tuple((address, "VIP") for address in LOAD_BALANCER[0]),
)
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": NODE_NAME},
    "spec": {"podCIDRs": ["10.244.1.0/24", "2001:db8:244:1::/64"]},
}
WITHOUT_CIDR = tuple(flag for flag in FLAGS if not flag.startswith("--cluster-cidr"))
MODES = [
    pytest.param((), id="no cluster CIDR"),
    pytest.param(("--detect-local-mode=BridgeInterface", f"--pod-bridge-interface={BRIDGE}"), id="BridgeInterface"),
    pytest.param(
        ("--detect-local-mode=InterfaceNamePrefix", f"--pod-interface-name-prefix={BRIDGE[:-1]}"),
        id="InterfaceNamePrefix",
    ),
    pytest.param(("--detect-local-mode=NodeCIDR",), id="NodeCIDR"),
    pytest.param(("--masquerade-all",), id="masquerade all"),
]
every_way = pytest.mark.parametrize(
    "way",
    [
        pytest.param(CLUSTER_IP, id="cluster IP"),
        pytest.param(LOAD_BALANCER, id="load-balancer IP"),
        pytest.param(NODE_PORT, id="node port"),
    ],
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """A cluster of its own: in the shared one a proxy runs already."""
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture(scope="module", params=MODES)
def node(
    hosts: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ProxyNode]:
    """Its node with a proxy in one of the modes."""
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "manifests").mkdir()
    (folder / "manifests" / "node.json").write_text(json.dumps(NODE))
    with proxy_node(hosts, folder, *request.param, base=WITHOUT_CIDR) as node:
        node.sync(WEB)
        yield node


def answers(node: ProxyNode, client: str, way, family: int, transport: Transport) -> dict[str, str]:
    """Who answered two questions → the address that it saw the client at."""
    addresses, port = way
    told = [ask(node.hosts[client], addresses[family], port, transport) for _ in range(2)]
    return {answer.server: answer.client for answer in told}


@every_family
@every_transport
@every_way
def test_k02_the_node_itself_comes_to_an_endpoint_elsewhere_from_its_own_address(
    node: ProxyNode, way, transport, family
):
    found = answers(node, "node", way, family, transport)
    assert set(found) == {"a1", "b1"}
    assert found["b1"] == NODE_ADDRESSES[family]


@every_family
@every_transport
@every_way
def test_k02_a_pod_is_answered_by_all_endpoints(node: ProxyNode, way, transport, family):
    assert set(answers(node, "a3", way, family, transport)) == {"a1", "b1"}


@every_family
@every_transport
@pytest.mark.parametrize(
    "way", [pytest.param(LOAD_BALANCER, id="load-balancer IP"), pytest.param(NODE_PORT, id="node port")]
)
def test_k02_a_client_outside_is_answered_by_all_endpoints(node: ProxyNode, way, transport, family):
    assert set(answers(node, "outside", way, family, transport)) == {"a1", "b1"}
