"""What the listing of a state is told by: the kernel that fails, files, and the name that the program is called by.

Every case of the real ipvsadm itself is in tests/unit/status/test_fixtures.py.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ipvsproxy import cli, status_command
from ipvsproxy.errors import IpvsproxyError
from tests.unit.status.fixture_cases import DATA, around

SERVICE = {
    "af": 2, "protocol": 6, "addr": "10.96.0.1", "port": 443, "dests": [{"af": 2, "addr": "192.0.2.1", "port": 6443}]
}  # fmt: skip
STATE = {"services": [SERVICE]}
TITLES = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
"""
LIST = f"{TITLES}TCP  10.96.0.1:443 rr\n  -> 192.0.2.1:6443               Masq    1      0          0         \n"
NO_IPVS = "Are you sure that IP Virtual Server is built in the kernel or as module?\n"


def failing(**errors):
    """The surroundings of a kernel that answers these questions with these errnos."""
    return around({**STATE, "errors": errors})


def test_the_module_is_loaded_where_the_kernel_does_not_answer(capsys):
    state = {**STATE, "errors": {"GET_FAMILY": errno.ENOENT}}

    def load():
        state["errors"] = {}
        return True

    assert status_command.run(["-Ln"], replace(around(state), load_module=load)) == 0
    assert capsys.readouterr() == (LIST, "")


@pytest.mark.parametrize(
    "errors,older_way,reason",
    [
        pytest.param({"GET_FAMILY": errno.ENOENT}, errno.ENOPROTOOPT, "Protocol not available", id="no IPVS"),
        pytest.param(
            {"GET_FAMILY": errno.ENOENT}, errno.EPERM, "Permission denied (you must be root)", id="no IPVS, no root"
        ),
        pytest.param({"GET_INFO": errno.EPERM}, errno.EPERM, "Permission denied (you must be root)", id="no root"),
        pytest.param({"GET_INFO": errno.EACCES}, 0, os.strerror(errno.EACCES), id="only netlink is forbidden"),
    ],
)
@pytest.mark.parametrize("words", [[], ["-Sn"], ["-h"], ["--bogus"]])
def test_without_ipvs_nothing_else_is_looked_at(words, errors, older_way, reason, capsys):
    unusable = replace(failing(**errors), refusal=lambda: older_way)
    assert status_command.run(words, unusable) == 2
    assert capsys.readouterr() == ("", f"Can't initialize ipvs: {reason}\n{NO_IPVS}")


@pytest.mark.parametrize(
    "number,reason",
    [
        pytest.param(errno.ESRCH, "No such service", id="a service vanished meanwhile"),
        pytest.param(errno.ENOMEM, "Memory allocation problem", id="no memory"),
        pytest.param(errno.EIO, os.strerror(errno.EIO), id="a reason without own words"),
    ],
)
def test_a_listing_that_fails_says_the_kernels_reason_below_what_was_listed(number, reason, capsys):
    assert status_command.run(["-Ln"], failing(GET_SERVICE=number)) == 1
    assert capsys.readouterr() == (TITLES.splitlines(keepends=True)[0], f"{reason}\n")
    assert status_command.run(["-Ln"], failing(GET_DEST=number)) == 1
    assert capsys.readouterr() == (TITLES, f"{reason}\n")


@pytest.mark.parametrize("word,question", [("--timeout", "GET_CONFIG"), ("--daemon", "GET_DAEMON")])
def test_settings_that_cannot_be_read_are_exit_code_1_without_a_word(word, question, capsys):
    assert status_command.run(["-L", word], failing(**{question: errno.EIO})) == 1
    assert capsys.readouterr() == ("", "")


def test_a_service_that_was_asked_for_and_cannot_be_read_says_why(capsys):
    assert status_command.run(["-Ln", "-t", "10.96.0.1:443"], failing(GET_SERVICE=errno.ENOMEM)) == 1
    assert capsys.readouterr() == ("", "Memory allocation problem\n")


def test_connections_that_cannot_be_read_are_not_listed(tmp_path, capsys):
    path = tmp_path / "ip_vs_conn"
    assert status_command.run(["-Lnc"], around(STATE, path)) == 1
    assert capsys.readouterr() == ("", f"cannot open file {path}\n")
    path.write_text("")
    assert status_command.run(["-Lnc"], around(STATE, path)) == 1
    assert capsys.readouterr() == ("", f"unexpected input from {path}\n")


def test_a_kernel_of_other_times_is_listed_with_a_warning(capsys):
    assert status_command.run(["-v"], around({"services": [], "version": 0x10103})) == 0
    out, err = capsys.readouterr()
    assert out == "ipvsadm v1.31 2019/12/24 (compiled with popt and IPVS v1.2.1)\n"
    assert err.splitlines()[1:3] == [
        "  Kernel compiled with IPVS version 1.1.3",
        "  ipvsadm v1.31  requires minimum IPVS version 1.1.4",
    ]


def unasked():
    raise AssertionError("the kernel was asked")


@pytest.mark.parametrize("words", [["-Z"], ["-R"], ["-C", "-n"], ["--set", "1", "2", "3"], ["--start-daemon=master"]])
def test_what_writes_is_refused_by_name_whatever_it_is_called(words, capsys):
    names = {"-Z": "zero", "-R": "restore", "-C": "flush", "--set": "set", "--start-daemon=master": "start-daemon"}
    for run in (status_command.run, status_command.run_as_ipvsadm):
        assert run(words, replace(around(STATE), open_kernel=unasked)) == 2
        out, err = capsys.readouterr()
        assert (out, err.split(":")[0]) == ("", names[words[0]])


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules"
    path.write_text("-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1\n")
    return path


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_is_listed_instead_of_the_kernel(rules, place, capsys):
    words = ["-L", "-n"]
    no_kernel = replace(around(STATE), open_kernel=unasked)
    assert status_command.run([*words[:place], "--from", str(rules), *words[place:]], no_kernel) == 0
    assert status_command.run([*words[:place], f"--from={rules}", *words[place:]], no_kernel) == 0
    assert capsys.readouterr() == (LIST * 2, "")


def test_the_name_ipvsadm_has_no_option_of_ours(rules, capsys):
    assert status_command.run_as_ipvsadm(["-Ln", "--from", str(rules)], around(STATE)) == 255
    assert capsys.readouterr() == ("", "--from: unknown option\n")


@pytest.mark.parametrize("word", ["--timeout", "--daemon"])
def test_what_a_file_does_not_tell_is_refused(rules, word):
    with pytest.raises(IpvsproxyError, match="the file does not tell them"):
        status_command.run(["--from", str(rules), "-L", word], around(STATE))


def test_connections_are_the_kernels_and_no_files(rules):
    with pytest.raises(IpvsproxyError, match="the file does not tell them"):
        status_command.run(["--from", str(rules), "-L", "-c"], around(STATE, DATA / "traffic.ip_vs_conn"))


def test_a_file_that_writes_is_refused_too(rules, capsys):
    assert status_command.run(["--from", str(rules), "-C"], around(STATE)) == 2
    assert capsys.readouterr().err.startswith("flush: ")


@pytest.mark.parametrize("words", [["-Ln", "--from"], ["-Ln", "--from="], ["--from", "", "-Ln"]])
def test_from_needs_a_file(words):
    with pytest.raises(IpvsproxyError, match="it needs the name of a file"):
        status_command.run(words, around(STATE))


def test_what_a_file_says_cannot_command_the_terminal(rules, capsys):
    rules.write_text("-A --\x1b[31m")
    assert cli.run(["status", "--from", str(rules)], cli.Programs()) == 1
    assert "--?[31m: unknown option" in capsys.readouterr().err


def test_a_service_that_the_file_does_not_have_is_no_such_service(rules, capsys):
    assert status_command.run(["--from", str(rules), "-L", "-t", "10.96.0.9:1"], around(STATE)) == 1
    assert capsys.readouterr() == ("", "No such service\n")


def test_words_that_are_no_text_are_told_as_the_bytes_they_are(rules):
    command = [sys.executable, "-m", "ipvsproxy", "status", "--from", str(rules), "-L", b"lat\xfcn"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"unexpected argument lat\xfcn\n")
