"""What the README says is true: its commands, outputs, flags, exit codes and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipvsproxy.config.command_line import EXIT_CODE_MEANINGS, Plan, parse_command_line
from ipvsproxy.config.flags import FLAGS
from ipvsproxy.top.options import make_parser
from tests.tables.screens import SCREENS, page_with

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "docs/differences.md", "docs/data-path.md", "docs/snat.md")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_its_first_block_is_the_two_commands_to_see_it_work_and_to_test_it():
    first = re.search(r"```sh\n(.*?)```", README, re.DOTALL)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]


def test_ci_runs_the_test_command_that_it_shows():
    assert re.search(r"\bmake test\b(?!-)", (ROOT / ".ci" / "run").read_text())


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_make_target_that_a_page_names_exists(page):
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= targets()


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_flag_that_a_page_names_exists(page):
    text = (ROOT / page).read_text().replace("--x", "").replace("--flag", "")
    ours = set(re.findall(r"`(?:ipvsproxy )?(--[a-z-]+)", text))
    tops = {name for action in make_parser()._actions for name in action.option_strings}
    assert ours <= {flag.name for flag in FLAGS} | tops


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in PAGES])
def test_every_link_leads_to_a_file(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (folder / link).is_file()] == []


def test_the_plan_that_it_shows_is_what_the_program_prints():
    block = re.search(r"```console\n\$ \.venv/bin/ipvsproxy (plan [^\n]*)\n(.*?)```", README, re.DOTALL)
    assert block is not None
    command = parse_command_line(block[1].split())
    assert isinstance(command, Plan)
    assert block[2] == (ROOT / command.config.manifests / "ipvsadm.txt").read_text()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("command", SCREENS)
def test_a_screen_is_what_the_command_shows(command):
    """`make golden-update` writes it."""
    assert page_with(README, command, SCREENS[command]()) == README


def test_a_page_without_a_place_for_a_screen_is_an_error():
    with pytest.raises(ValueError, match="0 places"):
        page_with("# No place\n", "ipvsproxy top", "")


def test_its_exit_codes_are_the_programs():
    rows = dict(re.findall(r"^\| ([0-9]+) \| (.*) \|$", README, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in EXIT_CODE_MEANINGS.items()}
