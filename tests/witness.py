"""What must hold at every moment of the kernel's state: looked at after every single message."""

from __future__ import annotations

from collections.abc import Collection

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, State, VirtualServerKey
from ipvsproxy.model.names import set_name
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


def _no_local_guard(key: VirtualServerKey) -> SetEntry:
    """What drops clients outside where policy Local leaves them no endpoint."""
    return SetEntry(set_name("KUBE-NO-LOCAL-ENDPOINTS", family_of(key.address)), key.address, key.protocol, key.port)


class Witness:
    """Looks at the fake kernel after every single message; K31 is checked at once, K34 by `check` at the end.

    `host`: the addresses of the node's interfaces all the while.
    """

    def __init__(self, fake: FakeKernel, host: Collection[PackedAddr] = ()) -> None:
        self.fake = fake
        self.host = host
        self.faults_at_start = open_without_server(fake.state)
        self.before = served(fake.state, host)
        self.moments: list[set[VirtualServerKey]] = []
        self.let_in_before = let_in(fake.state, host)
        self.let_in: list[set[tuple[VirtualServerKey, bytes, bytes]]] = []
        fake.after_message = self.look

    def look(self) -> None:
        """One moment."""
        state = self.fake.state
        assert open_without_server(state) <= self.faults_at_start
        self.moments.append(served(state, self.host))
        self.let_in.append(let_in(state, self.host))

    def check(self) -> None:
        """What was served before and is served now was served at every moment."""
        throughout = self.before & served(self.fake.state, self.host)
        assert all(throughout <= moment for moment in self.moments)

    def check_sources(self) -> None:
        """Nobody was let in, or led, where he is not before or after, nor kept out of where he is both times (K36)."""
        before, after = self.let_in_before, let_in(self.fake.state, self.host)
        for moment in self.let_in:
            assert before & after <= moment <= before | after
