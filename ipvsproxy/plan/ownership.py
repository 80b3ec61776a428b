"""What in a kernel state is ours, told from the state itself, so that it holds after a crash at any point (K48).

A virtual server is ours when its address is on kube-ipvs0 or in KUBE-IPVS-IPS, or its (address, protocol, port) is in
one of our sets. Links, sets, chains and the addresses on kube-ipvs0 are ours by name; entries of our sets likewise. All
else is somebody else's: it stays and is reported. differs: kube-proxy deletes every virtual server of the host that it
does not want.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, State, VirtualServerKey
from ipvsproxy.model.names import set_name

_WITH_VIRTUAL_SERVER = (Kind.ACCEPT_ENTRY, Kind.SUPPORT_ENTRY)
_NODE_PORT_SETS = {
    set_name(f"KUBE-NODE-PORT-{local}{protocol.name}", family): (family, protocol)
    for local in ("", "LOCAL-")
    for protocol in (Protocol.TCP, Protocol.UDP)
    for family in Family
}  # those that hold ports alone: SCTP's set names the address too


def ours(observed: State, exclude: Sequence[Cidr] = (), host: Collection[PackedAddr] = ()) -> State:
    """The part of `observed` that may be edited or deleted; virtual servers inside `exclude` never are.

    `host`: the addresses of the node's interfaces but kube-ipvs0, where our node ports are.
    """
    bound = {entry.address for entry in observed[Kind.BOUND_ENTRY] if isinstance(entry, SetEntry)}
    bound.update(address for address in observed[Kind.ADDRESS] if isinstance(address, bytes))
    fronts = {
        (entry.protocol, entry.address, entry.port)
        for kind in _WITH_VIRTUAL_SERVER
        for entry in observed[kind]
        if isinstance(entry, SetEntry)
    }
    node_ports = _node_ports(observed)
    keys = {
        key
        for key in observed[Kind.VIRTUAL_SERVER]
        if isinstance(key, VirtualServerKey)
        and (
            key.address in bound
            or (key.protocol, key.address, key.port) in fronts
            or ((family_of(key.address), key.protocol, key.port) in node_ports and key.address in host)
        )
        and not any(key.address in cidr for cidr in exclude)
    }
    return {
        kind: {key: value for key, value in objects.items() if key in keys}
        if kind in {Kind.VIRTUAL_SERVER, Kind.REAL_SERVER}
        else dict(objects)
        for kind, objects in observed.items()
    }


def _node_ports(observed: State) -> set[tuple[Family, Protocol, int]]:
    """Every node port in a set of ports alone; the set's name tells its family and protocol."""
    return {
        (*_NODE_PORT_SETS[entry.set_name], entry.port)
        for entry in observed[Kind.SUPPORT_ENTRY]
        if isinstance(entry, SetEntry) and entry.set_name in _NODE_PORT_SETS
    }


def foreign(observed: State, owned: State) -> list[ObjectId]:
    """Virtual servers that are not ours, for the report."""
    return [
        (Kind.VIRTUAL_SERVER, key) for key in observed[Kind.VIRTUAL_SERVER] if key not in owned[Kind.VIRTUAL_SERVER]
    ]
