"""What plan/snat.py takes for masqueraded is what the nat rules masquerade, whatever entries stand (K24)."""

from __future__ import annotations

from itertools import combinations

import pytest

from ipvsproxy.inspect.packet import FROM_OUTSIDE, Packet, RuleWalk
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, VirtualServerKey, empty_state
from ipvsproxy.model.names import SETS_NODE_PORT, set_name
from ipvsproxy.modes.ipvs import sets
from ipvsproxy.modes.ipvs.rules import RuleOptions, rule_objects
from ipvsproxy.plan.snat import is_masqueraded
from tests import witness
from tests.builders import addr, vs_key

RULES = {key: layer for (_, key), layer in rule_objects(frozenset(Family), RuleOptions()).items()}
CLIENTS = {Family.IPV4: addr("198.51.100.7"), Family.IPV6: addr("2001:db8:5::7")}
BASES = (
    sets.NO_LOCAL_ENDPOINTS,
    sets.EXTERNAL_IP,
    sets.EXTERNAL_IP_LOCAL,
    sets.LOAD_BALANCER,
    sets.LOAD_BALANCER_LOCAL,
    sets.CLUSTER_IP,
    sets.NODE_PORT_IPS,
)


@pytest.mark.parametrize("address", ["192.0.2.11", "2001:db8:1::11"])
@pytest.mark.parametrize("protocol", Protocol)
def test_k24_a_client_outside_is_marked_where_the_plan_takes_a_frontend_for_masqueraded(protocol, address):
    """Every combination of the sets that tell."""
    key = vs_key(address, 30080, protocol)
    bases = (*BASES, *SETS_NODE_PORT[protocol])
    for some in (chosen for count in range(len(bases) + 1) for chosen in combinations(bases, count)):
        state = empty_state()
        state[Kind.RULES].update(RULES)
        for kind, entry in (entry_at(key, base) for base in some):
            state[kind][entry] = True
        packet = Packet(CLIENTS[family_of(key.address)], key.address, protocol, key.port, "eth0")
        passage = RuleWalk(state, frozenset({key.address})).through(packet, FROM_OUTSIDE[:1])
        is_marked = bool(passage.packet.mark)
        assert is_masqueraded(key, lambda ref, state=state: ref[1] in state[ref[0]]) == is_marked, some
        assert witness.is_masqueraded(state, key) == is_marked, some


def entry_at(key: VirtualServerKey, base: str) -> ObjectId:
    name = set_name(base, family_of(key.address))
    row = next(row for row in sets.SETS if row.base == base)
    if row.type_name == sets.BITMAP_PORT:
        return row.entry_kind, SetEntry(name, port=key.port)
    if row.type_name == sets.HASH_IP:
        return row.entry_kind, SetEntry(name, key.address)
    return row.entry_kind, SetEntry(name, key.address, key.protocol, key.port)
