"""Rules of somebody else beside ours, and how many packets a rule has met."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import groupby

from tests.lab.hosts import Namespace

PROGRAMS = {4: "iptables", 6: "ip6tables"}
VERSIONS = tuple(PROGRAMS)

_COUNTED = re.compile(r"\[(\d+):\d+\] -A (.*)")


@contextlib.contextmanager
def foreign_rules(
    host: Namespace, version: int, *rules: str, on_top: bool = False, backend: str = "legacy"
) -> Iterator[None]:
    """Have these rules ("TABLE CHAIN and what iptables takes after it") in the `with` block, behind or before all."""
    put = [rule.replace(" ", " -I " if on_top else " -A ", 1) for rule in rules]
    restore(host, version, *put, backend=backend)
    try:
        yield
    finally:
        restore(host, version, *(rule.replace(" ", " -D ", 1) for rule in rules), backend=backend)


def restore(host: Namespace, version: int, *lines: str, backend: str = "legacy") -> None:
    """Carry out lines of iptables-restore, each behind the name of its table; nothing else is touched."""
    pairs = sorted((line.split(" ", 1) for line in lines), key=lambda pair: pair[0])
    blocks = [
        "\n".join([f"*{table}", *(line for _, line in group), "COMMIT", ""])
        for table, group in groupby(pairs, key=lambda pair: pair[0])
    ]
    program = f"{PROGRAMS[version]}-{backend}-restore"
    host.run(program, "--noflush", *(["-w", "5"] if backend == "legacy" else []), given="".join(blocks))


def packets(host: Namespace, version: int, table: str, pattern: str, *, backend: str = "legacy") -> int:
    """The packets that the rules of this table have met whose text, from the chain's name on, the pattern is found in.

    There must be such a rule.
    """
    text = host.run(f"{PROGRAMS[version]}-{backend}-save", "-c", "-t", table)
    found = [int(count) for count, rule in _COUNTED.findall(text) if re.search(pattern, rule)]
    assert found, f"no rule of {table} matches {pattern!r}:\n{text}"
    return sum(found)
