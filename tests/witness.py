"""What must hold at every moment of the kernel's state: looked at after every single message."""

from __future__ import annotations

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, State, VirtualServerKey


def accepted(state: State) -> set[VirtualServerKey]:
    """Every (protocol, address, port) that the filter lets through to a bound address."""
    return {
        VirtualServerKey(Protocol(e.protocol), e.address, e.port)  # type: ignore[arg-type]
        for e in state[Kind.ACCEPT_ENTRY]
        if isinstance(e, SetEntry) and e.address in state[Kind.ADDRESS]
    }


def open_without_server(state: State) -> set[object]:
    """What K31 forbids: ports let through without a virtual server, bound addresses whose other ports are open."""
    closed = {entry.address for entry in state[Kind.BOUND_ENTRY] if isinstance(entry, SetEntry)}
    return {key for key in accepted(state) if key not in state[Kind.VIRTUAL_SERVER]} | {
        address for address in state[Kind.ADDRESS] if address not in closed
    }


def served(state: State) -> set[VirtualServerKey]:
    """Every (protocol, address, port) that a packet reaches a real server through."""
    return {key for key in accepted(state) if state[Kind.REAL_SERVER].get(key)}


class Witness:
    """Looks at the fake kernel after every single message; K31 is checked at once, K34 by `check` at the end."""

    def __init__(self, fake: FakeKernel) -> None:
        self.fake = fake
        self.faults_at_start = open_without_server(fake.state)
        self.before = served(fake.state)
        self.moments: list[set[VirtualServerKey]] = []
        fake.after_message = self.look

    def look(self) -> None:
        """One moment."""
        state = self.fake.state
        assert open_without_server(state) <= self.faults_at_start
        self.moments.append(served(state))

    def check(self) -> None:
        """What was served before and is served now was served at every moment."""
        throughout = self.before & served(self.fake.state)
        assert all(throughout <= moment for moment in self.moments)
