"""HTTP/1.x as far as probes and scrapes need it: one request in, one answer out, as bytes.

Of a request only its first line is judged; headers are read where a page asks for one. A missing Host, which HTTP/1.1
forbids and simple probes leave out, is no fault here. After an answer the connection ends (`Connection: close`), for
who asks does so once in seconds.

Why not http.server of the standard library: its manual advises against it where strangers connect, and they do at
health checks; it takes a thread for each of them, without a bound, and wakes twice a second when nobody is there.
Source: RFC 9112 §2.2, §3, §9.6; RFC 9110 §6.6.1 (Date), §15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email import message_from_bytes
from email.utils import formatdate
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote

import msgspec

MAX_HEAD_BYTES = 8 << 10

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_BEGINNING = re.compile(rb"(?:\r?\n)?" + _TOKEN + rb"*(?:\Z| )|\r\Z")  # what may still become a request line
_REQUEST_LINE = re.compile(rb"(?:\r?\n)?(" + _TOKEN + rb"+) ([^\s]+) HTTP/([0-9])\.([0-9])\r?\n")
_SCHEME_AND_HOST = re.compile(r"https?://[^/]*", re.IGNORECASE)
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Request(msgspec.Struct, frozen=True):
    """What an answer depends on. `head`: the header lines as they came."""

    method: str
    minor_version: int = 1  # of HTTP/1
    target: str = "/"
    head: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query; without scheme and host too, which proxies write (RFC 9112 §3.2.2)."""
        target = self.target.partition("?")[0]
        absolute = _SCHEME_AND_HOST.match(target)
        return unquote(target[absolute.end() :] or "/" if absolute else target)

    @property
    def query(self) -> Mapping[str, str]:
        """The query's last value for each name."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def header(self, name: str) -> str:
        """The first header of this name, in any case; empty where there is none."""
        return str(message_from_bytes(self.head).get(name, ""))


class Answer(msgspec.Struct, frozen=True):
    """An answer before it is bytes."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({"Content-Type": "text/plain; charset=utf-8"})


def read_request(received: bytes) -> Request | HTTPStatus | None:
    """The request that `received` begins with; a status where it is none; None while more is needed to tell."""
    if not _BEGINNING.match(received):
        return HTTPStatus.BAD_REQUEST
    line = _REQUEST_LINE.match(received)
    if line is None:
        if b"\n" in received.lstrip(b"\r\n"):
            return HTTPStatus.BAD_REQUEST
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if len(received) > MAX_HEAD_BYTES else None
    if line[3] != b"1":
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    end = _END_OF_HEAD.search(received, line.end() - 1)
    if (end.end() if end else len(received)) > MAX_HEAD_BYTES:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return _request(line, received[line.end() : end.end()]) if end else None


def _request(line: re.Match[bytes], head: bytes) -> Request:
    return Request(line[1].decode(), min(int(line[4]), 1), line[2].decode("latin-1"), head)


def refusal(status: HTTPStatus) -> Answer:
    """What tells a client that its request was none."""
    return Answer(status, f"{status.value} {status.phrase}".encode())


def render(answer: Answer, request: Request, unix_time_s: float) -> bytes:
    """The bytes that answer `request`; to HEAD without the body."""
    head = [
        f"HTTP/1.{request.minor_version} {answer.status.value} {answer.status.phrase}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        f"Date: {formatdate(unix_time_s, usegmt=True)}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (b"" if request.method == "HEAD" else answer.body)
