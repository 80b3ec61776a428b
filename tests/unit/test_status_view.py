"""`ipvsproxy status` with options of its own, from the words to what is printed."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import yaml

from ipvsproxy import status_command, status_view
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.observed import IpvsTable
from ipvsproxy.status.source import TableSource
from tests.unit.status.fixture_cases import around
from tests.unit.status.test_rows import TABLE
from tests.unit.status.test_table import PLAIN
from tests.unit.test_dry_run import GOOD, folder_of

KERNEL = IpvsTable(0x010201, 4096, TABLE)


class EnoughError(Exception):
    """A test has seen what it wanted to."""


def around_table(table: IpvsTable) -> status_command.Surroundings:
    return status_command.Surroundings(open_kernel=lambda: nullcontext(TableSource(table)))


def shown(capsys, *words: str) -> str:
    assert status_command.run(words, around_table(KERNEL)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_table_is_the_default(capsys):
    assert shown(capsys, "--address", "0.0.0.0/0") == PLAIN


@pytest.mark.parametrize("words", [["-o", "json"], ["-o", "yaml"], ["-Ln", "--output=json"]])
def test_programs_get_a_document(capsys, words):
    document = yaml.safe_load(shown(capsys, *words))
    assert (document["kind"], len(document["virtualServers"])) == ("IpvsStatus", len(TABLE))


def test_k53_names_of_a_folder_stand_beside_the_servers(capsys, tmp_path):
    folder = folder_of(tmp_path, a=GOOD)
    out = shown(capsys, "--names", "--manifests", str(folder), "-N", "default")
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [
        ["TCP", "10.96.0.20:80", "default/web:http"],
        ["10.244.1.5:8080", "-", "n1"],
    ]
    assert "10.99.0.9" not in out


def test_a_saved_document_is_shown_as_the_kernel_was(capsys, tmp_path):
    saved = tmp_path / "status.json"
    saved.write_text(shown(capsys, "-o", "json"))
    assert status_command.run(["--from", str(saved), "-o", "table"], NO_KERNEL) == 0
    assert capsys.readouterr().out == PLAIN


def _refuse() -> AbstractContextManager[TableSource]:
    raise AssertionError("the kernel was asked")


NO_KERNEL = status_command.Surroundings(open_kernel=_refuse)


@pytest.mark.parametrize("content", [b"{}", b"\xff", b'{"kind": "List"}'], ids=repr)
def test_a_file_that_is_something_else_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(IpvsproxyError, match="cannot understand"):
        status_command.run(["--from", str(tmp_path / "file"), "-o", "json"], NO_KERNEL)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(IpvsproxyError, match="cannot be read: ENOENT"):
        status_command.run(["--from", str(tmp_path / "file"), "-o", "json"], NO_KERNEL)


def test_a_usage_error_is_one_line_and_ipvsadms_code(capsys):
    assert status_command.run(["-o", "xml"], NO_KERNEL) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "question,code,said",
    [
        pytest.param("GET_FAMILY", 2, "Can't initialize ipvs: Memory allocation problem\n", id="at the start"),
        pytest.param("GET_SERVICE", 1, "Memory allocation problem\n", id="while listing"),
    ],
)
def test_what_fails_in_the_kernel_is_told_in_ipvsadms_words(capsys, question, code, said):
    failing = around({"services": [], "errors": {question: errno.ENOMEM}})
    assert status_command.run(["-o", "json"], failing) == code
    assert capsys.readouterr().err.startswith(said)


def test_rules_that_ipvsadm_saved_are_shown_too(capsys, tmp_path):
    (tmp_path / "rules").write_text("-A -t 10.96.0.20:80 -s rr\n-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 0\n")
    assert status_command.run(["--from", str(tmp_path / "rules"), "--draining"], NO_KERNEL) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["10.244.1.5:8080", "draining", "Masq", "0", "0", "0"]


def test_ipvsadms_own_arguments_read_a_saved_document(capsys, tmp_path):
    (tmp_path / "status.json").write_text(shown(capsys, "-o", "json"))
    assert status_command.run(["-Sn", "--from", str(tmp_path / "status.json")], NO_KERNEL) == 0
    assert capsys.readouterr().out.splitlines()[0] == "-A -t 10.96.0.20:80 -s rr"


def test_the_help_is_given_without_asking_anybody(capsys):
    assert status_command.run(["--names", "--help"], NO_KERNEL) == 0
    assert capsys.readouterr().out.startswith("usage: ipvsproxy status")


def kernel_alone(path: str, show: status_view.Show) -> int:
    assert not path
    return show(TableSource(KERNEL))


def watched(words: list[str], times: int) -> list[float]:
    """For how long it waited between `times` looks."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == times:
            raise EnoughError

    with pytest.raises(EnoughError):
        status_view.run(words, kernel_alone, wait)
    return waits


def test_watch_shows_it_again_and_again(capsys):
    assert watched(["--watch=5"], 3) == [5.0, 5.0, 5.0]
    assert capsys.readouterr().out == f"{PLAIN}\n" * 3


def test_a_watched_document_is_one_line_each_time(capsys):
    watched(["--watch", "-o", "json"], 2)
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == json.loads(second)


def test_a_watched_yaml_document_begins_with_its_mark(capsys):
    watched(["--watch", "-o", "yaml"], 2)
    assert len([*yaml.safe_load_all(capsys.readouterr().out)]) == 2


def test_a_folder_is_read_again_each_time(capsys, tmp_path):
    folder = folder_of(tmp_path, a=GOOD)
    looks = []

    def wait(_: float) -> None:
        looks.append(capsys.readouterr().out)
        if len(looks) == 2:
            raise EnoughError
        (folder / "a.yaml").unlink()

    with pytest.raises(EnoughError):
        status_view.run(["--names", "--manifests", str(folder), "--watch"], kernel_alone, wait)
    assert ["default/web:http" in look for look in looks] == [True, False]


def test_who_watches_keeps_the_names_while_their_source_fails_and_is_told(capsys, tmp_path):
    folder = folder_of(tmp_path / "objects", a=GOOD)
    looks = []

    def wait(_: float) -> None:
        looks.append(capsys.readouterr())
        if len(looks) == 3:
            raise EnoughError
        folder.rename(tmp_path / "away") if len(looks) == 1 else (tmp_path / "away").rename(folder)

    with pytest.raises(EnoughError):
        status_view.run(["--names", "--manifests", str(folder), "--watch"], kernel_alone, wait)
    assert ["default/web:http" in look.out for look in looks] == [True, True, True]
    assert [look.err.startswith("names as they were: ") for look in looks] == [False, True, False]


def test_names_that_never_were_are_an_error_also_for_who_watches(tmp_path):
    with pytest.raises(IpvsproxyError):
        status_view.run(["--names", "--manifests", str(tmp_path / "none"), "--watch"], kernel_alone)


@pytest.mark.parametrize(
    "environ,wanted",
    [
        pytest.param({"TERM": "xterm"}, True, id="a terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, id="an empty NO_COLOR says nothing"),
        pytest.param({"TERM": "dumb"}, False, id="a terminal without"),
    ],
)
def test_colours_are_wanted_with(environ, wanted):
    assert status_view.wants_colour(environ) is wanted


def saved_status(folder: Path, capsys) -> Path:
    path = folder / "status.json"
    path.write_text(shown(capsys, "-o", "json"))
    return path


def run_on_terminal(words: list[str], **environ: str) -> str:
    """What a terminal gets to see."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "ipvsproxy", "status", *words]
    with subprocess.Popen(command, stdout=follower, env={**os.environ, "TERM": "xterm", **environ}) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # EIO: everybody has closed the other end
                break
            if not piece:
                break
            seen += piece
    os.close(leader)
    assert process.returncode == 0
    return seen.decode()


def test_a_terminal_gets_colours_and_a_pipe_does_not(capsys, tmp_path):
    words = ["--from", str(saved_status(tmp_path, capsys)), "--draining"]
    assert "\x1b[33m" in run_on_terminal(words)
    assert "\x1b" not in run_on_terminal(words, NO_COLOR="1")
    piped = subprocess.run([sys.executable, "-m", "ipvsproxy", "status", *words], capture_output=True, check=True)
    assert b"\x1b" not in piped.stdout


def test_a_reader_that_goes_away_is_no_error(capsys, tmp_path):
    command = [
        sys.executable,
        "-m",
        "ipvsproxy",
        "status",
        "--from",
        str(saved_status(tmp_path, capsys)),
        "--watch=0.001",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"SERVER")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
