"""What root on this node may ask the running daemon, at a Unix socket: /known for names, /undone for `top`.

    status --names ── GET /known ─→ thread "status" ── SnapshotWanted ─→ the one queue ─→ sync thread, between passes
                   ←─ JSON lines ── puts it into words ←────────────── a reference for each object

It costs nothing while nobody asks. Who asks waits for the sync thread, never the other way round; /undone is what that
thread has published by then.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.known import Snapshot, encode_known
from ipvsproxy.model.figures import Figures, Undone
from ipvsproxy.serve.http_messages import Answer
from ipvsproxy.serve.local_socket import KNOWN, UNDONE, socket_path
from ipvsproxy.serve.page_server import LocalSite, Page, PageServer
from ipvsproxy.sync.runner import SnapshotWanted

PATIENCE_S = 5.0  # half of what a connection lives; the longest pass, the first of 10,000 Services, takes as long
_LINES: Final = {"Content-Type": "application/jsonl"}
_JSON: Final = {"Content-Type": "application/json"}
_BUSY: Final = b"the daemon is busy with a long pass; ask again\n"


def status_server(
    put: Callable[[SnapshotWanted], None],
    figures: Callable[[], Figures],
    clock: Clock,
    node_name: str,
    path: str = "",
) -> PageServer:
    """The server. `put` hands a message to the sync thread; `path`: that of this network namespace by default."""
    pages: dict[str, Page] = {KNOWN: lambda _: _known(put), UNDONE: lambda _: _undone(figures())}
    return PageServer(LocalSite(name="status", path=path or socket_path(), pages=pages), clock, node_name)


def _known(put: Callable[[SnapshotWanted], None]) -> Answer:
    answers: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
    put(SnapshotWanted(answers.put))
    try:
        snapshot = answers.get(timeout=PATIENCE_S)
    except queue.Empty:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _BUSY)
    return Answer(HTTPStatus.OK, b"\n".join(encode_known(snapshot)), _LINES)


def _undone(figures: Figures) -> Answer:
    counts = Undone(sum(figures.refused.values()), sum(figures.waiting.values()))
    return Answer(HTTPStatus.OK, msgspec.json.encode(counts), _JSON)
