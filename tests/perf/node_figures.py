"""What it costs to know the addresses of all Nodes, from a line of the watch to the tracker: no kernel is involved.

    python -m tests.perf.node_figures RESULT.json

Lines are made one by one between the measurements, so that the memory is what the program keeps.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import OTHER_NODE, ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kube.other_nodes import KnownAddresses
from ipvsproxy.kube.resources import other_nodes
from ipvsproxy.kube.told import Told
from ipvsproxy.kube.wire import Absent, Present, Reader, Unreadable
from ipvsproxy.model.enums import Family
from tests.perf import workload
from tests.perf.stopwatch import Stopwatch

Figures = dict[str, int]

REPEATS = 99
_WORK = "work"


class FollowedNodes:
    """The way of a line of the second watch: its thread's part, and the sync thread's where there is news."""

    def __init__(self) -> None:
        self.tracker = Tracker(workload.NODE_NAME, tuple(Family), claims=Claims(waits_for_nodes=True))
        self.news = 0
        self._reader = Reader(other_nodes(workload.NODE_NAME))
        self._told = Told(OTHER_NODE)
        self._known = KnownAddresses()
        self._told.begin_list()

    def tell(self, line: bytes) -> None:
        """One line."""
        arrival = self._reader.read_line(line)
        assert isinstance(arrival, Present | Absent | Unreadable), line
        event = self._told.take(arrival)
        assert event is not None, line
        self._known.hand_on(self._deliver, (event,))

    def end_list(self, version: int) -> None:
        """All Nodes have been told."""
        self._known.hand_on(self._deliver, self._told.end_list(str(version)))

    def _deliver(self, events: Sequence[ClusterEvent]) -> None:
        for event in events:
            self.tracker.note(event)
            self.news += 1


def measure() -> Figures:
    """All figures."""
    nodes, stopwatch = FollowedNodes(), Stopwatch()
    workload.watch_line("ADDED", workload.node(1), 1)  # what making a line needs is there before memory is looked at
    before = _resident_bytes()
    for number in range(1, workload.NODES + 1):
        _tell(nodes, stopwatch, workload.watch_line("ADDED", workload.node(number), number))
    nodes.end_list(workload.NODES)
    listed = stopwatch.take()[_WORK]
    held = _resident_bytes() - before
    assert nodes.news == workload.NODES + 1, nodes.news
    beats = [_heartbeat(nodes, stopwatch, number) for number in range(1, REPEATS + 1)]
    assert nodes.news == workload.NODES + 1, "a heartbeat was news"
    return {
        "nodes.line_bytes": len(workload.watch_line("ADDED", workload.node(1), 1)),
        f"nodes.{workload.NODES}.list_insn": listed,
        f"nodes.{workload.NODES}.held_bytes": held,
        f"nodes.{workload.NODES}.heartbeat_insn": int(statistics.median(beats)),
    }


def _heartbeat(nodes: FollowedNodes, stopwatch: Stopwatch, number: int) -> int:
    line = workload.watch_line("MODIFIED", workload.node(number, heartbeat=1), workload.NODES + number)
    stopwatch.take()
    _tell(nodes, stopwatch, line)
    return stopwatch.take()[_WORK]


def _tell(nodes: FollowedNodes, stopwatch: Stopwatch, line: bytes) -> None:
    before = stopwatch.switch(_WORK)
    nodes.tell(line)
    stopwatch.switch(before)


def _resident_bytes() -> int:
    gc.collect()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def main(argv: list[str]) -> None:
    """Measure, and write the result."""
    Path(argv[0]).write_text(json.dumps(measure()))


if __name__ == "__main__":
    main(sys.argv[1:])
