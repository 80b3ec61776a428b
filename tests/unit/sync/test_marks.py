"""Masquerading comes before the endpoints that need it and goes after them, whatever changes at once (K24)."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from tests.builders import addr
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, is_masqueraded, served

HERE, THERE = "10.244.1.5", "10.244.2.5"
VIP, NODE = "203.0.113.20", "192.0.2.11"
BOTH = Svc("a", endpoints=((HERE, True), (THERE, True)), here=(HERE,))
OUTSIDE = {addr(VIP), addr(NODE)}
FRONTENDS = {
    "load balancer": msgspec.structs.replace(BOTH, ingress=((VIP, "VIP"),)),
    "external IP": msgspec.structs.replace(BOTH, external_ips=(VIP,)),
    **{
        f"node port of {protocol}": msgspec.structs.replace(BOTH, ports=((80, protocol),), node_ports=(30080,))
        for protocol in ("TCP", "UDP", "SCTP")
    },
}


def with_policy(service: Svc, policy: str) -> Svc:
    return msgspec.structs.replace(service, external_policy=policy)


@pytest.mark.parametrize("name", FRONTENDS)
@pytest.mark.parametrize("before, after", [*permutations(("Cluster", "Local"))])
def test_k24_while_the_policy_flips_no_endpoint_of_another_node_sees_a_client_unmasqueraded(name, before, after):
    node = Node(host=(NODE,))
    node.sync(cluster(with_policy(FRONTENDS[name], before)))
    witness = Witness(node.fake, {addr(NODE)})
    node.sync(cluster(with_policy(FRONTENDS[name], after)))
    witness.check_masquerading()


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param("load balancer", "external IP", id="a load balancer's address becomes an external IP"),
        pytest.param("external IP", "load balancer", id="an external IP becomes a load balancer's address"),
    ],
)
@pytest.mark.parametrize("policies", [*permutations(("Cluster", "Local"))])
def test_k24_so_it_is_where_the_kind_of_an_address_changes_too(before, after, policies):
    node = Node()
    node.sync(cluster(with_policy(FRONTENDS[before], policies[0])))
    witness = Witness(node.fake)
    node.sync(cluster(with_policy(FRONTENDS[after], policies[1])))
    witness.check_masquerading()


@pytest.mark.parametrize("before", ["load balancer", "external IP"])
@pytest.mark.parametrize("after", ["load balancer", "external IP"])
@pytest.mark.parametrize("policies", [*permutations(("Cluster", "Local"))])
@pytest.mark.parametrize("moves", ["goes", "comes"])
def test_k24_so_it_is_where_an_interface_of_the_node_loses_or_gets_that_very_address(before, after, policies, moves):
    host = (VIP,), ()
    had, has = host if moves == "goes" else reversed(host)
    node = Node(host=had)
    node.sync(cluster(with_policy(FRONTENDS[before], policies[0])))
    witness = Witness(node.fake, {*map(addr, has)}, lost={*map(addr, had)})
    node.has(*has)
    node.sync(cluster(with_policy(FRONTENDS[after], policies[1])))
    witness.check_masquerading()
    witness.check_sources()
    witness.check()


@pytest.mark.parametrize("name", FRONTENDS)
def test_k24_a_frontend_of_policy_local_masquerades_nobody_from_its_first_moment_to_its_last(name):
    node = Node(host=(NODE,))
    other = Svc("b", ("10.96.0.22",))
    node.sync(cluster(other))
    moments: list[bool] = []

    def look() -> None:
        frontends = {key for key in served(node.fake.state, {addr(NODE)}) if key.address in OUTSIDE}
        moments.extend(is_masqueraded(node.fake.state, key) for key in frontends)

    node.fake.after_message = look
    node.sync(cluster(other, with_policy(FRONTENDS[name], "Local")))
    node.sync(cluster(other))
    assert moments
    assert not any(moments)
