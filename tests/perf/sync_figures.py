"""What syncs and audits cost on a real kernel: a program for the lab's machine, whose kernel must be clean.

    python -m tests.perf.sync_figures SERVICES FOLDER RESULT.json

The shell's own parts on the real edges, fed line by line with what a streaming list tells: no list is held here, so
that the memory is the program's. The kernel's share is what is spent inside send and recv of the netlink sockets.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

from ipvsproxy import log
from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import Listed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.types import LogFormat
from ipvsproxy.daemon import real_kernel
from ipvsproxy.kernel.addresses import NetlinkAddresses
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.netlink import NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkSocket
from ipvsproxy.kube import client  # noqa: F401  # which a daemon that follows an API server has in memory
from ipvsproxy.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from ipvsproxy.kube.told import Told
from ipvsproxy.kube.wire import Absent, Present, Reader, Unreadable
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.modes.ipvs.sets import ENTRY_KIND_BY_NAME
from ipvsproxy.sync.reconciler import Reconciler
from ipvsproxy.sync.scheduler_probe import require_scheduler
from tests.perf import workload
from tests.perf.stopwatch import KERNEL, Stopwatch

Figures = dict[str, int]

DECODE, PLAN, DIFF, ENCODE = "decode", "plan", "diff", "encode"
LOOKS = ("ipvs", "addresses", "ipsets", "rules", "sysctls")  # the parts of a quick audit, besides what compares
HOST_ADDRESS = PackedAddr(bytes((192, 0, 2, 10)))
COUNTS = ("messages", "system_calls", "dumps")
REPEATS = 9


class MeasuredNode:
    """The program between the API server and the kernel, with a stopwatch in it."""

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()
        self._sockets: list[NetlinkSocket] = []
        kernel = self._kernel()
        require_scheduler(kernel.ipvs, "rr")
        self.tracker = Tracker(workload.NODE_NAME, tuple(Family))
        mode = IpvsMode(IpvsOptions(ServiceOptions(frozenset(Family))))
        self.tracker.note(Listed("Node"))  # there is none
        self.reconciler = Reconciler(kernel, self.tracker, mode, SystemClock())
        self.reconciler.host_changed(frozenset({HOST_ADDRESS}))
        self.reconciler.start()
        self._readers = {
            resource.kind: (Reader(resource), Told(resource.kind)) for resource in (SERVICES, ENDPOINT_SLICES)
        }
        for _, told in self._readers.values():
            told.begin_list()
        for part, owner, name in (
            (PLAN, self.tracker, "take"),
            (PLAN, self.reconciler, "_plan"),
            *((ENCODE, subsystem, "apply") for subsystem in kernel.subsystems),
            *((part, getattr(kernel, part), "fingerprint") for part in LOOKS if part != "ipvs"),
            ("ipvs", kernel.ipvs, "survey"),
        ):
            setattr(owner, name, self.stopwatch.timed(part, getattr(owner, name)))

    def _kernel(self) -> Kernel:
        ipvs, route, sets = (
            NetlinkSocket(protocol, name, self.stopwatch.open_timed)
            for protocol, name in ((NETLINK_GENERIC, "IPVS"), (NETLINK_ROUTE, "the link"), (NETLINK_NETFILTER, "ipset"))
        )
        self._sockets = [ipvs, route, sets]
        return dataclasses.replace(
            real_kernel(LegacyRules(OWN_CHAINS)),
            ipvs=NetlinkIpvs(ipvs),
            addresses=NetlinkAddresses(route),
            ipsets=NetlinkIPSets(ENTRY_KIND_BY_NAME, sets),
        )

    def counted(self) -> Counter[str]:
        """Messages, system calls and dumps of all sockets so far."""
        total: Counter[str] = Counter()
        for each in self._sockets:
            total.update(dataclasses.asdict(each.counters))
        return total

    def tell(self, resource: Resource, line: bytes) -> None:
        """One line of a watch."""
        reader, told = self._readers[resource.kind]
        arrival = reader.read_line(line)
        assert isinstance(arrival, Present | Absent | Unreadable), line
        event = told.take(arrival)
        assert event is not None, line
        self.tracker.note(event)

    def tell_all(self, resource: Resource, path: Path) -> None:
        """A streaming list, from a file."""
        with path.open("rb") as lines:
            for line in lines:
                before = self.stopwatch.switch(DECODE)
                self.tell(resource, line)
                self.stopwatch.switch(before)
        self._readers[resource.kind][1].end_list("")
        self.tracker.note(Listed(resource.kind))


def memory(prefix: str) -> Figures:
    """Resident memory of this process, in bytes: now, and at most."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kept = (("rss", "VmRSS"), ("peak", "VmHWM"))
    return {f"{prefix}.{name}_bytes": int(fields[field].split()[0]) * 1024 for name, field in kept}


def measure(services: int, folder: Path) -> Figures:
    """All figures at this number of Services."""
    figures = memory(f"memory.imports.{services}")
    node = MeasuredNode()
    figures |= _cold(node, services, folder)
    figures |= memory(f"memory.synced.{services}")
    figures |= _one_endpoint(node, services)
    figures |= _audits(node, services)
    result = node.reconciler.remove_all()
    assert result.refused == result.waiting == 0, result
    return figures


def _cold(node: MeasuredNode, services: int, folder: Path) -> Figures:
    before = node.counted()
    node.stopwatch.take()
    node.tell_all(SERVICES, folder / "services.jsonl")
    node.tell_all(ENDPOINT_SLICES, folder / "slices.jsonl")
    node.stopwatch.switch(DIFF)
    result = node.reconciler.sync()
    node.stopwatch.switch("")
    assert result.refused == result.waiting == 0, result
    parts = node.stopwatch.take()
    wrote = node.counted() - before
    found = {f"cold.{services}.{part}_insn": parts[part] for part in (DECODE, PLAN, DIFF, ENCODE, KERNEL)}
    return found | _counts(f"cold.{services}", wrote)


def _one_endpoint(node: MeasuredNode, services: int) -> Figures:
    """One endpoint more in one slice, from the watch's line to the kernel's answer; the median of some Services."""
    seen = []
    for repeat in range(REPEATS):
        line = workload.watch_line(
            "MODIFIED", workload.endpoint_slice(repeat + 1, workload.ENDPOINTS + 1), 2 * services + repeat + 1
        )
        before = node.counted()
        node.stopwatch.take()
        node.stopwatch.switch(DIFF)
        node.tell(ENDPOINT_SLICES, line)
        result = node.reconciler.sync()
        node.stopwatch.switch("")
        assert result.operations == 1, result
        parts = node.stopwatch.take()
        kernel = parts[KERNEL]
        seen.append((parts.total() - parts[""] - kernel, kernel, node.counted() - before))
    counts = {json.dumps(wrote, sort_keys=True) for *_, wrote in seen}
    assert len(counts) == 1, counts
    return {
        f"endpoint.{services}.user_insn": int(statistics.median(user for user, _, _ in seen)),
        f"endpoint.{services}.kernel_insn": int(statistics.median(kernel for _, kernel, _ in seen)),
        **_counts(f"endpoint.{services}", seen[0][2]),
    }


def _audits(node: MeasuredNode, services: int) -> Figures:
    """The median of some: the collection of garbage falls into one and not into the next.

    The very first takes the fingerprints, which it has none of yet, and is not counted.
    """
    node.reconciler.audit(in_full=False)
    found: Figures = {}
    for name, in_full, repeats in (("quick", False, 5), ("full", True, 3)):
        audits = [_one_audit(node, in_full=in_full) for _ in range(repeats)]
        for figure in audits[0]:
            found[f"audit_{name}.{services}.{figure}"] = int(statistics.median(audit[figure] for audit in audits))
    return found


def _one_audit(node: MeasuredNode, *, in_full: bool) -> Figures:
    before = node.counted()
    node.stopwatch.take()
    node.stopwatch.switch(DIFF)
    result = node.reconciler.audit(in_full=in_full)
    node.stopwatch.switch("")
    assert result.operations == 0, result
    parts = node.stopwatch.take()
    counted = node.counted() - before
    split = {} if in_full else {f"{part}_insn": parts[part] for part in (*LOOKS, DIFF, KERNEL)}
    return {"total_insn": parts.total() - parts[""], **split, **{name: counted[name] for name in COUNTS}}


def _counts(prefix: str, counted: Counter[str]) -> Figures:
    return {f"{prefix}.{name}": counted[name] for name in COUNTS}


def main(argv: list[str]) -> None:
    """Measure, and write the result."""
    services, folder, result = argv
    log.configure(LogFormat.JSON, 0, sys.stderr)
    Path(result).write_text(json.dumps(measure(int(services), Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
