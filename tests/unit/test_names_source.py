"""Where names come from: a daemon that answers at its socket, one that does not, and a folder."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from ipvsproxy import daemon_client, names_source
from ipvsproxy.clock import SystemClock
from ipvsproxy.errors import ConfigError, IpvsproxyError
from ipvsproxy.model.figures import Figures
from ipvsproxy.serve.local_socket import listen_at
from ipvsproxy.status_server import status_server
from ipvsproxy.sync.runner import SnapshotWanted
from tests.clusters import Node, Svc, cluster
from tests.unit.test_dry_run import GOOD, folder_of
from tests.unit.test_status_server import ask, running


def refused(path: Path) -> str:
    with pytest.raises(IpvsproxyError) as error:
        names_source.names_of_daemon(str(path))
    return str(error.value)


def test_k53_a_running_daemon_tells_its_names(tmp_path):
    node = Node()
    node.sync(cluster(Svc("web")))

    def put(wanted: SnapshotWanted) -> None:
        wanted.answer(node.reconciler.snapshot)

    path = tmp_path / "status.sock"
    with running(status_server(put, Figures, SystemClock(), "n1", str(path))):
        ask(path)  # it listens
        found = names_source.names_of_daemon(str(path))
    assert (found.head.node, [service.name for service in found.services]) == ("n1", ["web"])


def test_without_a_daemon_it_says_what_else_to_do(tmp_path):
    said = refused(tmp_path / "status.sock")
    assert "none runs in this network namespace" in said
    assert "--manifests DIR, --from-cluster or --kubeconfig FILE" in said


def test_a_daemon_that_has_ended_is_none(tmp_path):
    listen_at(str(tmp_path / "status.sock")).close()
    assert "none runs in this network namespace" in refused(tmp_path / "status.sock")


def answering(listener: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        stream, _ = listener.accept()
        with stream:
            stream.recv(65536)
            stream.sendall(answer)

    listener.settimeout(10)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "answer,said",
    [
        pytest.param(b"HTTP/1.0 503 Busy\r\n\r\nask again\n", "ask again", id="a busy daemon"),
        pytest.param(b'HTTP/1.0 200 OK\r\n\r\n{"format":99}', "format 99, not 1", id="a daemon of another version"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nhello", "not as a daemon of this version", id="nonsense"),
        pytest.param(b"hello\r\n\r\n", "not as a daemon of this version: hello. Name", id="no HTTP at all"),
    ],
)
def test_an_answer_of_no_use_is_told(tmp_path, answer, said):
    path = tmp_path / "status.sock"
    with listen_at(str(path)) as listener:
        thread = answering(listener, answer)
        assert said in refused(path)
        thread.join(10)


def test_who_is_not_root_is_told_so():
    error = OSError(errno.EACCES, "Permission denied")
    said = str(daemon_client._no_answer("/run/x.sock", error, ""))
    assert ("EACCES" if os.geteuid() == 0 else "only root may ask") in said


def test_a_folder_tells_its_names(tmp_path):
    found = names_source.names_of_folder(str(folder_of(tmp_path, a=GOOD)))
    (service,) = found.services
    assert (service.name, service.endpoints[0].node) == ("web", "n1")
    assert found.head.node_port_addresses is None


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        names_source.names_of_folder(str(tmp_path / "nosuch"))
