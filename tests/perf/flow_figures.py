"""What it costs to end stale UDP flows where connection tracking knows 100,000: a program for the lab's machine.

    python -m tests.perf.flow_figures RESULT.json

The table is as kube-proxy sizes it for up to four CPUs. A tenth of its entries are to the Service's frontend, and a
hundredth of these to the endpoint that has left; a third of the others is TCP. Each look is followed by the deletions,
and what was deleted is put back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ipvsproxy.kernel.conntrack import DELETE, NetlinkConntrack, header
from ipvsproxy.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.flows import PackedEndpoint, UdpFlow, pack_endpoint
from ipvsproxy.plan.flows import Answerers
from tests.lab.flows import OldKernelSocket, create
from tests.perf.stopwatch import KERNEL, OUTSIDE, Stopwatch

ENTRIES = 100_000
OURS = ENTRIES // 10
STALE = OURS // 100
SETTINGS = (("nf_conntrack_max", 131_072), ("nf_conntrack_buckets", 32_768))
USER = "user"

Figures = dict[str, int]


def _endpoint(address: int, port: int) -> PackedEndpoint:
    return pack_endpoint(address.to_bytes(4), port)


DNS, OTHER, ELSEWHERE = _endpoint(0x0A60000A, 53), _endpoint(0x0A60000B, 53), _endpoint(0x0A60000C, 30053)
HERE, GONE = _endpoint(0x0AF40105, 8053), _endpoint(0x0AF40106, 8053)

CASES: dict[str, Answerers] = {
    "one": {DNS: (HERE,)},
    "unlike": {DNS: (HERE,), ELSEWHERE: (HERE,)},  # frontends that have neither address nor port in common
}


def clients() -> Iterator[PackedEndpoint]:
    """One after the other."""
    for number in range(ENTRIES):
        yield _endpoint(0x0AF50000 + number // 16, 1024 + number % 16)


def fill(table: NetlinkSocket) -> None:
    """Make the entries."""
    every = list(clients())
    ours, others = every[:OURS], every[OURS:]
    tcp, udp = others[::3], [client for number, client in enumerate(others) if number % 3]
    stale = {UdpFlow(client, DNS, GONE) for client in ours[:STALE]}
    for flows, protocol in (
        ([*stale, *(UdpFlow(client, DNS, HERE) for client in ours[STALE:])], Protocol.UDP),
        ([UdpFlow(client, OTHER, HERE) for client in udp], Protocol.UDP),
        ([UdpFlow(client, OTHER, HERE) for client in tcp], Protocol.TCP),
    ):
        numbers = create(table, flows, protocol)
        assert not any(numbers), set(numbers)


def clean_up(stopwatch: Stopwatch, conntrack: NetlinkConntrack, answerers: Answerers) -> Figures:
    """One look, and its deletions."""
    before = conntrack.netlink.counters.system_calls
    stopwatch.take()
    stopwatch.switch(USER)
    found = conntrack.stale(answerers)
    numbers = conntrack.delete(found)
    stopwatch.switch(OUTSIDE)
    parts = stopwatch.take()
    assert numbers == [0] * STALE, len(numbers)
    calls = conntrack.netlink.counters.system_calls - before
    assert not any(create(conntrack.netlink, [UdpFlow(each.client, each.destination, each.server) for each in found]))
    return {"user_insn": parts[USER], "kernel_insn": parts[KERNEL], "system_calls": calls}


@contextmanager
def table_of_this_size() -> Iterator[NetlinkSocket]:
    """Connection tracking's table, empty again afterwards."""
    subprocess.run(["modprobe", "nf_conntrack_netlink"], check=True)
    for name, value in SETTINGS:
        Path("/proc/sys/net/netfilter", name).write_text(str(value))
    with closing(NetlinkSocket(NETLINK_NETFILTER, "the table")) as table:
        yield table
        assert table.send_batch(DELETE, [header(Family.IPV4)]) == [0]


def measure() -> Figures:
    """Every case, on a kernel that compares and on one that does not."""
    stopwatch = Stopwatch()
    figures: Figures = {}
    with table_of_this_size() as table:
        fill(table)
        for kernel, socket_of in (("filter", NetlinkSocket), ("no_filter", OldKernelSocket)):
            netlink = socket_of(NETLINK_NETFILTER, "the table", stopwatch.open_timed)
            with closing(NetlinkConntrack(netlink)) as conntrack:
                for case, answerers in CASES.items():
                    clean_up(stopwatch, conntrack, answerers)  # the first time of anything is dearer than all others
                    found = clean_up(stopwatch, conntrack, answerers)
                    figures |= {f"flows.{kernel}.{case}.{name}": figure for name, figure in found.items()}
    return figures


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(measure()))
