"""Asking the daemon of this network namespace what it knows, at its Unix socket (status_server.py)."""

from __future__ import annotations

import errno
import http.client
import os
import socket
from contextlib import closing

from ipvsproxy.errors import IpvsproxyError, describe_errno
from ipvsproxy.model.notes import one_line
from ipvsproxy.serve.local_socket import socket_path

_WHAT = "cannot ask the daemon"


def ask(page: str, *, patience_s: float, path: str = "", hint: str = "") -> bytes:
    """The content of a page. Raises IpvsproxyError, with this hint unless there is a better one.

    `patience_s`: for how long nothing may come. `path`: the socket, if it is not that of this network namespace.
    """
    try:
        path = path or socket_path()
        with closing(_LocalConnection(path, patience_s)) as connection:
            connection.request("GET", page)
            response = connection.getresponse()
            body = response.read()
    except OSError as error:
        raise _no_answer(path, error, hint) from error
    except http.client.HTTPException as error:
        raise not_understood(path, error, hint) from error
    if response.status != http.client.OK:
        raise IpvsproxyError(_WHAT, body.decode(errors="replace").strip() or response.reason, hint)
    return body


def not_understood(path: str, error: Exception, hint: str = "") -> IpvsproxyError:
    """What to raise where an answer says nothing."""
    said = one_line(str(error).strip())
    return IpvsproxyError(_WHAT, f"{path or 'it'} answers, but not as a daemon of this version: {said}", hint)


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: str, patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _no_answer(path: str, error: OSError, hint: str) -> IpvsproxyError:
    if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
        return IpvsproxyError(_WHAT, f"none runs in this network namespace (nobody answers at {path})", hint)
    if error.errno in {errno.EACCES, errno.EPERM} and os.geteuid() != 0:
        return IpvsproxyError(_WHAT, f"only root may ask at {path}", "Run it as root")
    return IpvsproxyError(_WHAT, f"{path}: {describe_errno(error.errno or 0) if error.errno else error}", hint)
