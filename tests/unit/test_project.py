"""The project's own files: one version, workflows that run what the Makefile has, forms that GitHub takes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import ipvsproxy

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").iterdir()) if path.name != "config.yml"]
WRITTEN_BY_GOLDEN_UPDATE = {"charts/ipvsproxy/Chart.yaml", "ipvsproxy/share/man/ipvsproxy.8"}


def read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found = read(path)["jobs"]
    assert isinstance(found, dict)
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def test_the_version_stands_in_one_place_by_hand():
    folders = (ROOT / name for name in ("ipvsproxy", "charts", "docs", ".github", ".ci"))
    inside = (path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts)
    paths = [path for path in (*ROOT.iterdir(), *inside) if path.is_file() and "requirements" not in path.name]
    number = re.compile(rf"(?<![\d.]){re.escape(ipvsproxy.__version__)}(?![\d.]*\d)")
    holds = {str(path.relative_to(ROOT)) for path in paths if number.search(path.read_text(errors="replace"))}
    assert holds == {"ipvsproxy/__init__.py"} | WRITTEN_BY_GOLDEN_UPDATE


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit_and_names_its_release(path: Path):
    lines = re.findall(r"uses: (.*)", path.read_text())
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_an_action_has_one_release_in_all_workflows():
    found = {tuple(line.split("@")) for path in WORKFLOWS for line in re.findall(r"uses: (\S+)", path.read_text())}
    assert len(found) == len(dict(found))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_nothing_and_each_job_what_it_says(path: Path):
    assert read(path)["permissions"] == {}
    for job in jobs(path).values():
        assert job["timeout-minutes"] <= 150
        writes = {name for name, right in job["permissions"].items() if right == "write"}
        assert not writes or "environment" in job, "somebody must approve"


def test_checks_run_on_every_python_that_the_package_takes():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = jobs(GITHUB / "workflows" / "check.yml")["check"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == oldest
    assert versions == [f"3.{minor}" for minor in range(11, 15)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_files_and_programs_that_there_are(path: Path):
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(step["run"] for step in steps(path) if "run" in step)
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= targets
    assert [name for name in re.findall(r"\b(?:tests|charts)/[\w./]+", commands) if not (ROOT / name).exists()] == []
    assert [name for name in re.findall(r"(?<!\S)\.ci/\w+", commands) if not (ROOT / name).is_file()] == []


def test_zizmor_finds_nothing_in_them():
    done = subprocess.run(
        [Path(sys.executable).parent / "zizmor", "--offline", "--pedantic", "--quiet", GITHUB],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_zizmor_would_find_an_action_that_is_not_pinned(tmp_path: Path):
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    text = re.sub(r"@[0-9a-f]{40} # v", "@v", WORKFLOWS[0].read_text())
    (folder / "check.yml").write_text(text)
    words = [Path(sys.executable).parent / "zizmor", "--offline", "--quiet", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_has_what_github_asks_of_it(path: Path):
    form = read(path)
    assert form.keys() >= {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names)
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown"}
        assert field["attributes"].keys() >= ({"value"} if field["type"] == "markdown" else {"label"})
        assert field.keys() <= {"type", "id", "attributes", "validations"}


def test_files_that_forms_name_exist():
    text = "\n".join(path.read_text() for path in (*FORMS, GITHUB / "pull_request_template.md"))
    named = re.findall(r"\b(?:docs/)?[A-Za-z_-]+\.md\b", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
