from __future__ import annotations

import pytest

from ipvsproxy import __version__
from ipvsproxy.config.command_line import (
    EXIT_CODE_MEANINGS,
    ExitCode,
    Show,
    Status,
    help_text,
    make_parser,
    parse_command_line,
)
from ipvsproxy.config.flags import FLAGS, Commands, Group, flags_of


def test_version_is_one_line():
    assert parse_command_line(["--version"]) == Show(f"ipvsproxy {__version__}")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--v=1", "--help", "--nonsense"]])
def test_help_of_the_proxy(words):
    assert parse_command_line(words) == Show(help_text(Commands.PROXY))


def test_help_of_a_plan():
    assert parse_command_line(["plan", "-h"]) == Show(help_text(Commands.PLAN))


def test_the_help_leads_to_the_view_of_status_that_ipvsadms_help_does_not_name():
    assert "ipvsproxy status --names [options]" in help_text(Commands.PROXY)
    assert "status --names --help" in help_text(Commands.PROXY)


@pytest.mark.parametrize("arguments", [[], ["-L", "-n"], ["-Sn"], ["--help"], ["--nonsense"]])
def test_the_arguments_of_status_are_its_own(arguments):
    assert parse_command_line(["status", *arguments]) == Status(tuple(arguments))


@pytest.mark.parametrize("command", [Commands.PROXY, Commands.PLAN, Commands.DIFF, Commands.EXPLAIN])
def test_help_names_every_flag_under_its_group_with_its_default(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    groups = {part.partition(":\n")[0]: part for part in help_text(command).split("\n\n")}
    for flag in flags_of(command):
        assert f"{flag.name} {flag.metavar}".strip() in groups[flag.group]
    assert "(default 30s)" in groups[Group.IPVS]
    assert "(default 14)" in groups[Group.PROXY]


@pytest.mark.parametrize("columns", ["60", "100", "250"])
@pytest.mark.parametrize("command", [Commands.PROXY, Commands.PLAN, Commands.DIFF, Commands.EXPLAIN])
def test_help_fits_a_hundred_columns(command, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert max(map(len, help_text(command).splitlines())) <= 100


@pytest.mark.parametrize(
    "command,says", [(Commands.PLAN, "kube-proxy's flags"), (Commands.DIFF, "operation"), (Commands.EXPLAIN, "reason")]
)
def test_help_begins_with_what_the_command_is_for(command, says):
    assert says in help_text(command).partition("Proxy:")[0]


def test_help_tells_the_meaning_of_every_exit_code():
    lines = help_text(Commands.PROXY).splitlines()
    assert set(EXIT_CODE_MEANINGS) == set(ExitCode)
    for code in ExitCode:
        assert any(line.split()[:1] == [str(code.value)] for line in lines), code


def test_a_parser_made_for_completion_knows_switches_without_a_value():
    given = vars(make_parser(Commands.PROXY).parse_args(["--cleanup"]))
    assert given == {"--cleanup": True}


def test_every_flag_stands_in_a_group_of_the_help():
    assert {flag.group for flag in FLAGS} == set(Group)
