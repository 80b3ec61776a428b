"""What root may ask the daemon: a real client at a real Unix socket, and a sync thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from ipvsproxy import status_server
from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.known import KnownDrain, decode_known
from ipvsproxy.daemon import QueueInbox
from ipvsproxy.model import real_servers
from ipvsproxy.model.figures import Figures
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.serve.page_server import PageServer
from ipvsproxy.sync.runner import Periods, Runner, Signal, SnapshotWanted
from tests.builders import blob, vs_key
from tests.clusters import Node, Svc, cluster

PATIENCE_S = 10.0
"""A safety limit: nothing here waits, but for the machine."""


@contextmanager
def running(server: PageServer) -> Iterator[None]:
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        server.close()


def ask(path: Path, target: str = "/known") -> tuple[int, bytes]:
    """Status and body, as soon as somebody listens."""
    deadline = time.monotonic() + PATIENCE_S
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        while client.connect_ex(str(path)):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        client.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        received = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.fixture
def node() -> Node:
    found = Node()
    found.sync(cluster(Svc("web", endpoints=(("10.244.1.5", True), ("10.244.2.5", True)))))
    return found


def test_k53_the_daemon_tells_services_endpoints_and_what_drains(node, tmp_path):
    key = vs_key("10.96.0.20", 80)
    node.fake.connections[key, real_servers.identity(blob(("10.244.1.5", 8080)))] = 1
    node.sync(cluster(Svc("web", endpoints=(("10.244.2.5", True),))))
    node.clock.now += 60
    path = tmp_path / "status.sock"

    def put(wanted: SnapshotWanted) -> None:
        wanted.answer(node.reconciler.snapshot)

    with running(status_server.status_server(put, Figures, node.clock, "n1", str(path))):
        status, body = ask(path)
    assert status == 200
    head, (service,) = decode_known(body)
    assert head.node == "n1"
    assert head.drains == (KnownDrain("TCP", "10.96.0.20", 80, "10.244.1.5", 8080, 840.0),)
    assert (service.namespace, service.name, service.addresses) == ("default", "web", ("10.96.0.20",))
    assert [endpoint.address for endpoint in service.endpoints] == ["10.244.2.5"]


def test_the_sync_thread_answers_between_two_passes_and_makes_none_for_it(node, tmp_path):
    inbox = QueueInbox()
    runner = Runner(inbox, node.tracker, node.reconciler, SystemClock(), Periods())
    path = tmp_path / "status.sock"
    before = node.fake.messages
    sync = threading.Thread(target=runner.run, daemon=True)
    with running(status_server.status_server(inbox.put, Figures, SystemClock(), "n1", str(path))):
        sync.start()
        status, body = ask(path)
        inbox.put(Signal.STOP)
        sync.join(PATIENCE_S)
    assert (status, len(decode_known(body).services)) == (200, 1)
    assert node.fake.messages == before
    assert all(vitals.asked_at is None for vitals in runner.vitals.families.values())


def test_who_asks_a_busy_daemon_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(status_server, "PATIENCE_S", 0.0)
    path, unanswered = tmp_path / "status.sock", []
    with running(status_server.status_server(unanswered.append, Figures, SystemClock(), "n1", str(path))):
        status, body = ask(path)
    assert (status, body) == (503, b"the daemon is busy with a long pass; ask again\n")
    assert [type(message) for message in unanswered] == [SnapshotWanted]


def test_it_tells_how_much_is_refused_and_how_much_waits_for_that_without_asking_the_sync_thread(tmp_path):
    path, unanswered = tmp_path / "status.sock", []
    figures = Figures(refused={Kind.ADDRESS: 2, Kind.RULES: 1}, waiting={Kind.VIRTUAL_SERVER: 5})
    with running(status_server.status_server(unanswered.append, lambda: figures, SystemClock(), "n1", str(path))):
        assert ask(path, "/undone") == (200, b'{"refused":3,"waiting":5}')
    assert not unanswered


def test_there_is_nothing_else_to_ask(tmp_path):
    path = tmp_path / "status.sock"
    with running(status_server.status_server(lambda _: None, Figures, SystemClock(), "n1", str(path))):
        assert ask(path, "/metrics")[0] == 404


def test_a_socket_that_cannot_be_had_is_one_warning_and_no_event(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "status.sock"
    structlog.reset_defaults()
    server, told = status_server.status_server(lambda _: None, Figures, SystemClock(), "n1", str(path)), []
    server.tell = told.append
    with capture_logs() as logs, running(server):
        deadline = time.monotonic() + PATIENCE_S
        while not logs:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert [(log["event"], log["log_level"], log["address"]) for log in logs] == [
        ("server_cannot_listen", "warning", str(path))
    ]
    assert told == []


def test_a_snapshot_costs_the_sync_thread_a_reference_for_each_object(node):
    snapshot = node.reconciler.snapshot
    (service,), ((piece,),) = snapshot.cluster.services, snapshot.cluster.slices.values()
    view, (held,) = node.tracker.view(service.name)
    assert service is view
    assert piece is held


def test_services_that_come_after_a_snapshot_are_not_in_it(node):
    snapshot = node.reconciler.snapshot
    node.sync(cluster(Svc("web"), Svc("late", ("10.96.0.21",))))
    assert [service.name.name for service in snapshot.cluster.services] == ["web"]
