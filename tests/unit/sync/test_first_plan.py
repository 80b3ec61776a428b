"""What is served before the rest is known (K38) is served right: nothing of it turns out to be another's (K14)."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import Kind
from tests.builders import addr, vs_key
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, served

HERE, THERE, OTHERS = "10.244.1.5", "10.244.2.5", "10.244.1.9"
VIP, NODE, DNS_IP = "203.0.113.20", "192.0.2.11", "10.96.0.10"
DNS = Svc(
    "kube-dns",
    (DNS_IP,),
    ((53, "TCP"),),
    ((HERE, True), (THERE, True)),
    here=(HERE,),
    namespace="kube-system",
    created="2026-02-01T00:00:00Z",
)
BALANCED = msgspec.structs.replace(DNS, ingress=((VIP, "VIP"),))
EXTERNAL = msgspec.structs.replace(DNS, external_ips=(VIP,))
OLDER = Svc("older", ("10.96.0.22",), ((53, "TCP"),), ((OTHERS, True),))
RANGES = ("198.51.100.7/32",), ("198.51.100.8/32",)


def ranged(service: Svc, ranges: tuple[str, ...]) -> Svc:
    return msgspec.structs.replace(service, source_ranges=ranges)


def claiming(address: str, port: int = 53) -> Svc:
    return msgspec.structs.replace(OLDER, ports=((port, "TCP"),), external_ips=(address,))


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param((), (EXTERNAL, claiming(VIP)), id="its external IP is an older Service's"),
        pytest.param((), (DNS, claiming(DNS_IP)), id="its cluster IP is an older Service's external IP"),
        pytest.param(
            (),
            (msgspec.structs.replace(DNS, node_ports=(30053,)), claiming(NODE, 30053)),
            id="its node port is a port of an older Service's external IP",
        ),
        pytest.param((BALANCED,), (ranged(BALANCED, RANGES[0]),), id="ranges have come"),
        pytest.param((ranged(BALANCED, RANGES[0]),), (BALANCED,), id="ranges have gone"),
        pytest.param(
            (ranged(msgspec.structs.replace(BALANCED, endpoints=((HERE, True),)), RANGES[0]),),
            (ranged(msgspec.structs.replace(BALANCED, endpoints=((THERE, True),)), RANGES[1]),),
            id="ranges and endpoints are others",
        ),
    ],
)
def test_k14_no_client_is_led_where_it_is_not_before_or_after_a_start(before, after):
    fake = FakeKernel()
    Node(fake, host=(NODE,)).sync(cluster(*before))
    node = Node(fake, host=(NODE,))
    witness = Witness(fake, {addr(NODE)})
    node.sync(cluster(*after))
    witness.check_sources()
    witness.check()


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(EXTERNAL, id="an external IP"),
        pytest.param(ranged(BALANCED, RANGES[0]), id="a load-balancer IP with ranges"),
        pytest.param(msgspec.structs.replace(DNS, node_ports=(30053,)), id="a node port"),
    ],
)
def test_k38_its_cluster_ip_is_served_before_all_else_whatever_its_other_addresses_are(service):
    node = Node(host=(NODE,))
    key = vs_key(DNS_IP, 53)
    found: list[set[object]] = []

    def look() -> None:
        if key in served(node.fake.state) and not found:
            found.append(set(node.fake.state[Kind.VIRTUAL_SERVER]))

    node.fake.after_message = look
    node.sync(cluster(service, claiming(VIP, 80)))
    assert found == [{key}]
