"""What must hold at every moment of the kernel's state: looked at after every single message."""

from __future__ import annotations

from collections.abc import Collection

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, State, VirtualServerKey


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
    """Every (protocol, address, port) that a packet reaches a real server through; `host`: addresses of interfaces."""
    passed, refused = let_through(state), closed(state)
    return {
        key
        for key, servers in state[Kind.REAL_SERVER].items()
        if isinstance(key, VirtualServerKey)
        and servers
        and (key.address in host or key.address in state[Kind.ADDRESS])
        and (key in passed or key.address not in refused)
    }


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
        fake.after_message = self.look

    def look(self) -> None:
        """One moment."""
        state = self.fake.state
        assert open_without_server(state) <= self.faults_at_start
        self.moments.append(served(state, self.host))

    def check(self) -> None:
        """What was served before and is served now was served at every moment."""
        throughout = self.before & served(self.fake.state, self.host)
        assert all(throughout <= moment for moment in self.moments)
