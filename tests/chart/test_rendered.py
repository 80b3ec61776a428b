"""What the chart renders: as the goldens say, alike with both Helms, and accepted by every Kubernetes it is for."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.chart.cases import CASES, FOLDER, arguments, golden, objects, render, without_files
from tests.lab import helm

HELMS = get_args(helm.Helm)
MINORS = range(helm.OLDEST, helm.NEWEST + 1)


def test_there_are_six_sets_of_values():
    assert len(CASES) == 6


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("program", HELMS)
def test_a_set_of_values_renders_what_is_expected(case: str, program: helm.Helm):
    assert objects(without_files(render(case, program))) == objects(golden(case))


@pytest.mark.parametrize("case", CASES)
def test_a_golden_is_what_helm_4_writes_to_the_letter(case: str):
    assert without_files(render(case)) == golden(case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("program", HELMS)
def test_helm_finds_nothing_to_complain_of(case: str, program: helm.Helm):
    options = [option for option in arguments(case) if not option.startswith("--api-versions")]
    lacks_operator = [f"--set={name}.enabled=false" for name in ("podMonitor", "prometheusRule")]
    answer = helm.run(program, "lint", "--strict", str(helm.CHART), *options, *lacks_operator)
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.parametrize("program", HELMS)
def test_helm_lints_the_chart_without_any_values(program: helm.Helm):
    assert helm.run(program, "lint", "--strict", str(helm.CHART)).code == 0


def _known_objects(folder: Path) -> list[Path]:
    """All that is rendered but the Prometheus Operator's kinds, of which Kubernetes has no schema; a file each."""
    texts = [part for case in CASES for part in (FOLDER / case / "rendered.yaml").read_text().split("---\n") if part]
    paths = []
    for number, text in enumerate(text for text in texts if "monitoring.coreos.com/v1" not in text):
        paths.append(folder / f"{number}.yaml")
        paths[-1].write_text(text)
    return paths


@pytest.mark.parametrize("minor", MINORS)
def test_every_object_is_one_of_this_kubernetes(minor: int, tmp_path: Path):
    answer = helm.validate(minor, *_known_objects(tmp_path))
    assert answer.code == 0, answer.out + answer.err


def test_a_misspelt_field_would_be_found(tmp_path: Path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        golden("defaults").partition("kind: DaemonSet")[0].rpartition("---\n")[2] + "kind: DaemonSet\nspek: {}\n"
    )
    assert helm.validate(helm.NEWEST, wrong).code != 0


def test_files_are_put_in_to_the_letter():
    found = golden("monitoring")
    assert {f"<{path.name}>" for path in (helm.CHART / "files").iterdir() if f"<{path.name}>" in found} == {
        "<alerts.yaml>",
        "<dashboard.json>",
        "<wait_for_nodes.py>",
    }
