"""HTTP/1.x as far as a health check needs it: one request in, one answer out, as bytes.

Of a request only its first line is judged: whatever path, method and headers it has, the answer is the same. So headers
are waited for and not read; a missing Host, which HTTP/1.1 forbids and simple probes leave out, is no fault here.
After an answer the connection ends (`Connection: close`), for a probe asks once in seconds.
Source: RFC 9112 §2.2, §3, §9.6; RFC 9110 §6.6.1 (Date), §15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from types import MappingProxyType

import msgspec

MAX_HEAD_BYTES = 8 << 10

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_BEGINNING = re.compile(rb"(?:\r?\n)?" + _TOKEN + rb"*(?:\Z| )|\r\Z")  # what may still become a request line
_REQUEST_LINE = re.compile(rb"(?:\r?\n)?(" + _TOKEN + rb"+) [^\s]+ HTTP/([0-9])\.([0-9])\r?\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Request(msgspec.Struct, frozen=True):
    """What an answer depends on."""

    method: str
    minor_version: int = 1  # of HTTP/1


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
    if line[2] != b"1":
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    end = _END_OF_HEAD.search(received, line.end() - 1)
    if (end.end() if end else len(received)) > MAX_HEAD_BYTES:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return Request(line[1].decode(), min(int(line[3]), 1)) if end else None


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
