"""Lines of the tools on two sides, compared.

What a tool adds on its own is taken off both sides: random and kernel-chosen numbers of sets, the built-in chains that
are always there. Order counts inside a chain and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tests.golden.differences import OURS, THEIRS

_CHOSEN_BY_KERNEL = re.compile(r" (?:bucketsize [0-9]+|initval 0x[0-9a-f]+)")
_BUILT_IN = re.compile(r":[A-Z]+ (?:ACCEPT|DROP) .*")


def normalised(lines: Iterable[str]) -> Iterator[str]:
    """The lines without what the tools or the kernel add on their own."""
    for line in lines:
        if not _BUILT_IN.fullmatch(line):
            yield _CHOSEN_BY_KERNEL.sub("", line)


def sections(lines: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Lines by the place in which their order counts: (table, chain) of iptables-save; all others by themselves."""
    found: dict[tuple[str, str], list[str]] = {}
    table = ""
    for line in lines:
        if line.startswith("*"):
            table = line
        chain = line.split(maxsplit=2)[1] if table and line.startswith("-A ") else line
        found.setdefault((table, chain), []).append(line)
    return found


def one_sided(ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """(line, side) of each line that only one side has in its place; for a whole table its first line."""
    mine, other = sections(ours), sections(theirs)
    for place in {**mine, **other}:
        for side, here, there in ((OURS, mine, other), (THEIRS, other, mine)):
            if _stands_for_its_table(place) or place[0] in _tables_of(there):
                yield from ((line, side) for line in here.get(place, ()) if line not in there.get(place, ()))


def _stands_for_its_table(place: tuple[str, str]) -> bool:
    return place[0] in {"", place[1]}


def _tables_of(found: dict[tuple[str, str], list[str]]) -> set[str]:
    return {table for table, _ in found}
