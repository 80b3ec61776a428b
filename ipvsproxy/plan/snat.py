"""Whether clients outside are masqueraded at a frontend, by the set entries that stand for it.

What the nat rules make of these (modes/ipvs/rules.py), but for cluster IPs: there it is not the entries that tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, VirtualServerKey
from ipvsproxy.model.names import (
    SET_CLUSTER_IP,
    SET_EXTERNAL_IP,
    SET_EXTERNAL_IP_LOCAL,
    SET_LOAD_BALANCER,
    SET_LOAD_BALANCER_LOCAL,
    SET_NO_LOCAL_ENDPOINTS,
    SET_NODE_PORT_IPS,
    SETS_NODE_PORT,
    set_name,
)

Stands: TypeAlias = Callable[[ObjectId], bool]

# What is in the first of each pair is not masqueraded, though it is in the second.
NODE_PORTS_LOCAL = {
    set_name(local, family): set_name(every, family) for every, local in SETS_NODE_PORT.values() for family in Family
}
# What is in these is not masqueraded, unless another entry has it masqueraded all the same.
EXCEPTIONS = frozenset(
    {
        *NODE_PORTS_LOCAL,
        *(set_name(base, family) for base in (SET_LOAD_BALANCER_LOCAL, SET_EXTERNAL_IP_LOCAL) for family in Family),
    }
)
# What is in these has to do with whether it is.
MASQUERADE_SETS = EXCEPTIONS | frozenset(
    {
        *NODE_PORTS_LOCAL.values(),
        *(
            set_name(base, family)
            for base in (SET_NO_LOCAL_ENDPOINTS, SET_EXTERNAL_IP, SET_LOAD_BALANCER)
            for family in Family
        ),
    }
)


def is_masqueraded(key: VirtualServerKey, stands: Stands) -> bool:
    """Whether the entries for which `stands` is true have clients of this frontend masqueraded."""

    def has(kind: Kind, base: str) -> bool:
        return stands((kind, SetEntry(set_name(base, family_of(key.address)), key.address, key.protocol, key.port)))

    if has(Kind.GUARD_ENTRY, SET_NO_LOCAL_ENDPOINTS) or has(Kind.ACCEPT_ENTRY, SET_EXTERNAL_IP):
        return True
    if has(Kind.ACCEPT_ENTRY, SET_LOAD_BALANCER):
        return not has(Kind.SUPPORT_ENTRY, SET_LOAD_BALANCER_LOCAL)
    if has(Kind.ACCEPT_ENTRY, SET_EXTERNAL_IP_LOCAL) or has(Kind.ACCEPT_ENTRY, SET_CLUSTER_IP):
        return False
    return _is_masqueraded_node_port(key, stands)


def _is_masqueraded_node_port(key: VirtualServerKey, stands: Stands) -> bool:
    family, support = family_of(key.address), Kind.SUPPORT_ENTRY
    if not stands((support, SetEntry(set_name(SET_NODE_PORT_IPS, family), key.address))):
        return False
    names = (set_name(base, family) for base in SETS_NODE_PORT[key.protocol])
    every, local = (
        SetEntry(name, key.address, key.protocol, key.port)
        if key.protocol is Protocol.SCTP
        else SetEntry(name, port=key.port)
        for name in names
    )
    return stands((support, every)) and not stands((support, local))
