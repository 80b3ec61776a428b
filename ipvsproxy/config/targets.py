"""What `explain` is asked about, and as whom: words of the command line as values."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from ipvsproxy.config.field_errors import quoted
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import PackedAddr, format_addr, format_endpoint, parse_addr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.names import ServiceName

_ENDPOINT = re.compile(r"(?:\[([^]]+)\]|([^:\[\]/]+)):([0-9]{1,5})(?:/([A-Za-z]+))?", re.ASCII)
_NAME = re.compile(r"[^/:\s]+", re.ASCII)
_MAX_PORT = 0xFFFF
_NODE = "node"
_HINT = "Say namespace/name, or ADDRESS:PORT of a VIP or a node port, with /TCP, /UDP or /SCTP where it matters"


class FrontendTarget(NamedTuple):
    """An address and a port; `protocol` None: whichever is served there."""

    address: PackedAddr
    port: int
    protocol: Protocol | None = None

    def __str__(self) -> str:
        protocol = f"/{self.protocol.name}" if self.protocol else ""
        return f"{format_endpoint(self.address, self.port)}{protocol}"


Target: TypeAlias = ServiceName | FrontendTarget


class Client(NamedTuple):
    """Who sends. No address: a process of the node that names none; `interface`: where packets come in, if known."""

    address: PackedAddr | None
    interface: str = ""

    def __str__(self) -> str:
        if self.address is None:
            return "a process of this node"
        return format_addr(self.address) + (f" through {self.interface}" if self.interface else "")


class Question(NamedTuple):
    """What is asked: about what, and as whom a packet is sent there, if one is."""

    target: Target
    client: Client | None = None


def parse_target(text: str) -> Target:
    """A Service (`namespace/name`) or a frontend (`A.B.C.D:port`, `[v6]:port`). Raises ConfigError."""
    found = _ENDPOINT.fullmatch(text)
    if found:
        return _frontend(text, found)
    namespace, slash, name = text.partition("/")
    if slash and _NAME.fullmatch(namespace) and _NAME.fullmatch(name):
        return ServiceName(namespace, name)
    raise ConfigError(f"explain {quoted(text)}", "is neither a Service nor a frontend", _HINT)


def _frontend(text: str, found: re.Match[str]) -> FrontendTarget:
    address, port, word = parse_addr(found[1] or found[2]), int(found[3]), found[4]
    protocol = Protocol.__members__.get(word.upper()) if word else None
    if address is None or not 0 < port <= _MAX_PORT or (word and protocol is None):
        raise ConfigError(f"explain {quoted(text)}", "is no address, port and protocol of a frontend", _HINT)
    return FrontendTarget(address, port, protocol)


def parse_client(text: str) -> Client:
    """`ADDRESS`, `ADDRESS%INTERFACE`, or `node`. Raises ValueError."""
    if text == _NODE:
        return Client(None)
    head, percent, interface = text.partition("%")
    address = parse_addr(head)
    if address is None or (percent and not interface):
        raise ValueError("must be an address, an address%interface where it comes in, or the word node")
    return Client(address, interface)
