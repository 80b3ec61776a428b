"""Where `status --names` has its names from: the running daemon, a folder of manifests, or the API server."""

from __future__ import annotations

import errno
import http.client
import os
import socket
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec

from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.known import Known, Snapshot, decode_known, known
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.errors import IpvsproxyError, describe_errno
from ipvsproxy.model.enums import Family
from ipvsproxy.serve.local_socket import KNOWN, socket_path

_PATIENCE_S = 30.0  # the daemon answers or gives up after some seconds; more than that is a machine that hangs
_HINT = "Name another source: --manifests DIR, --from-cluster or --kubeconfig FILE"
_WHAT = "cannot ask the daemon for names"


def names_of_daemon(path: str = "") -> Known:
    """What the daemon of this network namespace knows now. Raises IpvsproxyError."""
    path = path or socket_path()
    try:
        return decode_known(_get(path))
    except OSError as error:
        raise _no_answer(path, error) from error
    except (http.client.HTTPException, msgspec.DecodeError) as error:
        raise IpvsproxyError(_WHAT, f"{path} answers, but not as a daemon of this version: {error}", _HINT) from error


def names_of_folder(folder: str) -> Known:
    """What a folder of manifests says. Raises ConfigError."""
    from ipvsproxy.kube.manifests import ManifestFolder  # noqa: PLC0415  # PyYAML, which the daemon's names do without

    return _names_of(ManifestFolder(Path(folder)).load())


def names_of_cluster(kubeconfig: str) -> Known:
    """What the API server says; without a kubeconfig by the pod's own access. Raises IpvsproxyError."""
    from ipvsproxy.kube.client import Access, ApiServer  # noqa: PLC0415  # 0.3 s that the others do without
    from ipvsproxy.kube.snapshot import read_services  # noqa: PLC0415

    events: list[ClusterEvent] = []
    read_services(ApiServer(Access(kubeconfig=kubeconfig)), events.extend)
    return _names_of(events)


def _names_of(events: Iterable[ClusterEvent]) -> Known:
    tracker = Tracker("", frozenset(Family))
    for event in events:
        tracker.note(event)
    return known(Snapshot("", tracker.snapshot))


def _get(path: str) -> bytes:
    with closing(_LocalConnection(path)) as connection:
        connection.request("GET", KNOWN)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise IpvsproxyError(_WHAT, body.decode(errors="replace").strip() or response.reason, _HINT)
        return body


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _no_answer(path: str, error: OSError) -> IpvsproxyError:
    if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
        return IpvsproxyError(_WHAT, f"none runs in this network namespace (nobody answers at {path})", _HINT)
    if error.errno in {errno.EACCES, errno.EPERM} and os.geteuid() != 0:
        return IpvsproxyError(_WHAT, f"only root may ask at {path}", "Run it as root")
    return IpvsproxyError(_WHAT, f"{path}: {describe_errno(error.errno or 0) if error.errno else error}", _HINT)
