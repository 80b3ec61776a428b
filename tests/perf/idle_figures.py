"""What the daemon costs while nothing changes: the program as it is, following an API server, 1,000 Services served.

    python -m tests.perf.idle_figures FOLDER RESULT.json      in the lab's machine; FOLDER as sync_figures' one

Audits are apart (audit_quick in figures.json): their period is a day here. What is left are bookmarks, one
a minute for each of the three watches. The server of this file answers as a real one does to a client that lists by a
stream, in this process; only the daemon's own CPU time counts, of all its threads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.perf import workload

Figures = dict[str, int]

IDLE_S = 120
SETTLED_S = 10
BOOKMARK_S = 60
START_LIMIT_S = 600
_FILES = {"/api/v1/services": "services.jsonl", "/apis/discovery.k8s.io/v1/endpointslices": "slices.jsonl"}
_KINDS = {"/api/v1/services": "Service", "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSlice"}
_VERSION = 1_000_000
_PROCESS_CLOCK = 2  # include/linux/posix-timers.h CPUCLOCK_SCHED, of a whole process


class _Handler(BaseHTTPRequestHandler):
    """Lists by a stream, then tells bookmarks; takes Events."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        """A watch, which the measurement outlives by far."""
        path = urlsplit(self.path).path
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        name = _FILES.get(path)
        if name:
            self._say((self.folder / name).read_bytes())
        self._say(bookmark(_KINDS.get(path, "Node"), ends_list=True))
        while True:
            time.sleep(BOOKMARK_S)
            self._say(bookmark(_KINDS.get(path, "Node")))

    def do_POST(self) -> None:
        """An Event."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def _say(self, lines: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(lines), lines))

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def bookmark(kind: str, *, ends_list: bool = False) -> bytes:
    """A line that tells how far a watch is."""
    metadata: dict[str, object] = {"resourceVersion": str(_VERSION)}
    if ends_list:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return json.dumps({"type": "BOOKMARK", "object": {"kind": kind, "metadata": metadata}}).encode() + b"\n"


@contextmanager
def api_server(folder: Path) -> Iterator[str]:
    """The server of this folder's watches; yields its URL."""
    handler = type("Handler", (_Handler,), {"folder": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process."""
    return time.clock_gettime_ns((~pid << 3) | _PROCESS_CLOCK)


def wakeups(pid: int) -> int:
    """How often threads of a process that waited for something were woken, so far."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def wait_until_served(process: subprocess.Popen[bytes], log: Path, services: int) -> None:
    """Back when a sync with that many Services is done. Raises AssertionError."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line[-1] == "}"]
        if any(line["event"] == "sync_finished" and line["services"] == services for line in lines):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)


def measure(folder: Path) -> Figures:
    """All figures."""
    with tempfile.TemporaryDirectory() as name, api_server(folder) as url:
        log = Path(name, "log")
        command = [sys.executable, "-m", "ipvsproxy", "--proxy-mode=ipvs", f"--master={url}", "--logging-format=json"]
        command += [f"--hostname-override={workload.NODE_NAME}", "--ipvs-sync-period=24h"]
        with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
            try:
                wait_until_served(process, log, workload.SERVICES)
                time.sleep(SETTLED_S)
                before, woken = cpu_ns(process.pid), wakeups(process.pid)
                time.sleep(IDLE_S)
                spent, woken = cpu_ns(process.pid) - before, wakeups(process.pid) - woken
            finally:
                os.kill(process.pid, signal.SIGTERM)
            assert process.wait() == 0, log.read_text()
    prefix = f"idle.{workload.SERVICES}"
    return {f"{prefix}.second_insn": spent // IDLE_S, f"{prefix}.wakeups_in_{IDLE_S}_s": woken}


def main(argv: list[str]) -> None:
    """Measure, and write the result."""
    folder, result = argv
    Path(result).write_text(json.dumps(measure(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
