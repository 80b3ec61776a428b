"""Servers that say who they are and whom they see, and clients that ask them.

One process serves any number of namespaces, since a socket belongs to the namespace in which it was opened. To HTTP it
answers HTTP, to anything else a line: `name client-address`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from tests.lab.hosts import Namespace, version_of

_FORK = multiprocessing.get_context("fork")
TIMEOUT_S = 10.0
"""For one answer: a hundred times what it takes, emulated; who waits for it has a fault to report."""

_TOTAL_RETRANS = slice(100, 104)  # tcpi_total_retrans of struct tcp_info, include/uapi/linux/tcp.h


class Transport(Enum):
    """The kind of socket and the protocol. Not every kernel has SCTP: OSError then."""

    TCP = (socket.SOCK_STREAM, socket.IPPROTO_TCP)
    UDP = (socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    SCTP = (socket.SOCK_STREAM, socket.IPPROTO_SCTP)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server told: its name, and the address that it saw the client at."""

    server: str
    client: str


class Servers:
    """Listening sockets, and from `start` on the one process that answers on all of them. A context manager."""

    def __init__(self) -> None:
        self._listening: list[tuple[socket.socket, str]] = []
        self._process = _FORK.Process(target=_serve, args=(self._listening,), name="servers", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        for opened, _ in self._listening:
            opened.close()

    def listen(self, host: Namespace, name: str, address: str, port: int, transport: Transport) -> None:
        """Answer as `name` at this address of `host`."""
        opened = host.socket(family_of(address), *transport.value)
        self._listening.append((opened, name))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        if transport is not Transport.UDP:
            opened.listen(64)

    def start(self) -> None:
        """Begin to answer."""
        self._process.start()
        for opened, _ in self._listening:
            opened.close()  # the process has its own; a port must be free when it ends


def _serve(listening: list[tuple[socket.socket, str]]) -> None:
    with selectors.DefaultSelector() as selector:
        for opened, name in listening:
            opened.settimeout(0)
            selector.register(opened, selectors.EVENT_READ, name)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)  # nothing else is registered
                with contextlib.suppress(BlockingIOError):
                    _answer(selector, key.fileobj, key.data)


def _answer(selector: selectors.BaseSelector, opened: socket.socket, name: str) -> None:
    if opened.type is socket.SOCK_DGRAM:
        _, client = opened.recvfrom(65536)
        with contextlib.suppress(OSError):
            opened.sendto(_line(name, client[0]), client)
    elif opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        stream, _ = opened.accept()
        stream.settimeout(0)
        selector.register(stream, selectors.EVENT_READ, name)
    elif not _answer_on(opened, name):
        selector.unregister(opened)
        opened.close()


def _answer_on(stream: socket.socket, name: str) -> bool:
    """Answer what came in; False when the stream has ended."""
    try:
        received = stream.recv(65536)
        if not received:
            return False
        line = _line(name, stream.getpeername()[0])
        if not received.startswith(b"GET "):
            stream.sendall(line)
            return True
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(line)}\r\nConnection: close\r\n\r\n"
        stream.sendall(head.encode() + line)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _line(name: str, client: str) -> bytes:
    return f"{name} {client}\n".encode()


def family_of(address: str) -> socket.AddressFamily:
    """The socket family of an address."""
    return socket.AF_INET if version_of(address) == 4 else socket.AF_INET6


def get(host: Namespace, address: str, port: int = 80) -> Answer:
    """Ask once over HTTP. Raises OSError: refused, reset, timed out, unreachable."""
    with Conversation(host, address, port, Transport.TCP) as talk:
        talk.send(f"GET / HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        received = b"".join(iter(talk.receive, b""))
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ConnectionAbortedError(f"no answer but {received!r}")
    return _read(body)


def ask(
    host: Namespace, address: str, port: int, transport: Transport = Transport.TCP, *, aborts: bool = False
) -> Answer:
    """Ask once on a new socket. Raises OSError: refused, reset, timed out, unreachable."""
    with Conversation(host, address, port, transport, aborts=aborts) as talk:
        return talk.ask()


@contextlib.contextmanager
def stream_to(server: str, host: Namespace, address: str, port: int) -> Iterator[Conversation]:
    """A TCP stream that this server holds, however many others have their turn before. Ends by a reset."""
    while True:
        with Conversation(host, address, port, aborts=True) as talk:
            if talk.ask().server == server:
                yield talk
                return


@dataclass(slots=True)
class Conversation:
    """A connected socket, held as long as the `with` block. Everything raises OSError.

    `source_port`: one that may have been used before. `aborts`: it ends by a reset, which IPVS forgets after ten
    seconds instead of two minutes. `source`: the client's address; empty for the one that its host chooses.
    """

    host: Namespace
    address: str
    port: int
    transport: Transport = Transport.TCP
    timeout_s: float = TIMEOUT_S
    source_port: int = 0
    aborts: bool = False
    source: str = ""
    _socket: socket.socket = field(init=False)

    def __enter__(self) -> Self:
        self._socket = self.host.socket(family_of(self.address), *self.transport.value)
        self._socket.settimeout(self.timeout_s)
        try:
            source = self.source
            if self.transport is Transport.SCTP:  # else it tells the server of all its addresses, past any NAT
                source = source or _source(self.host, self.address)
            if self.source_port:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if source or self.source_port:
                self._socket.bind((source, self.source_port))
            if self.aborts:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
            self._socket.connect((self.address, self.port))
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def retransmissions(self) -> int:
        """How many segments of a TCP stream had to be sent again, the SYN included."""
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANS.stop)
        return int.from_bytes(info[_TOTAL_RETRANS], sys.byteorder)

    def send(self, data: bytes) -> None:
        """Send."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """What comes next; empty at the end."""
        return self._socket.recv(65536)

    def ask(self) -> Answer:
        """One question, one answer."""
        self.send(b"who is there?\n")
        received = self.receive()
        if not received:
            raise ConnectionResetError("the stream ended")
        return _read(received)


def _source(host: Namespace, address: str) -> str:
    """The address that `host` would send from to this one."""
    with host.socket(family_of(address), *Transport.UDP.value) as probe:
        probe.connect((address, 9))  # sends nothing
        source = probe.getsockname()[0]
    assert isinstance(source, str)  # in both families
    return source


def _read(line: bytes) -> Answer:
    server, _, client = line.decode().strip().partition(" ")
    return Answer(server, client)


@contextlib.contextmanager
def serving(*places: tuple[Namespace, str, str, int, Transport]) -> Iterator[None]:
    """Answer at these places (as `Servers.listen` takes them) in the `with` block."""
    with Servers() as servers:
        for place in places:
            servers.listen(*place)
        servers.start()
        yield


def ping(host: Namespace, address: str) -> bool:
    """Whether an echo request is answered, within five seconds. A socket of our own: not every machine has ping."""
    is_v4 = version_of(address) == 4
    family, protocol = (
        (socket.AF_INET, socket.IPPROTO_ICMP) if is_v4 else (socket.AF_INET6, socket.getprotobyname("ipv6-icmp"))
    )
    request, reply = (8, 0) if is_v4 else (128, 129)
    identity = os.getpid() & 0xFFFF
    with host.inside(), socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.settimeout(5)
        raw.connect((address, 0))
        raw.send(_echo(request, identity))
        while True:
            received = raw.recv(1500)[20 if is_v4 else 0 :]
            if received[0] == reply and received[4:6] == identity.to_bytes(2, "big"):
                return True


def _echo(kind: int, identity: int) -> bytes:
    """An echo request; the kernel computes ICMPv6's checksum itself and ignores this one."""
    words = struct.pack("!BBHHH", kind, 0, 0, identity, 1)
    total = sum(struct.unpack("!4H", words))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return struct.pack("!BBHHH", kind, 0, checksum, identity, 1)
