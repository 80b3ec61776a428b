"""How long a watch may last: silence is counted by what bytes say, and its end is ours if it is not the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.kube.recovery import Timing
from ipvsproxy.kube.resources import SERVICES
from ipvsproxy.kube.watch import Watch
from tests.builders import FakeClock

Piece = tuple[float, bytes]

TIMING = Timing(silence_s=90.0, shortest_watch_s=300.0, longest_watch_s=600.0, overtime_s=30.0)


def line(event_type: str, version: int, *, ends_list: bool = False) -> bytes:
    metadata: dict[str, object] = {"name": "web", "namespace": "default", "resourceVersion": str(version)}
    if ends_list:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return json.dumps({"type": event_type, "object": {"metadata": metadata}}).encode() + b"\n"


LISTED = (0.0, line("BOOKMARK", 5, ends_list=True))
NEWS, KNOWN, BLANK, HALF = line("MODIFIED", 9), line("BOOKMARK", 5), b" \n", b'{"ty'


class Server:
    """A server that says each piece at its time, and nothing after the last; the session and the answer in one."""

    server = "https://10.0.0.1"
    status = 200
    retry_after_s = None

    def __init__(self, clock: FakeClock, pieces: Sequence[Piece]) -> None:
        self._clock = clock
        self._pieces = pieces
        self.said = 0

    @contextmanager
    def connect(self) -> Iterator[Server]:
        yield self

    @contextmanager
    def get(self, path: str, query: Mapping[str, str], silence_s: float) -> Iterator[Server]:
        assert (path, query["timeoutSeconds"], silence_s) == (SERVICES.path, "450", 90.0)
        yield self

    def chunks(self) -> Iterator[bytes]:
        for at, piece in self._pieces:
            self.said += 1
            self._clock.now = at
            yield piece

    def read(self, most: int = 0) -> bytes:
        raise AssertionError(most)

    def shut_down(self) -> None:
        """There is no socket."""


class Course(NamedTuple):
    """How many pieces were read, and why the watch ended."""

    read: int
    end: str


def follow(*pieces: Piece) -> Course:
    clock = FakeClock()
    server = Server(clock, pieces)
    told: list[ClusterEvent] = []
    interruption = Watch(server, SERVICES, clock, timing=TIMING, spread=lambda: 0.5)._attempt(told.extend)
    return Course(server.said, str(interruption))


ENDED = "ended after the time that was asked for"
SILENT = "silent: bytes came, but nothing whole for longer than bookmarks take"


@pytest.mark.parametrize("piece", [BLANK, HALF, b"\n", b""])
def test_k16_what_says_nothing_whole_for_90_seconds_is_silence(piece: bytes):
    assert follow(LISTED, (30, piece), (60, piece), (89, piece), (90, piece), (91, NEWS)) == Course(5, SILENT)


def test_k16_half_lines_are_silence_in_a_list_too():
    assert follow((10, line("ADDED", 3)), (90, HALF), (100, HALF), (101, HALF)) == Course(3, SILENT)


@pytest.mark.parametrize("said", [NEWS, KNOWN])
def test_k16_each_whole_line_begins_the_silence_anew(said: bytes):
    assert follow(LISTED, (60, said), (149, BLANK), (149, said), (238, HALF)) == Course(5, ENDED)


@pytest.mark.parametrize("said", [NEWS, KNOWN])
def test_k16_watch_that_the_server_does_not_end_is_ended_half_a_minute_after_the_time_it_was_asked_for(said: bytes):
    """News come all the time; without an end, no new token or certificate would ever come into force."""
    pieces = [LISTED, *((at, said) for at in range(60, 479, 60)), (479, said), (480, said), (481, said)]
    assert follow(*pieces) == Course(len(pieces) - 1, ENDED)


def test_list_that_is_not_complete_when_its_time_is_over_is_told_as_cut():
    pieces = [(at, line("ADDED", 3)) for at in range(60, 541, 60)]
    assert follow(*pieces) == Course(8, "cut: the list was not complete")
