"""Adds up the results of all test stages and judges them; the closing line is what people and CI read.

    python tests/lab/summary.py STAGE=JUNIT.XML…

A stage that wrote no results or ran no test is as bad as one that failed: it is how tests get lost unnoticed.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many tests ended how; a test that could not run (an error) is failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    unsteady: int = 0
    """Those of the passed that failed first, and passed when they ran again."""

    def __add__(self, other: "Count") -> "Count":
        return Count(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        unsteady = f", {self.unsteady} of the passed only when run again" if self.unsteady else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}{unsteady}"


AGAIN = "again.xml"
"""Beside a stage's results lie those of the tests that failed first and ran again, if any did."""


def outcomes(results: Path) -> dict[str, str] | None:
    """The outcome of each test, by its id, that a JUnit file tells; None if there is none, or half of one."""
    try:
        tree = ET.parse(results)  # noqa: S314  # pytest's own file
    except (FileNotFoundError, ET.ParseError):
        return None
    found = {}
    for case in tree.iter("testcase"):
        tags = {outcome.tag for outcome in case}
        module, name = case.get("classname", ""), case.get("name", "")
        found[f"{module.replace('.', '/')}.py::{name}"] = (
            "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        )
    return found


def read(results: Path) -> Count | None:
    """What a JUnit file, and the one of tests that ran again, tell; None if there is none, or half of one."""
    first = outcomes(results)
    if first is None:
        return None
    second = outcomes(results.with_name(AGAIN)) or {}
    last = [second.get(test, outcome) if outcome == "failed" else outcome for test, outcome in first.items()]
    return Count(
        **{outcome: last.count(outcome) for outcome in ("passed", "failed", "skipped")},
        unsteady=sum(outcome == "failed" and second.get(test) == "passed" for test, outcome in first.items()),
    )


def failed(results: Path) -> list[str]:
    """The ids of the tests that failed."""
    return [test for test, outcome in (outcomes(results) or {}).items() if outcome == "failed"]


def problems(counts: Mapping[str, Count | None], exit_codes: Mapping[str, int]) -> list[str]:
    """Why the stages did not pass as a whole, a sentence each; empty if they did."""
    found = [] if counts else ["no stage ran. The test folders are missing."]
    for stage, count in counts.items():
        code = exit_codes.get(stage, 0)
        if count is None:
            found.append(f"stage {stage} wrote no results (exit code {code}). Its own output above says why.")
        elif count.failed:
            found.append(f"stage {stage} failed: {count}.")
        elif not count.passed:
            found.append(f"stage {stage} ran no test ({count}). Check its folders and markers.")
        elif code:
            found.append(
                f"stage {stage} ended with exit code {code} although no test failed. Its output above says why."
            )
    return found


def report(results: Mapping[str, Path], exit_codes: Mapping[str, int]) -> int:
    """Print a line per stage, what is wrong, and the closing line; 0 if all is well, else 1."""
    counts = {stage: read(path) for stage, path in results.items()}
    wrong = problems(counts, exit_codes)
    for stage, count in counts.items():
        print(f"stage {stage}: {count or 'no results'}")
    for sentence in wrong:
        print(f"error: {sentence}")
    print(f"total: {sum((count for count in counts.values() if count), Count())}", flush=True)
    return 1 if wrong else 0


def main(argv: Sequence[str]) -> int:
    """Judge the files named on the command line."""
    pairs = [argument.partition("=") for argument in argv]
    return report({stage: Path(path) for stage, _, path in pairs}, {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
