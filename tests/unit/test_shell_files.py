"""Completions and the manual: as the parser says, and as a real shell takes them. `make golden-update` writes them."""

from __future__ import annotations

import subprocess
import tomllib

import pytest

from ipvsproxy.config.flags import FLAGS
from ipvsproxy.status import own_options
from ipvsproxy.top import options as top
from tests.tables import shell_files

BASH = shell_files.FOLDER / "bash" / shell_files.COMPLETIONS["bash"]


@pytest.mark.parametrize("path", shell_files.files(), ids=lambda path: path.name)
def test_a_file_says_what_the_parser_says(path):
    assert path.read_text() == shell_files.files()[path]


@pytest.mark.parametrize("path", shell_files.files(), ids=lambda path: path.name)
def test_a_file_is_part_of_what_is_installed(path):
    settings = tomllib.loads((shell_files.ROOT / "pyproject.toml").read_text())
    installed = settings["tool"]["setuptools"]["data-files"].values()
    assert str(path.relative_to(shell_files.ROOT)) in {name for names in installed for name in names}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_is_in_the_manual(flag):
    assert rf"\fB{shell_files._escaped(flag.name)}\fR" in shell_files.manual()


@pytest.mark.parametrize("parser", [own_options.make_parser(), top.make_parser()], ids=["status", "top"])
def test_every_option_of_a_command_is_in_the_manual(parser):
    manual = shell_files.manual()
    names = [name for action in parser._actions for name in action.option_strings]
    assert [name for name in names if rf"\fB{shell_files._escaped(name)}\fR" not in manual] == []


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_ipvsproxy; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", script, str(BASH), "ipvsproxy", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "words,offered",
    [
        pytest.param(["--ipvs-st"], ["--ipvs-strict-arp"], id="a flag"),
        pytest.param(["--cleanup", "--master"], ["--master"], id="a flag behind a switch, which takes no word"),
        pytest.param(["--iptables-backend", "l"], ["legacy"], id="a value"),
        pytest.param(["pl"], ["plan"], id="a command"),
        pytest.param(["plan", "--from"], ["--from-cluster"], id="a flag of a command"),
        pytest.param(["status", "--na"], ["--names", "--namespace"], id="a flag of status"),
        pytest.param(["status", "--names", "-o", "js"], ["json"], id="a format of status"),
        pytest.param(["diff", "-o", "j"], ["json"], id="a format of diff"),
        pytest.param(["plan", "-o", "ip6"], ["ip6tables"], id="a value behind a short flag"),
    ],
)
def test_bash_offers(words, offered):
    assert completed(*words) == offered
