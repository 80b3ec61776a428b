"""`plan` against recordings of the real kube-proxy: equal line by line, but for the rows of docs/differences.md.

That page is the only list of exceptions: a line that differs and has no row fails, and a row that no line needs fails.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

import pytest

from ipvsproxy import dry_run
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import State
from ipvsproxy.status import wanted
from tests.builders import FakeClock
from tests.clusters import events
from tests.golden.cases import FORMATS, Daemon
from tests.golden.recording import (
    BOTH,
    OURS,
    RECORDINGS,
    THEIRS,
    Difference,
    Recording,
    meant_differences,
    normalised,
    sections,
)

ROWS = meant_differences()


@functools.cache
def wanted_state(recording: Recording) -> State:
    command = recording.command()
    state, notes = dry_run.plan(command.config, command.options)
    assert notes == ()
    return state


def planned(recording: Recording, plan_format: PlanFormat) -> list[str]:
    return list(normalised(wanted.FORMATS[plan_format](wanted_state(recording))))


def recorded(name: str) -> Recording:
    return next(recording for recording in RECORDINGS if recording.folder.name == name)


def one_sided(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """(line, side) of each line that only one side has in its place; for a whole table its first line."""
    mine, other = sections(ours), sections(theirs)
    for place in {**mine, **other}:
        for side, here, there in ((OURS, mine, other), (THEIRS, other, mine)):
            if stands_for_its_table(place) or place[0] in tables_of(there):
                yield from ((line, side) for line in here.get(place, ()) if line not in there.get(place, ()))


def stands_for_its_table(place: tuple[str, str]) -> bool:
    return place[0] in {"", place[1]}


def tables_of(found: dict[tuple[str, str], list[str]]) -> set[str]:
    return {table for table, _ in found}


def used_rows(recording: Recording, plan_format: PlanFormat, line: str, side: str) -> set[Difference]:
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


def moved_lines(recording: Recording, plan_format: PlanFormat) -> set[str]:
    """The lines that the page says stand in another place of their chain."""
    lines = recording.lines(plan_format)
    return {line for line in lines if used_rows(recording, plan_format, line, BOTH)}


@pytest.mark.parametrize("plan_format", [pytest.param(name, id=name) for name in FORMATS])
@pytest.mark.parametrize("recording", [pytest.param(r, id=r.folder.name) for r in RECORDINGS])
def test_plan_says_what_kube_proxy_did_but_for_the_differences_page(recording, plan_format):
    ours, theirs = planned(recording, plan_format), recording.lines(plan_format)
    differing = set(one_sided(ours, theirs))
    unexplained = [(line, side) for line, side in differing if not used_rows(recording, plan_format, line, side)]
    assert unexplained == []
    moved = moved_lines(recording, plan_format)
    assert common(ours, differing, OURS, moved) == common(theirs, differing, THEIRS, moved)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.only_in}: {row.line}") for row in ROWS if row.only_in != BOTH]
)
def test_every_row_of_the_differences_page_is_needed(row):
    assert any(
        row in used_rows(recording, plan_format, line, side)
        for recording in RECORDINGS
        for plan_format in FORMATS
        if plan_format in row.files
        for line, side in one_sided(planned(recording, plan_format), recording.lines(plan_format))
    )


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
    before, after = (recorded(f"update-port-removed-{when}") for when in ("before", "after"))
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
    recording = recorded("clusterip-basic")
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
