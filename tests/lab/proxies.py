"""Starts and stops ipvsproxy for tests and the demo, and reads its log.

A program that starts cold imports its libraries first, which takes twenty seconds under emulation. `fork` runs the same
code, from the command line on, in a child of this process, which has imported them already.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from tests.lab.hosts import Namespace

_FORK = multiprocessing.get_context("fork")
LOOK_AGAIN_S = 0.02
WAIT_S = 90.0
"""Safety limit for anything that the proxy does, emulated, on a busy machine."""


class LogTimeoutError(AssertionError):
    """The proxy did not do in time what was waited for."""


LogLine = Mapping[str, Any]  # JSON, by the keys of ipvsproxy's log


class Proxy:
    """A running ipvsproxy: its process and its log file, JSON lines. Made by `start` or `fork`."""

    def __init__(self, process: ForkProcess | subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._seen = 0

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it if it still runs."""
        if self.exit_code is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended. Raises LogTimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while (code := self.exit_code) is None:
            if time.monotonic() > deadline:
                raise LogTimeoutError(f"ipvsproxy did not end within {WAIT_S:g} s. Its log:\n{self.text()}")
            time.sleep(LOOK_AGAIN_S)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.send(number)
        return self.wait()

    def text(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text(errors="replace")

    def lines(self) -> list[LogLine]:
        """All complete log lines so far; text that is no log line (an error of the command line) is left out."""
        whole, _, _ = self.text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def mark(self) -> None:
        """`wait_for` looks only at what is logged from here on."""
        self._seen = len(self.lines())

    def news(self) -> list[LogLine]:
        """The lines since `mark` or the last wait."""
        return self.lines()[self._seen :]

    def last(self, event: str) -> LogLine:
        """The newest line of this event."""
        return next(line for line in reversed(self.lines()) if line["event"] == event)

    def wait_for(self, event: str, accept: Callable[[LogLine], bool] = lambda _: True) -> LogLine:
        """The first line of this event since `mark` or the last wait. Raises LogTimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while True:
            ended = self.exit_code  # looked at first: what it wrote before it ended must still be found
            lines = self.lines()
            for position in range(self._seen, len(lines)):
                if lines[position]["event"] == event and accept(lines[position]):
                    self._seen = position + 1
                    return lines[position]
            if ended is not None or time.monotonic() > deadline:
                state = "runs" if ended is None else f"ended with {ended}"
                raise LogTimeoutError(f"ipvsproxy logged no {event} ({state}). Its log:\n{self.text()}")
            time.sleep(LOOK_AGAIN_S)

    def wait_for_services(self) -> LogLine:
        """The next sync that took up changes of Services and carried all of them out."""
        return self.wait_for("sync_finished", lambda line: line["services"] > 0 and not line["refused"])

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Back when it is so. Raises LogTimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise LogTimeoutError(f"ipvsproxy did not bring about what was waited for. Its log:\n{self.text()}")
            time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def _kept(proxy: Proxy) -> Iterator[Proxy]:
    try:
        yield proxy
    finally:
        proxy.send(signal.SIGKILL)
        proxy.wait()


@contextlib.contextmanager
def start(host: Namespace, argv: Sequence[str], log: Path) -> Iterator[Proxy]:
    """The program itself, cold, killed at the end of the block if it has not ended before."""
    program = Path(sys.executable).with_name("ipvsproxy")
    with log.open("wb") as stderr, host.inside():
        process = subprocess.Popen([program, *argv], stdin=subprocess.DEVNULL, stderr=stderr)
    with process, _kept(Proxy(process, log)) as proxy:
        yield proxy


@contextlib.contextmanager
def fork(host: Namespace, argv: Sequence[str], log: Path, before: Callable[[], None] = lambda: None) -> Iterator[Proxy]:
    """The same, warm: a child of this process that has called `before`, for instance to give up capabilities."""
    log.touch()
    process = _FORK.Process(target=_become_proxy, args=(list(argv), log, before), name="ipvsproxy", daemon=True)
    with host.inside():
        process.start()
    with _kept(Proxy(process, log)) as proxy:
        yield proxy


def _become_proxy(argv: Sequence[str], log: Path, before: Callable[[], None]) -> None:
    from ipvsproxy import cli  # noqa: PLC0415  # only this process becomes the proxy

    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
    before()
    sys.exit(cli.run(argv, cli.Programs()))


class Manifests:
    """A folder of manifests in which each file changes in one step, as a mounted ConfigMap does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next = folder.with_name(f"{folder.name}.next")
        folder.mkdir(exist_ok=True)

    def write(self, name: str, text: str) -> None:
        """Make a file's content `text`."""
        self._next.write_text(text)
        self._next.rename(self.folder / name)

    def remove(self, name: str) -> None:
        """Take a file away."""
        (self.folder / name).unlink()
