"""What in a kernel state is ours, told from the state itself, so that it holds after a crash at any point (K48).

A virtual server is ours when its address is on kube-ipvs0 or in KUBE-IPVS-IPS, or its (address, protocol, port) is a
frontend in one of our sets, or its port is in KUBE-NODE-PORT-* and its address one of the node or in
KUBE-NODE-PORT-IPS. Links, sets, chains and the addresses on kube-ipvs0 are ours by name; entries of our sets likewise.
All else is somebody else's: it stays and is reported. differs: kube-proxy deletes every virtual server of the host that
it does not want.

KUBE-NODE-PORT-IPS holds the addresses that serve node ports. An entry stands before the first virtual server on its
address and goes after the last one, so an address that leaves the node while nobody watches does not take along what
tells whose its node ports are; they are found by the next start, or by clean-up. That the node has the address counts
too, since a kube-proxy leaves no such entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Key, Kind, SetEntry, State, VirtualServerKey
from ipvsproxy.model.names import (
    SET_CLUSTER_IP,
    SET_IPVS_IPS,
    SET_NODE_PORT_IPS,
    SETS_NODE_PORT_TCP,
    SETS_NODE_PORT_UDP,
    set_name,
)

_PROTOCOLS = frozenset(Protocol)
_WITH_VIRTUAL_SERVER = (Kind.ACCEPT_ENTRY, Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY)
_TRACES = frozenset(set_name(SET_NODE_PORT_IPS, family) for family in Family)
_CLOSING = frozenset(set_name(SET_IPVS_IPS, family) for family in Family)
_NODE_PORT_SETS = {
    set_name(base, family): (family, protocol)
    for protocol, bases in ((Protocol.TCP, SETS_NODE_PORT_TCP), (Protocol.UDP, SETS_NODE_PORT_UDP))
    for base in bases
    for family in Family
}  # those that hold ports alone: SCTP's set names the address too


def ours(observed: State, exclude: Sequence[Cidr] = (), host: Collection[PackedAddr] = ()) -> State:
    """The part of `observed` that may be edited or deleted; what has an address inside `exclude` never may.

    `host`: the addresses of the node's interfaces but kube-ipvs0, where our node ports are.
    """
    kept = {kind: {k: v for k, v in found.items() if not is_excluded(k, exclude)} for kind, found in observed.items()}
    bound = {entry.address for entry in kept[Kind.BOUND_ENTRY] if isinstance(entry, SetEntry)}
    bound.update(address for address in kept[Kind.ADDRESS] if isinstance(address, bytes))
    fronts = {
        (entry.protocol, entry.address, entry.port)
        for kind in _WITH_VIRTUAL_SERVER
        for entry in kept[kind]
        if isinstance(entry, SetEntry) and not entry.second  # a second address: about clients or endpoints
    }
    node_ports = _node_ports(kept)
    own = {*host, *_traced(kept)}
    for key in [*kept[Kind.VIRTUAL_SERVER]]:
        is_ours = isinstance(key, VirtualServerKey) and (
            key.address in bound
            or (key.protocol, key.address, key.port) in fronts
            or ((family_of(key.address), key.protocol, key.port) in node_ports and key.address in own)
        )
        if not is_ours:
            del kept[Kind.VIRTUAL_SERVER][key]
            kept[Kind.REAL_SERVER].pop(key, None)
    return kept


def is_cluster_ip(key: VirtualServerKey, state: State) -> bool:
    """Whether a virtual server is, or was until now, at a Service's cluster IP: by its accept entry in `state`."""
    name = set_name(SET_CLUSTER_IP, family_of(key.address))
    return SetEntry(name, key.address, key.protocol, key.port) in state[Kind.ACCEPT_ENTRY]


def is_excluded(key: Key, exclude: Sequence[Cidr]) -> bool:
    """Whether an object has an address in one of these networks, and so is not ours to touch."""
    if not exclude:
        return False
    address = key if isinstance(key, bytes) else getattr(key, "address", b"")
    return any(address in cidr for cidr in exclude)


def told_by(entry: SetEntry, node_port_addresses: Collection[PackedAddr]) -> Iterator[VirtualServerKey]:
    """The virtual servers that a set entry is a trace of: without it, they may count as somebody else's.

    `node_port_addresses`: the node's addresses at which node ports are served.
    """
    if entry.set_name in _NODE_PORT_SETS:
        family, protocol = _NODE_PORT_SETS[entry.set_name]
        for address in node_port_addresses:
            if family_of(address) is family:
                yield VirtualServerKey(protocol, address, entry.port)
    elif entry.address and entry.protocol in _PROTOCOLS and not entry.second:  # others may have put any protocol there
        yield VirtualServerKey(Protocol(entry.protocol), PackedAddr(entry.address), entry.port)


def tells(entry: SetEntry, keys: Collection[VirtualServerKey]) -> bool:
    """Whether a set entry is a trace of one of these virtual servers, be the address still the node's or not."""
    addresses = {key.address for key in keys}
    if entry.set_name in _TRACES or entry.set_name in _CLOSING:
        return entry.address in addresses
    return any(key in keys for key in told_by(entry, addresses))


def _node_ports(observed: State) -> set[tuple[Family, Protocol, int]]:
    """Every node port in a set of ports alone; the set's name tells its family and protocol."""
    return {
        (*_NODE_PORT_SETS[entry.set_name], entry.port)
        for entry in observed[Kind.SUPPORT_ENTRY]
        if isinstance(entry, SetEntry) and entry.set_name in _NODE_PORT_SETS
    }


def _traced(observed: State) -> Iterator[bytes]:
    """The addresses that serve node ports, or did when they left the node."""
    for entry in observed[Kind.SUPPORT_ENTRY]:
        if isinstance(entry, SetEntry) and entry.set_name in _TRACES:
            yield entry.address
