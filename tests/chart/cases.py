"""The sets of values that the chart is rendered with: a folder each, with `values.yaml` and what it makes.

python tests/chart/cases.py      write rendered.yaml anew: `make golden-update` calls it; review the diff
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path

from tests.lab import helm, programs
from tests.lab.machine import LabError

FOLDER = Path(__file__).with_name("cases")
CASES = sorted(path.name for path in FOLDER.iterdir())
_OPERATOR = tuple(f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule"))


def arguments(case: str) -> tuple[str, ...]:
    """What Helm is told: the case's values, and a cluster with the Prometheus Operator."""
    return (f"--values={FOLDER / case / 'values.yaml'}", f"--kube-version=1.{helm.NEWEST}", *_OPERATOR)


def render(case: str, program: helm.Helm = "helm4") -> str:
    """The objects as Helm writes them, without the blank lines that its versions differ in. Raises LabError."""
    answer = helm.template(program, *arguments(case))
    if answer.code:
        raise LabError(answer.err)
    return re.sub(r"\n+(?=---\n)", "\n", answer.out).strip() + "\n"


def without_files(text: str) -> str:
    """The same with only the names of the chart's files/ where their contents stand, to the letter."""
    for path in sorted((helm.CHART / "files").iterdir()):
        for indent in ("  ", "    "):
            text = text.replace(
                textwrap.indent(path.read_text().strip(), indent, lambda _: True), f"{indent}<{path.name}>"
            )
    return text


def objects(text: str) -> list[dict[str, Any]]:
    """The objects in it."""
    return [item for item in yaml.safe_load_all(text) if item]


def golden(case: str) -> str:
    """What is expected."""
    return (FOLDER / case / "rendered.yaml").read_text()


def main() -> None:
    """Write all of them."""
    helm.make()
    for case in CASES:
        (FOLDER / case / "rendered.yaml").write_text(without_files(render(case)))


if __name__ == "__main__":
    with programs.complaining():
        main()
