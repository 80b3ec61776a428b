"""K54: the chains that Service traffic passes, counted against the table of docs/data-path.md.

And what follows for others: a policy in OUTPUT holds, since the client's address stands there; their marks survive.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, OUTSIDE_ADDRESSES
from tests.lab.traffic import Conversation, Transport, ask
from tests.tables.hooks import CHAINS, PASSES, Address, Trip
from tests.vm.foreign import VERSIONS, foreign_rules, packets
from tests.vm.nodes import ProxyNode
from tests.vm.places import A1, A3, B1, every_family, every_transport, ready

BOTH = ((80, "TCP"), (80, "UDP"))
NEAR = Svc(
    "near",
    ("10.96.0.60", "2001:db8:96::60"),
    BOTH,
    ready(A1),
    ingress=(("203.0.113.60", "VIP"), ("2001:db8:113::60", "VIP")),
    external_policy="Local",
)
FAR = Svc(
    "far",
    ("10.96.0.61", "2001:db8:96::61"),
    BOTH,
    ready(B1),
    ingress=(("203.0.113.61", "VIP"), ("2001:db8:113::61", "VIP")),
)
NEAR_VIP, FAR_VIP = (tuple(ip for ip, _ in service.ingress) for service in (NEAR, FAR))
OTHER_BITS = "0xffffbfff"
"""Of a mark: all but our one."""


class Question(NamedTuple):
    """Who asks where, and the addresses of the client and of the endpoint that answers."""

    client: str
    to: tuple[str, ...]
    own: tuple[str, str]
    endpoint: tuple[str, str]


QUESTIONS = {
    Trip.POD_TO_POD: Question("a3", NEAR.ips, A3, A1),
    Trip.POD_AWAY: Question("a3", FAR.ips, A3, B1),
    Trip.MASQUERADED: Question("outside", FAR_VIP, OUTSIDE_ADDRESSES, B1),
    Trip.LOCAL: Question("outside", NEAR_VIP, OUTSIDE_ADDRESSES, A1),
    Trip.NODE: Question("node", FAR.ips, NODE_ADDRESSES, B1),
}


@pytest.fixture
def served(node: ProxyNode) -> ProxyNode:
    node.sync(NEAR, FAR)
    return node


@every_family
@pytest.mark.parametrize("trip", [pytest.param(trip, id=trip.value) for trip in Trip])
def test_k54_a_question_and_its_answer_pass_the_chains_of_the_table_and_no_others(served, trip, family):
    question = QUESTIONS[trip]
    addresses = {
        Address.CLIENT: question.own[family],
        Address.NODE: NODE_ADDRESSES[family],
        Address.VIP: question.to[family],
        Address.ENDPOINT: question.endpoint[family],
    }
    passes = {f"pass-{number}": found for number, found in enumerate((*PASSES[trip].question, *PASSES[trip].answer))}
    rules = [
        f"mangle {chain} -s {addresses[source]} -d {addresses[destination]} -p udp -m comment --comment {name}"
        for name, (chain, source, destination) in passes.items()
    ]
    rules += [f"mangle {chain} -p udp -m comment --comment all-{chain}" for chain in CHAINS]
    version = VERSIONS[family]
    with foreign_rules(served.host, version, *rules):
        assert ask(served.hosts[question.client], question.to[family], 80, Transport.UDP)
        met = {name: packets(served.host, version, "mangle", rf"comment {name}\b") for name in passes}
        total = {chain: packets(served.host, version, "mangle", rf"comment all-{chain}\b") for chain in CHAINS}
    assert met == dict.fromkeys(passes, 1)
    assert Counter(total) == Counter(found.chain for found in passes.values())


@every_family
@every_transport
def test_k54_a_policy_in_output_keeps_one_pod_from_another_of_its_node_and_nobody_else(served, transport, family):
    rule = f"filter OUTPUT -s {A3[family]} -d {A1[family]} -j DROP"
    place = (NEAR.ips[family], 80, transport)
    with foreign_rules(served.host, VERSIONS[family], rule):
        assert is_silent(Conversation(served.hosts["a3"], *place, timeout_s=1.0))
        assert packets(served.host, VERSIONS[family], "filter", "OUTPUT .*DROP") > 0
        for other in ("a2", "outside", "node"):
            assert ask(served.hosts[other], *place).server == "a1"
    assert ask(served.hosts["a3"], *place).server == "a1"


def is_silent(conversation: Conversation) -> bool:
    try:
        with conversation as talk:
            talk.ask()
    except TimeoutError:
        return True
    return False


@every_family
@pytest.mark.parametrize(
    "trip, chain",
    [
        pytest.param(trip, "OUTPUT" if trip is Trip.NODE else "PREROUTING", id=trip.value)
        for trip in Trip
        if trip is not Trip.POD_AWAY
    ],
)
def test_k54_all_bits_of_a_mark_but_ours_survive(served, trip, chain, family):
    """Ours is cleared again behind table mangle; that shows in the packets of a tunnel (test_tunnel.py)."""
    question, version = QUESTIONS[trip], VERSIONS[family]
    is_masqueraded = trip in {Trip.MASQUERADED, Trip.NODE}
    mark = "0xffffffff" if is_masqueraded else OTHER_BITS
    rules = (
        f"mangle {chain} -p udp -m udp --dport 80 -j MARK --set-xmark {OTHER_BITS}/{OTHER_BITS}",
        f"mangle POSTROUTING -p udp -m udp --dport 8080 -m mark --mark {mark} -m comment --comment survived",
    )
    with foreign_rules(served.host, version, *rules):
        assert ask(served.hosts[question.client], question.to[family], 80, Transport.UDP)
        assert packets(served.host, version, "mangle", "comment survived") == 1
