"""What must hold at every moment of the kernel's state: looked at after every single message."""

from __future__ import annotations

from collections.abc import Collection

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, State, VirtualServerKey
from ipvsproxy.model.names import set_name
from ipvsproxy.modes.ipvs.sets import SETS
from ipvsproxy.plan.order import serving
from tests.builders import addr


def let_through(state: State) -> set[VirtualServerKey]:
    """Every (protocol, address, port) that the filter lets through where the address is closed for others."""
    return {
        VirtualServerKey(Protocol(e.protocol), e.address, e.port)  # type: ignore[arg-type]
        for e in state[Kind.ACCEPT_ENTRY]
        if isinstance(e, SetEntry)
    }


def accepted(state: State) -> set[VirtualServerKey]:
    """Of these, what a packet can come to: the ports of bound addresses."""
    return {key for key in let_through(state) if key.address in state[Kind.ADDRESS]}


def closed(state: State) -> set[bytes]:
    """Every address whose other ports the filter refuses."""
    return {entry.address for entry in state[Kind.BOUND_ENTRY] if isinstance(entry, SetEntry)}


def open_without_server(state: State) -> set[object]:
    """What K31 forbids: ports let through without a virtual server, bound addresses whose other ports are open."""
    return {key for key in accepted(state) if key not in state[Kind.VIRTUAL_SERVER]} | {
        address for address in state[Kind.ADDRESS] if address not in closed(state)
    }


def served(state: State, host: Collection[PackedAddr] = ()) -> set[VirtualServerKey]:
    """Every (protocol, address, port) that a new client is served at; `host`: addresses of interfaces."""
    passed, refused = let_through(state), closed(state)
    return {
        key
        for key, servers in state[Kind.REAL_SERVER].items()
        if isinstance(key, VirtualServerKey)
        and serving(key, servers)
        and (key.address in host or key.address in state[Kind.ADDRESS])
        and (key in passed or key.address not in refused)
    }


SOURCES = tuple(addr(text) for text in ("198.51.100.7", "198.51.100.8", "10.1.2.3", "2001:db8:5::1", "2001:db8:6::1"))
"""Clients at which source ranges are tried out."""


def admitted(state: State, key: VirtualServerKey) -> frozenset[bytes]:
    """Those of SOURCES that the rules on source ranges let in to (protocol, address, port)."""
    family = family_of(key.address)
    guard = SetEntry(set_name("KUBE-LOAD-BALANCER-FW", family), key.address, key.protocol, key.port)
    clients = frozenset(source for source in SOURCES if family_of(source) is family)
    if guard not in state[Kind.GUARD_ENTRY]:
        return clients
    name = set_name("KUBE-LOAD-BALANCER-SOURCE-CIDR", family)
    ranges = [
        Cidr(PackedAddr(entry.second), entry.prefix_len)
        for entry in state[Kind.SUPPORT_ENTRY]
        if isinstance(entry, SetEntry) and entry.set_name == name
        if (entry.address, entry.protocol, entry.port) == (key.address, key.protocol, key.port)
    ]
    return frozenset(client for client in clients if any(client in cidr for cidr in ranges))


def let_in(state: State, host: Collection[PackedAddr]) -> set[tuple[VirtualServerKey, bytes, bytes]]:
    """Each served (protocol, address, port) with each client outside that is let in, and where it may be led."""
    return {
        (key, client, identity)
        for key in served(state, host)
        if _no_local_guard(key) not in state[Kind.GUARD_ENTRY]
        for client in admitted(state, key)
        for identity in map(real_servers.identity, serving(key, state[Kind.REAL_SERVER][key]))
    }


def unmasqueraded(state: State, host: Collection[PackedAddr]) -> set[tuple[VirtualServerKey, bytes]]:
    """Each served (protocol, address, port) with each endpoint that sees clients outside by their own address there."""
    return {
        (key, identity)
        for key in served(state, host)
        if not is_masqueraded(state, key)
        for identity in map(real_servers.identity, serving(key, state[Kind.REAL_SERVER][key]))
    }


def is_masqueraded(state: State, key: VirtualServerKey) -> bool:
    """Whether the nat rules masquerade a client outside, where pods are told from others by nothing."""
    family = family_of(key.address)
    at = {e.set_name for kind in _MARKING for e in state[kind] if isinstance(e, SetEntry) and _is_at(e, key)}
    named = {base for base in _MARKING_SETS if set_name(base, family) in at}
    if "KUBE-NO-LOCAL-ENDPOINTS" in named or "KUBE-EXTERNAL-IP" in named:
        return True
    if "KUBE-LOAD-BALANCER" in named:
        return "KUBE-LOAD-BALANCER-LOCAL" not in named
    if named & {"KUBE-EXTERNAL-IP-LOCAL", "KUBE-CLUSTER-IP"}:
        return False
    every, local = (f"KUBE-NODE-PORT-{kind}{key.protocol.name}" for kind in ("", "LOCAL-"))
    at_node_ports = SetEntry(set_name("KUBE-NODE-PORT-IPS", family), key.address) in state[Kind.SUPPORT_ENTRY]
    return (
        at_node_ports
        and any(base.startswith(every) for base in named)
        and not any(base.startswith(local) for base in named)
    )


_MARKING = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY)
_MARKING_SETS = frozenset(row.base for row in SETS if row.entry_kind in _MARKING)


def _is_at(entry: SetEntry, key: VirtualServerKey) -> bool:
    """Whether an entry without a source is about this frontend; a bitmap's about its port, and its name tells more."""
    if not entry.address:
        return entry.port == key.port and key.protocol.name in entry.set_name
    return (entry.address, entry.protocol, entry.port, entry.second) == (key.address, key.protocol, key.port, b"")


def _no_local_guard(key: VirtualServerKey) -> SetEntry:
    """What drops clients outside where policy Local leaves them no endpoint."""
    return SetEntry(set_name("KUBE-NO-LOCAL-ENDPOINTS", family_of(key.address)), key.address, key.protocol, key.port)


class Witness:
    """Looks at the fake kernel after every single message; K31 is checked at once, K34 by `check` at the end.

    `host`: the addresses of the node's interfaces all the while; `lost`: those that they have just lost.
    """

    def __init__(self, fake: FakeKernel, host: Collection[PackedAddr] = (), lost: Collection[PackedAddr] = ()) -> None:
        self.fake = fake
        self.host = host
        self.faults_at_start = open_without_server(fake.state)
        self.before = served(fake.state, host)
        self.moments: list[set[VirtualServerKey]] = []
        self.let_in_before = let_in(fake.state, host)
        self.let_in_lately = let_in(fake.state, (*host, *lost))
        self.let_in: list[set[tuple[VirtualServerKey, bytes, bytes]]] = []
        self.unmasqueraded_lately = unmasqueraded(fake.state, (*host, *lost))
        self.unmasqueraded: list[set[tuple[VirtualServerKey, bytes]]] = []
        fake.after_message = self.look

    def look(self) -> None:
        """One moment."""
        state = self.fake.state
        assert open_without_server(state) <= self.faults_at_start
        self.moments.append(served(state, self.host))
        self.let_in.append(let_in(state, self.host))
        self.unmasqueraded.append(unmasqueraded(state, self.host))

    def check(self) -> None:
        """What was served before and is served now was served at every moment."""
        throughout = self.before & served(self.fake.state, self.host)
        assert all(throughout <= moment for moment in self.moments)

    def check_sources(self) -> None:
        """Nobody was let in, or led, where he is not before or after, nor kept out of where he is both times (K36)."""
        before, after = self.let_in_before, let_in(self.fake.state, self.host)
        for moment in self.let_in:
            assert before & after <= moment <= self.let_in_lately | after

    def check_masquerading(self, cluster_ips: Collection[PackedAddr] = (), after: State | None = None) -> None:
        """No endpoint saw a client outside by his own address that does not before or after (K24).

        But at these: clients outside are not masqueraded there, unless somebody makes an external IP of one.
        `after`: the state that all should lead to, where the kernel refuses a part of it.
        """
        allowed = self.unmasqueraded_lately | unmasqueraded(after or self.fake.state, self.host)
        for moment in self.unmasqueraded:
            assert {pair for pair in moment if pair[0].address not in cluster_ips} <= allowed
