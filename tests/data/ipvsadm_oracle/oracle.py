"""Shows a made-up IPVS state to the real ipvsadm and gives back what it prints; no IPVS in the kernel, no root.

A preloaded library (shim.c) turns the program's generic-netlink sockets into connections to a Unix socket, where a
server answers from a state in the form of the ipvsadm fixtures: services and their `dests` in kernel order.
Numbers of messages and attributes: include/uapi/linux/{netlink,genetlink,ip_vs}.h.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

State = Mapping[str, Any]
_Attributes = dict[int, bytes]
_Identity = tuple[Any, ...]

_HERE = Path(__file__).parent
_SYSTEM_FOLDERS = "/usr/sbin:/sbin"

_NLMSG_ERROR, _NLMSG_DONE, _GENL_ID_CTRL = 2, 3, 16
_NLM_F_MULTI, _NLM_F_ACK, _NLM_F_DUMP = 0x2, 0x4, 0x300
_CTRL_CMD_NEWFAMILY, _OUR_FAMILY_ID = 1, 0x21

_PIECE_BYTES = 8192  # the kernel's least; every program's buffer takes as much

_HEADER = struct.Struct("=IHHII")
_GENL_HEADER = struct.Struct("=BBH")
_COUNTERS = ("conns", "inpkts", "outpkts", "inbytes", "outbytes", "cps", "inpps", "outpps", "inbps", "outbps")
_BYTE_COUNTERS = {"inbytes", "outbytes"}  # 64 bits also in the older statistics attribute


class _Command(IntEnum):
    """IPVS_CMD_*: what programs ask, and what the kernel's answers are marked with."""

    NEW_SERVICE = 1
    GET_SERVICE = 4
    NEW_DEST = 5
    GET_DEST = 8
    NEW_DAEMON = 9
    GET_DAEMON = 11
    SET_CONFIG = 12
    GET_CONFIG = 13
    SET_INFO = 14
    GET_INFO = 15


_Answer = tuple[_Command, bytes]  # and its attributes


class OracleError(Exception):
    """Something that the oracle needs is missing."""


class Oracle:
    """Runs programs against made-up states. The preloaded library is built once, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._shim = folder / "shim.so"
        compiler = _find("gcc", "build the preloaded library")
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._shim), str(_HERE / "shim.c"), "-ldl"]
        subprocess.run(command, check=True)

    def run(
        self,
        state: State,
        arguments: Sequence[str],
        *,
        program: Sequence[str] = ("ipvsadm",),
        connections: Path | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """What `program` says of `state`; `connections` stands in for /proc/net/ip_vs_conn. Raises OracleError."""
        path = _find(program[0], "have an answer to compare with")
        with _serving(state) as socket_path:
            environment = {**os.environ, "LD_PRELOAD": str(self._shim), "FAKE_IPVS": socket_path}
            if connections:
                environment["FAKE_IPVS_CONN"] = str(connections)
            return subprocess.run(
                [*program, *arguments],
                executable=path,  # so that the program sees the name that it was called by
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=120,
            )


class _Kernel:
    """A state, and its services by what names them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._by_identity = {_identity(service): service for service in reversed(state["services"])}

    def services(self, query: _Attributes, *, is_dump: bool = False) -> Sequence[State]:
        """All of them for a dump, else the one that a request names, if it is there."""
        if is_dump:
            return self.state["services"]
        found = self._by_identity.get(_meant(_parse(query[1])))
        return [found] if found else []


class StateSocket:
    """The program's end of such a socket without a program: what is sent is answered from `state` at once."""

    def __init__(self, state: State) -> None:
        self._kernel = _Kernel(state)
        self._answers: deque[bytes] = deque()

    def send(self, request: bytes | bytearray) -> int:
        self._answers.extend(_reply(self._kernel, bytes(request)))
        return len(request)

    def recv_into(self, buffer: bytearray) -> int:
        if not self._answers:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        answer = self._answers.popleft()
        buffer[: len(answer)] = answer
        return len(answer)

    def close(self) -> None:
        self._answers.clear()


def _find(program: str, purpose: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}")
    if path is None:
        raise OracleError(f"cannot {purpose}: {program} is not installed. `make setup` installs it")
    return path


@contextlib.contextmanager
def _serving(state: State) -> Iterator[str]:
    # Not below pytest's tmp_path: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory() as folder, _Server(f"{folder}/ipvs", state) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
        thread.start()
        try:
            yield f"{folder}/ipvs"
        finally:
            server.shutdown()
            thread.join()


class _Handler(socketserver.BaseRequestHandler):
    """One socket of the program: a request is one packet, each piece of an answer another."""

    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the program hung up
            while request := self.request.recv(1 << 16):
                for message in _reply(self.server.kernel, request):
                    self.request.send(message)


class _Server(socketserver.ThreadingUnixStreamServer):
    socket_type = socket.SOCK_SEQPACKET
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, state: State) -> None:
        self.kernel = _Kernel(state)
        super().__init__(path, _Handler)


def _reply(kernel: _Kernel, request: bytes) -> Iterator[bytes]:
    """The messages that answer one request, as the kernel frames them."""
    length, kind, flags, sequence, port_id = _HEADER.unpack_from(request)
    is_dump = flags & _NLM_F_DUMP == _NLM_F_DUMP

    def message(of_kind: int, of_flags: int, body: bytes) -> bytes:
        return _HEADER.pack(_HEADER.size + len(body), of_kind, of_flags, sequence, port_id) + body

    command, query = request[_HEADER.size], _parse(request[_HEADER.size + _GENL_HEADER.size : length])
    answers: Sequence[tuple[int, bytes]] | None
    answers = _family() if kind == _GENL_ID_CTRL else _answers(kernel, command, query, is_dump=is_dump)
    name = "GET_FAMILY" if kind == _GENL_ID_CTRL else _Command(command).name
    number = kernel.state.get("errors", {}).get(name, 0 if answers is not None else errno.ESRCH)
    if number or answers is None:
        yield message(_NLMSG_ERROR, 0, struct.pack("=i", -number) + request[: _HEADER.size])
        return
    bodies = (_GENL_HEADER.pack(answer_command, 1, 0) + attributes for answer_command, attributes in answers)
    yield from _pieces(message(kind, _NLM_F_MULTI if is_dump else 0, body) for body in bodies)
    if is_dump:
        yield message(_NLMSG_DONE, _NLM_F_MULTI, struct.pack("=i", 0))
    elif flags & _NLM_F_ACK:
        yield message(_NLMSG_ERROR, 0, struct.pack("=i", 0) + request[: _HEADER.size])


def _pieces(messages: Iterable[bytes]) -> Iterator[bytes]:
    """As the kernel hands out a dump: as many messages at once as fit."""
    piece: list[bytes] = []
    size = 0
    for message in messages:
        if size + len(message) > _PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(message)
        size += len(message)
    if piece:
        yield b"".join(piece)


def _family() -> list[tuple[int, bytes]]:
    name = _attribute(2, b"IPVS\0")
    return [(_CTRL_CMD_NEWFAMILY, name + _u16(1, _OUR_FAMILY_ID) + _u32(3, 1) + _u32(4, 0) + _u32(5, 6))]


def _answers(kernel: _Kernel, command: int, query: _Attributes, *, is_dump: bool) -> list[_Answer] | None:
    """Command and attributes of each answer; None where the one service asked for is not there."""
    state = kernel.state
    match command:
        case _Command.GET_INFO:
            info = _u32(1, state.get("version", 0x10201)) + _u32(2, state.get("conn_tab_size", 4096))
            answers = [(_Command.SET_INFO, info)]
        case _Command.GET_CONFIG:
            answers = [(_Command.SET_CONFIG, _timeouts(state.get("timeouts", {})))]
        case _Command.GET_DAEMON:
            answers = [(_Command.NEW_DAEMON, _daemon(daemon)) for daemon in state.get("daemons", [])]
        case _Command.GET_SERVICE:
            chosen = kernel.services(query, is_dump=is_dump)
            answers = [(_Command.NEW_SERVICE, _service(service)) for service in chosen]
            return answers if answers or is_dump else None
        case _Command.GET_DEST:
            dests = [dest for service in kernel.services(query) for dest in service.get("dests", [])]
            answers = [(_Command.NEW_DEST, _dest(dest)) for dest in dests]
        case _:
            answers = []
    return answers


def _identity(service: State) -> _Identity:
    """What names a service."""
    family = service["af"]
    if "fwmark" in service:
        return family, service["fwmark"]
    return family, service["protocol"], socket.inet_pton(family, service["addr"]), service["port"]


def _meant(query: _Attributes) -> _Identity:
    """What a request's service attributes name."""
    (family,) = struct.unpack("=H", query[1])
    if 5 in query:
        return family, struct.unpack("=I", query[5])[0]
    size = 4 if family == socket.AF_INET else 16
    return family, struct.unpack("=H", query[2])[0], query[3][:size], struct.unpack("!H", query[4])[0]


def _service(service: State) -> bytes:
    family = service["af"]
    body = _u16(1, family)
    if "fwmark" in service:
        body += _u32(5, service["fwmark"])
    else:
        body += _u16(2, service["protocol"]) + _attribute(3, _address(family, service["addr"]))
        body += _port(4, service["port"])
    body += _attribute(6, service.get("sched", "rr").encode() + b"\0")
    if service.get("pe"):
        body += _attribute(11, service["pe"].encode() + b"\0")
    full_mask = b"\xff" * 4 if family == socket.AF_INET else struct.pack("=I", 128)
    mask = bytes.fromhex(service["netmask_hex"]) if "netmask_hex" in service else full_mask
    body += _attribute(7, struct.pack("=II", service.get("flags", 2), 0xFFFF_FFFF))
    body += _u32(8, service.get("timeout", 0)) + _attribute(9, mask)
    return _attribute(1, body + _statistics(service))


def _dest(dest: State) -> bytes:
    body = _attribute(1, _address(dest["af"], dest["addr"])) + _port(2, dest["port"])
    body += _u32(3, dest.get("fwd", 0)) + _u32(4, dest.get("weight", 1))
    body += _attribute(13, struct.pack("=B", dest.get("tun_type", 0))) + _port(14, dest.get("tun_port", 0))
    body += _u16(15, dest.get("tun_flags", 0))
    for number, name in enumerate(("u_thresh", "l_thresh", "active", "inactive", "persist"), start=5):
        body += _u32(number, dest.get(name, 0))
    return _attribute(2, body + _statistics(dest) + _u16(11, dest["af"]))


def _statistics(entry: State) -> bytes:
    """Both statistics attributes of a service or dest, the older one with most counters cut to 32 bits."""
    counts = [(number, name, entry.get("stats64", {}).get(name, 0)) for number, name in enumerate(_COUNTERS, start=1)]
    short = b"".join((_u64 if name in _BYTE_COUNTERS else _u32)(number, count) for number, name, count in counts)
    whole = b"".join(_u64(number, count) for number, _, count in counts)
    return _attribute(10, short) + _attribute(12, whole)


def _timeouts(timeouts: State) -> bytes:
    return _u32(4, timeouts.get("tcp", 900)) + _u32(5, timeouts.get("tcp_fin", 120)) + _u32(6, timeouts.get("udp", 300))


def _daemon(daemon: State) -> bytes:
    body = _u32(1, daemon["state"]) + _attribute(2, daemon["mcast_ifn"].encode() + b"\0") + _u32(3, daemon["syncid"])
    if "sync_maxlen" in daemon:
        body += _u16(4, daemon["sync_maxlen"])
    if "group" in daemon:
        body += _attribute(5, socket.inet_pton(socket.AF_INET, daemon["group"]))
    if "group6" in daemon:
        body += _attribute(6, socket.inet_pton(socket.AF_INET6, daemon["group6"]))
    if "port" in daemon:
        body += _u16(7, daemon["port"])
    if "ttl" in daemon:
        body += _attribute(8, struct.pack("=B", daemon["ttl"]))
    return _attribute(3, body)


def _parse(body: bytes) -> _Attributes:
    found: _Attributes = {}
    at = 0
    while at + 4 <= len(body):
        length, number = struct.unpack_from("=HH", body, at)
        if length < 4:  # not even a header: the kernel would stop here too
            break
        found[number & 0x3FFF] = body[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def _u16(number: int, value: int) -> bytes:
    return _attribute(number, struct.pack("=H", value))


def _port(number: int, value: int) -> bytes:
    return _attribute(number, struct.pack("!H", value))


def _u32(number: int, value: int) -> bytes:
    return _attribute(number, struct.pack("=I", value & 0xFFFF_FFFF))


def _u64(number: int, value: int) -> bytes:
    return _attribute(number, struct.pack("=Q", value))


def _address(family: int, text: str) -> bytes:
    """As the kernel sends it: 16 bytes, whichever family."""
    return socket.inet_pton(family, text).ljust(16, b"\0")
