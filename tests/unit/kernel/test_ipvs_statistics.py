"""Statistics as recorded from a kernel, and as older kernels send them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipvsproxy.kernel.ipvs_statistics import OF_DESTS, OF_SERVICES
from ipvsproxy.kernel.netlink import ATTRIBUTE, attributes
from ipvsproxy.model.observed import NO_STATISTICS, Statistics

DATA = Path(__file__).parents[2] / "data" / "ipvsadm"
NAMES = ("conns", "inpkts", "outpkts", "inbytes", "outbytes", "cps", "inpps", "outpps", "inbps", "outbps")
STATS, STATS64 = 10, 12
GENL_HEADER = bytes(4)


def recorded():
    """Reader, message and state of each entry of a kernel that traffic went through."""
    recording = json.loads((DATA / "traffic.netlink-raw.json").read_text())
    state = json.loads((DATA / "traffic.state.json").read_text())
    for sent, service in zip(recording["services"], state["services"], strict=True):
        yield OF_SERVICES, bytes.fromhex(sent["service"]), service
        for dest, entry in zip(sent["dests"], service["dests"], strict=True):
            yield OF_DESTS, bytes.fromhex(dest), entry


def statistics(counters):
    return Statistics(*(counters.get(name, 0) for name in NAMES))


def without(body: bytes, *numbers: int) -> bytes:
    """The message with these attributes left out of its outer one."""
    (outer, start, end), *_ = attributes(body, 0, len(body))
    kept = b"".join(
        body[begin - ATTRIBUTE.size : (stop + 3) & ~3]
        for number, begin, stop in attributes(body, start, end)
        if number not in numbers
    )
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(kept), outer) + kept


def test_the_wide_counters_are_read():
    seen = [(reader.read(GENL_HEADER + body), statistics(entry["stats64"])) for reader, body, entry in recorded()]
    assert [ours for ours, _ in seen] == [expected for _, expected in seen]
    assert any(ours != NO_STATISTICS for ours, _ in seen)


@pytest.mark.parametrize("times", [1, 2])
def test_a_kernel_without_wide_counters_is_read_by_its_narrow_ones(times):
    for reader, body, entry in list(recorded()) * times:
        assert reader.read(GENL_HEADER + without(body, STATS64)) == statistics(entry["stats"])


def test_a_message_without_counters_has_none():
    for reader, body, _ in recorded():
        assert reader.read(GENL_HEADER + without(body, STATS, STATS64)) == NO_STATISTICS
