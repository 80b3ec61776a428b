"""Whose an address is does not depend on the order in which it became known, and no other Node's is ever programmed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import OTHER_NODE, Forgotten, Listed, NodeAddresses
from ipvsproxy.cluster.node import NodeView
from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.model.addr import Cidr, PackedAddr, parse_cidr
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.model.names import ServiceName
from tests.builders import addr
from tests.clusters import Node, Svc, cluster

ADDRESSES = tuple(map(addr, ("192.0.2.11", "192.0.2.12", "10.244.1.7", "203.0.113.20", "2001:db8:1::12")))
NODES, SERVICES = ("n2", "n3"), ("a", "b")
POD_CIDRS = tuple(cidr for text in ("10.244.0.0/16", "192.0.2.0/24", "2001:db8:1::/64") if (cidr := parse_cidr(text)))


class Facts(msgspec.Struct, frozen=True):
    """All that decides."""

    claims: tuple[tuple[PackedAddr, ...], ...]
    nodes: tuple[tuple[PackedAddr, ...], ...]
    own: tuple[PackedAddr, ...] = ()
    our_node: tuple[PackedAddr, ...] = ()
    pod_cidrs: tuple[Cidr, ...] = ()
    gateways: tuple[PackedAddr, ...] = ()

    def elsewhere(self) -> set[PackedAddr]:
        """What must be left alone when all Nodes are known."""
        counting = self.pod_cidrs if self.our_node else ()
        networks = [cidr for cidr in counting if not any(own in cidr for own in self.our_node)]
        taken = {address for addresses in (*self.nodes, self.our_node, self.gateways) for address in addresses}
        claimed = {address for addresses in self.claims for address in addresses}
        foreign = {address for address in claimed if address in taken or any(address in net for net in networks)}
        return foreign - set(self.own)


def some_of(values: Sequence, max_size: int = 3):
    return st.lists(st.sampled_from(values), unique=True, max_size=max_size).map(tuple)


def facts():
    return st.builds(
        Facts,
        claims=st.tuples(*(some_of(ADDRESSES) for _ in SERVICES)),
        nodes=st.tuples(*(some_of(ADDRESSES) for _ in NODES)),
        own=some_of(ADDRESSES, 1),
        our_node=some_of(ADDRESSES, 1),
        pod_cidrs=some_of(POD_CIDRS, 2),
        gateways=some_of(ADDRESSES, 1),
    )


def view(name: str, addresses: tuple[PackedAddr, ...]) -> ServiceView:
    """The first address as external IP, the others as a load balancer's."""
    return ServiceView(
        ServiceName("default", name), "", (), (), external_ips=addresses[:1], load_balancer_ips=addresses[1:]
    )


NOTHING = Facts(((),) * len(SERVICES), ((),) * len(NODES))


def live(claims: Claims, before: Facts, now: Facts) -> None:
    for name, old, new in zip(SERVICES, before.claims, now.claims, strict=True):
        claims.claim(view(name, old), view(name, new))
    for name, old, new in zip(NODES, before.nodes, now.nodes, strict=True):
        if old != new:
            claims.put_node(name, new)
    claims.put_own(frozenset(now.own))
    claims.put_gateways(frozenset(now.gateways))
    claims.put_our_node(NodeView("n1", now.our_node, now.pod_cidrs))


def settled(claims: Claims, bound: Collection[PackedAddr] = ()) -> set[ServiceName]:
    """As a sync settles it, after which nothing lingers; the Services that are touched."""
    moved = claims.settle(bound)
    claims.put_lingering(frozenset())
    assert claims.settle(bound) == set()
    return moved


@given(st.lists(facts(), min_size=1, max_size=5))
def test_k33_what_is_elsewhere_follows_from_the_facts_alone(history):
    claims, before = Claims(), NOTHING
    for now in history:
        reasons = [tuple(claims.faults(view(name, old))) for name, old in zip(SERVICES, before.claims, strict=True)]
        live(claims, before, now)
        moved = settled(claims)
        assert claims.elsewhere == now.elsewhere()
        for name, old, new, reason in zip(SERVICES, before.claims, now.claims, reasons, strict=True):
            if old == new and tuple(claims.faults(view(name, new))) != reason:
                assert ServiceName("default", name) in moved
        assert claims.settle() == set()
        before = now
    live(claims, before, NOTHING)
    settled(claims)
    assert len(claims) == 0


@given(st.lists(facts(), min_size=1, max_size=4))
def test_k33_while_nodes_are_not_known_no_address_comes_to_be_ours(history):
    """`bound` is what is not elsewhere, as a sync brings it about."""
    claims, before = Claims(waits_for_nodes=True), NOTHING
    bound: set[PackedAddr] = set()
    for now in history:
        live(claims, before, now)
        settled(claims, bound)
        served = {address for addresses in now.claims for address in addresses} - claims.elsewhere - set(now.own)
        assert not served & now.elsewhere()
        assert served <= bound
        claims.know_nodes()
        settled(claims, bound)
        assert claims.elsewhere == now.elsewhere()
        bound = {address for addresses in now.claims for address in addresses} - claims.elsewhere - set(now.own)
        claims.forget_nodes()
        settled(claims, bound)
        before = msgspec.structs.replace(now, nodes=NOTHING.nodes)


IPS = ("192.0.2.12", "192.0.2.13", "203.0.113.20")


@st.composite
def rounds(draw):
    """Services, other Nodes and own addresses as they are in turn, and whether the Nodes are forgotten before."""
    services = [
        Svc(
            name,
            (f"10.96.0.{number}",),
            external_ips=draw(some_of(IPS)),
            node_ports=draw(st.sampled_from(((), (30080,)))),
        )
        for number, name in enumerate(draw(some_of(("a", "b"))), 20)
    ]
    return cluster(*services), draw(some_of(IPS)), draw(some_of(IPS, 1)), draw(st.booleans())


@given(st.lists(rounds(), min_size=1, max_size=4))
def test_k33_no_sync_programs_an_address_of_another_node_unless_an_interface_has_it(history):
    node = Node(claims=Claims(waits_for_nodes=True))
    for services, others, own, forgets in history:
        if forgets:
            node.tracker.note(Forgotten(OTHER_NODE))
        node.has(*own)
        for number, name in enumerate(IPS):
            node.tracker.note(NodeAddresses(f"n{number}", (addr(name),) if name in others else ()))
        node.tracker.note(Listed(OTHER_NODE))
        node.sync(services)
        assert node.sync() == 0
        forbidden = set(map(addr, others)) - set(map(addr, own))
        state = node.fake.state
        assert not forbidden & {getattr(key, "address", key) for kind in Kind for key in state[kind]}
        fresh = Node(host=own)
        for name in others:
            fresh.tracker.note(NodeAddresses(name, (addr(name),)))
        fresh.sync(services)
        assert state == fresh.fake.state
