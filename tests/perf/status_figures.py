"""What listing a large table costs: memory of ours, processor time of ours and of the real ipvsadm on the same table.

The programs run as they are; a preloaded library answers for the kernel (tests/data/ipvsadm_oracle).
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.data.ipvsadm_oracle.oracle import Oracle

OURS = (sys.executable, "-m", "ipvsproxy", "status")
THEIRS = ("ipvsadm",)


class Cost(NamedTuple):
    """Of one run: processor seconds of the program itself, in user mode and in all."""

    user_s: float
    all_s: float
    output: bytes


def large_state(services: int = 10_000, servers: int = 10) -> dict[str, Any]:
    """As a cluster has it: services of one range, each with its own endpoints."""
    return {
        "services": [
            {
                "af": 2,
                "protocol": 6,
                "addr": f"10.96.{number >> 8}.{number & 255}",
                "port": 80,
                "dests": [
                    {"af": 2, "addr": f"10.{100 + at}.{number >> 8}.{number & 255}", "port": 8080, "active": at}
                    for at in range(servers)
                ],
            }
            for number in range(services)
        ]
    }


def cost(oracle: Oracle, state: dict[str, Any], program: Sequence[str], words: Sequence[str]) -> Cost:
    """What the program uses to list the state."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = oracle.run(state, words, program=program)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, b"")
    user = after.ru_utime - before.ru_utime
    return Cost(user, user + after.ru_stime - before.ru_stime, done.stdout)


def main(arguments: Sequence[str]) -> None:
    """Print the costs of the command lines, one an argument."""
    state = large_state()
    with tempfile.TemporaryDirectory() as folder:
        oracle = Oracle(Path(folder))
        for words in arguments or ("-Ln", "-Ln --stats", "-Sn"):
            ours, theirs = (cost(oracle, state, program, words.split()) for program in (OURS, THEIRS))
            same = "same bytes" if ours.output == theirs.output else "OTHER BYTES"
            print(  # noqa: T201  # a command-line program
                f"{words:<14} ours {ours.user_s:.2f} {ours.all_s:.2f}, ipvsadm {theirs.user_s:.2f} {theirs.all_s:.2f}, "
                f"ratio {ours.user_s / theirs.user_s:.2f} {ours.all_s / theirs.all_s:.2f}; {same}"
            )


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main(sys.argv[1:])
