"""An API server that answers what a test says, on loopback if it says no other: request for request, byte for byte.

    with serving([stream(added(service("web", 5)), bookmark(7, ends_list=True), HOLD), stream(CUT)]) as server: …

Every request takes the next answer; when none is left, the connection is held open and silent. What was asked is kept
in `server.requests`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

CHUNK_END = b"\r\n"
LOOPBACK = "127.0.0.1"


class Request(NamedTuple):
    """What was asked."""

    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


class Part:
    """Something that happens in a stream, other than bytes."""


HOLD = Part()
"""Say nothing more, and keep the connection."""
CUT = Part()
"""Close the connection in the middle of a chunk."""
RESET = Part()
"""Close it with a RST."""


class Gate(Part):
    """Wait here until the test opens it."""

    def __init__(self) -> None:
        self.open = threading.Event()


class Trickle(Part):
    """The same bytes again and again, with a pause before each."""

    def __init__(self, chunk: bytes, pause_s: float) -> None:
        self.chunk = chunk
        self.pause_s = pause_s


Answer = Callable[["_Handler"], None]


def stream(*parts: bytes | Part) -> Answer:
    """A watch: chunks of bytes, and an orderly end unless a part says otherwise."""

    def answer(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            if isinstance(part, Gate):
                part.open.wait()
                continue
            if isinstance(part, Part):
                return handler.break_off(part)
            handler.wfile.write(b"%x\r\n" % len(part) + part + CHUNK_END)
        handler.wfile.write(b"0\r\n\r\n")
        return None

    return answer


def unfinished_chunk(size: int, begin: bytes) -> Answer:
    """A chunk that shall be `size` bytes long, of which only the first come."""

    def answer(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n" % size + begin)
        handler.server.ended.wait()

    return answer


def body(content: object, status: int = 200, **headers: str) -> Answer:
    """A whole answer, as JSON; `Retry_After="1"` is a header."""

    def answer(handler: _Handler) -> None:
        data = json.dumps(content).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def broken(part: Part) -> Answer:
    """No answer at all."""
    return lambda handler: handler.break_off(part)


def after(gate: Gate, answer: Answer) -> Answer:
    """An answer that comes when the test opens the gate."""

    def answer_late(handler: _Handler) -> None:
        gate.open.wait()
        answer(handler)

    return answer_late


def refusal(code: int, reason: str, *, retry_after: str = "", **details: object) -> Answer:
    """A Status object under its own HTTP status."""
    headers = {"Retry_After": retry_after} if retry_after else {}
    return body(status(code, reason, **details), code, **headers)


def status(code: int, reason: str, **details: object) -> dict[str, Any]:
    """metav1.Status of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"{reason} was the message",
        "reason": reason,
        "code": code,
        **({"details": details} if details else {}),
    }


def page(items: Sequence[dict[str, Any]], version: int, token: str = "", kind: str = "ServiceList") -> Answer:
    """One page of a list; `token` says that there are more."""
    metadata = {"resourceVersion": str(version), **({"continue": token} if token else {})}
    return body({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": list(items)})


def line(event_type: str, item: object) -> bytes:
    """One line of a watch."""
    return json.dumps({"type": event_type, "object": item}).encode() + b"\n"


def added(*items: dict[str, Any]) -> bytes:
    """ADDED events, in one chunk."""
    return b"".join(line("ADDED", item) for item in items)


def bookmark(version: int, *, ends_list: bool = False) -> bytes:
    """A BOOKMARK, as the API server writes it for Services."""
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if ends_list else {}
    metadata = {"resourceVersion": str(version), "creationTimestamp": None, **annotations}
    item = {"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {"loadBalancer": {}}}
    return line("BOOKMARK", item)


def service(name: str, version: int, cluster_ip: str = "10.96.0.10", **labels: str) -> dict[str, Any]:
    """A Service in the namespace default."""
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": str(version), "labels": labels},
        "spec": {"clusterIP": cluster_ip, "ports": [{"port": 80, "protocol": "TCP"}]},
    }


class ScriptedServer(ThreadingHTTPServer):
    """Answers in the order of the script, whoever asks."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Sequence[Answer], context: ssl.SSLContext | None = None, at: str = LOOPBACK) -> None:
        super().__init__((at, 0), _Handler)
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self._script = list(script)
        self._lock = threading.Lock()
        self._context = context

    @property
    def url(self) -> str:
        """Where it listens."""
        address, port = self.server_address[:2]
        return f"{'https' if self._context else 'http'}://{address!s}:{port}"

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the name that belongs to the address: it may ask the network."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection, with TLS where the server has it; the handshake is the handler's, so that it blocks only it."""
        connection, address = super().get_request()
        if self._context:
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def next_answer(self, request: Request) -> Answer:
        """The answer to this request."""
        with self._lock:
            self.requests.append(request)
            return self._script.pop(0) if self._script else stream(HOLD)

    def handle_error(self, *_arguments: object) -> None:
        """Clients that go away are part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    server: ScriptedServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        given = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        request = Request(parts.path, dict(parse_qsl(parts.query)), dict(self.headers.items()), given)
        self.server.next_answer(request)(self)

    do_POST = do_GET  # noqa: N815

    def break_off(self, part: Part) -> None:
        """Do what the part says; the connection is of no use after it."""
        self.close_connection = True
        if part is HOLD:
            self.server.ended.wait()
        elif isinstance(part, Trickle):
            while not self.server.ended.wait(part.pause_s):
                self.wfile.write(b"%x\r\n" % len(part.chunk) + part.chunk + CHUNK_END)
        elif part is CUT:
            self.wfile.write(b'400\r\n{"type":"ADDED","object":{"metadata":{"name":"half')
        elif part is RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(
    script: Sequence[Answer], context: ssl.SSLContext | None = None, at: str = LOOPBACK
) -> Iterator[ScriptedServer]:
    """The server for the length of a block, at an address of the network namespace that the caller is in."""
    with ScriptedServer(script, context, at) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
