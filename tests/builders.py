"""Short ways to say test objects."""

from __future__ import annotations

import dataclasses

from ipvsproxy.config.types import ConntrackConfig
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr, parse_addr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.flows import PackedEndpoint, UdpFlow, pack_endpoint
from ipvsproxy.model.kernel_objects import RealServer, VirtualServerKey
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import OwnerPlan
from ipvsproxy.sync.runner import Message


def addr(text: str) -> PackedAddr:
    """`text` packed; it must be an address."""
    packed = parse_addr(text)
    assert packed is not None, text
    return packed


def vs_key(address: str, port: int, protocol: Protocol = Protocol.TCP) -> VirtualServerKey:
    """The key of a virtual server."""
    return VirtualServerKey(protocol, addr(address), port)


def blob(*servers: tuple[str, int] | tuple[str, int, int]) -> bytes:
    """Packed real servers from (address, port[, weight])."""
    return real_servers.join(real_servers.pack(RealServer(addr(a), *rest)) for a, *rest in servers)


def packed(address: str, port: int) -> PackedEndpoint:
    """An address and a port in one."""
    return pack_endpoint(addr(address), port)


def flow(client: str, destination: str, server: str, number: int = 0) -> UdpFlow:
    """A UDP flow from its ends, as `address:port` without brackets."""
    ends = (end.rpartition(":") for end in (client, destination, server))
    return UdpFlow(*(packed(address, int(port)) for address, _, port in ends), number)


def conntrack(**given: int) -> ConntrackConfig:
    """Limits and time-outs of connection tracking; what is not given is left as it is."""
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(ConntrackConfig)), 0)
    return ConntrackConfig(**(nothing | given))  # type: ignore[arg-type]


def owner(name: str, objects: dict, created: str = "2026-01-01T00:00:00Z") -> OwnerPlan:
    """The plan of the Service `default/name`."""
    return OwnerPlan(ServiceName("default", name), created, objects)


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


class ScriptedInbox:
    """A queue into which messages come at given times; whoever waits for them moves the clock."""

    def __init__(self, clock: FakeClock, *script: tuple[float, Message]) -> None:
        self.clock = clock
        self.script = list(script)
        self.waits: list[float | None] = []
        self.arrived_at = 0.0

    def get(self, timeout_s: float | None) -> Message | None:
        self.waits.append(timeout_s)
        at, message = self.script[0]
        if timeout_s is not None and at > self.clock.now + timeout_s:
            self.clock.now += timeout_s
            return None
        self.clock.now = max(self.clock.now, at)
        self.arrived_at = at
        del self.script[0]
        return message
