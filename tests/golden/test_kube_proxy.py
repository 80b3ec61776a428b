"""`plan` against the real kube-proxy: equal line by line, but for the rows of docs/differences.md.

The recordings say what the real one does for their objects; for those of our golden cases and for random ones an
imitation says it (upstream.py), which is held to the recordings. The page is the only list of exceptions: a line that
differs and has no row fails, and so does a row that no recording and no golden case needs.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import pytest

from ipvsproxy import dry_run
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import State
from ipvsproxy.status import wanted
from tests.builders import FakeClock
from tests.clusters import events
from tests.golden.cases import FORMATS, Daemon
from tests.golden.comparison import normalised, one_sided, sections
from tests.golden.differences import BOTH, OURS, THEIRS, Difference, meant_differences
from tests.golden.recording import IMITATIONS, RECORDINGS, Imitation, Recording
from tests.golden.upstream import recorded

ROWS = meant_differences()
ALL = (*RECORDINGS, *IMITATIONS)
EACH_OF_ALL = [pytest.param(found, name, id=f"{found.name}-{name}") for found in ALL for name in found.formats]


@functools.cache
def wanted_state(recording: Recording | Imitation) -> State:
    command = recording.command()
    return dry_run.plan(command.config, command.options)[0]


def planned(recording: Recording | Imitation, plan_format: PlanFormat) -> list[str]:
    return list(normalised(wanted.FORMATS[plan_format](wanted_state(recording))))


def recording_of(name: str) -> Recording:
    return next(recording for recording in RECORDINGS if recording.name == name)


def used_rows(recording: Recording | Imitation, plan_format: PlanFormat, line: str, side: str) -> set[Difference]:
    return {row for row in ROWS if row.covers(plan_format, line, side, recording.values)}


def common(
    lines: list[str], differing: set[tuple[str, str]], side: str, moved: Collection[str] = ()
) -> dict[tuple[str, str], list[str]]:
    """What is left without the lines that differ, those that stand elsewhere, and whole tables that differ."""
    gone = {line for line, whose in differing if whose == side and line.startswith("*")}
    kept = {
        place: [line for line in here if (line, side) not in differing and line not in moved]
        for place, here in sections(lines).items()
        if place[0] not in gone
    }
    return {place: here for place, here in kept.items() if here}


def moved_lines(recording: Recording | Imitation, plan_format: PlanFormat) -> set[str]:
    """The lines that the page says stand in another place of their chain."""
    lines = recording.lines(plan_format)
    return {line for line in lines if used_rows(recording, plan_format, line, BOTH)}


@pytest.mark.parametrize("recording", [pytest.param(recording, id=recording.name) for recording in RECORDINGS])
def test_every_recorded_object_can_be_used(recording):
    command = recording.command()
    assert dry_run.plan(command.config, command.options)[1] == ()


@pytest.mark.parametrize("recording,plan_format", EACH_OF_ALL)
def test_plan_says_what_kube_proxy_does_but_for_the_differences_page(recording, plan_format):
    ours, theirs = planned(recording, plan_format), recording.lines(plan_format)
    differing = set(one_sided(ours, theirs))
    unexplained = [(line, side) for line, side in differing if not used_rows(recording, plan_format, line, side)]
    assert unexplained == []
    moved = moved_lines(recording, plan_format)
    assert common(ours, differing, OURS, moved) == common(theirs, differing, THEIRS, moved)


@pytest.mark.parametrize("recording", [pytest.param(recording, id=recording.name) for recording in RECORDINGS])
def test_the_imitation_of_kube_proxy_does_what_the_real_one_was_recorded_to_do(recording):
    for plan_format, lines in recorded(recording.given).items():
        assert sections(normalised(lines)) == sections(recording.lines(plan_format))


@functools.cache
def rows_in_use() -> frozenset[Difference]:
    return frozenset(
        row
        for recording in ALL
        for plan_format in recording.formats
        for line, side in one_sided(planned(recording, plan_format), recording.lines(plan_format))
        for row in used_rows(recording, plan_format, line, side)
    )


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.only_in}: {row.line}") for row in ROWS if row.only_in != BOTH]
)
def test_every_line_of_the_differences_page_is_needed(row):
    assert row in rows_in_use()


@pytest.mark.parametrize("row", [pytest.param(row, id=row.line) for row in ROWS if row.only_in == BOTH])
def test_a_row_about_another_place_speaks_of_a_line_that_both_have_and_in_another_order(row):
    for recording in RECORDINGS:
        for plan_format in row.files:
            ours, theirs = planned(recording, plan_format), recording.lines(plan_format)
            differing = set(one_sided(ours, theirs))
            if any(row in used_rows(recording, plan_format, line, BOTH) for line in ours):
                assert common(ours, differing, OURS) != common(theirs, differing, THEIRS)
                return
    pytest.fail("no recording has the line")


def shown(state: State) -> dict[PlanFormat, list[str]]:
    """A kernel in the formats of the tools; not its sysctls, of which it has others."""
    return {name: list(normalised(wanted.FORMATS[name](state))) for name in FORMATS if name is not PlanFormat.SYSCTL}


def test_k19_a_recorded_update_ends_where_a_start_on_its_end_does():
    before, after = (recording_of(f"update-port-removed-{when}") for when in ("before", "after"))
    fake = FakeKernel(before.command().options.families)
    daemon = Daemon(before.command(), fake.kernel, FakeClock())
    daemon.sync(before.events())
    assert shown(fake.state) == shown(wanted_state(before))
    daemon.sync(events(before.objects(), after.objects()))
    assert shown(fake.state) == shown(wanted_state(after))


def test_the_page_names_files_that_there_are():
    assert {name for row in ROWS for name in row.files} <= set(FORMATS)


@pytest.mark.parametrize(
    "plan_format,line",
    [
        pytest.param(PlanFormat.IPVSADM, "-a -t 10.96.1.2:5432 -r 10.244.1.20:5432 -m -w 1", id="a real server"),
        pytest.param(PlanFormat.ADDRESSES, "10.96.1.2/32", id="an address"),
        pytest.param(PlanFormat.IPSET, "add KUBE-CLUSTER-IP 10.96.1.1,tcp:80", id="a set entry"),
        pytest.param(PlanFormat.IPSET, "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535", id="a set"),
        pytest.param(PlanFormat.IPTABLES, "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN", id="a rule"),
        pytest.param(PlanFormat.SYSCTL, "net.ipv4.ip_forward = 1", id="a sysctl"),
    ],
)
def test_a_line_that_only_one_side_has_is_seen_and_no_row_covers_it(plan_format, line):
    recording = recording_of("clusterip-basic")
    ours, theirs = planned(recording, plan_format), recording.lines(plan_format)
    differing = set(one_sided(ours, [other for other in theirs if other != line])) - set(one_sided(ours, theirs))
    assert differing == {(line, OURS)}
    assert used_rows(recording, plan_format, line, OURS) == set()


def test_rules_in_another_order_are_seen():
    recording = RECORDINGS[0]
    lines = recording.lines(PlanFormat.IPTABLES)
    first = lines.index("-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0")
    swapped = [*lines[:first], lines[first + 1], lines[first], *lines[first + 2 :]]
    assert set(one_sided(lines, swapped)) == set()
    assert common(lines, set(), OURS) != common(swapped, set(), THEIRS)
