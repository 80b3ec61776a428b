from __future__ import annotations

import errno
import os

import pytest

from ipvsproxy import status_command
from ipvsproxy.errors import DumpInterrupted, KernelError, Unsupported
from ipvsproxy.model.addr import parse_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import IpvsTable, ObservedRealServer, ObservedVirtualServer

SERVER = ObservedVirtualServer(
    Family.IPV4, 6, parse_addr("10.96.0.1"), 443, 0, "rr", 2, 0, b"\xff" * 4,
    real_servers=(ObservedRealServer(parse_addr("192.0.2.1"), 6443),),
)  # fmt: skip
TABLE = IpvsTable(0x010201, 4096, (SERVER,))
LIST = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.1:443 rr
  -> 192.0.2.1:6443               Masq    1      0          0         \n"""
RULES = """\
-A -t 10.96.0.1:443 -s rr
-a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1
"""


def failing(error):
    def read_table():
        raise error

    return read_table


@pytest.mark.parametrize("arguments", [[], ["-L", "-n"], ["-Ln"], ["-l", "-n"], ["-ln"], ["--list", "--numeric"]])
def test_the_table_is_listed(arguments, capsys):
    assert status_command.run(arguments, lambda: TABLE) == 0
    assert capsys.readouterr() == (LIST, "")


@pytest.mark.parametrize("arguments", [["-S", "-n"], ["-Sn"], ["--save", "--numeric"]])
def test_the_rules_are_saved(arguments, capsys):
    assert status_command.run(arguments, lambda: TABLE) == 0
    assert capsys.readouterr() == (RULES, "")


def test_rules_of_an_empty_table_are_nothing(capsys):
    assert status_command.run(["-Sn"], lambda: IpvsTable(0x010201, 4096)) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-L"], id="names instead of numbers"),
        pytest.param(["-S"], id="rules with names"),
        pytest.param(["-n", "-L"], id="ipvsadm refuses this order too"),
        pytest.param(["-L", "-n", "--stats"], id="statistics"),
        pytest.param(["-Lnc"], id="connections"),
        pytest.param(["-C"], id="a command that changes something"),
        pytest.param(["-L", "-n", ""], id="an empty word"),
    ],
)
def test_other_arguments_are_refused_without_asking_the_kernel(arguments, capsys):
    asked = failing(AssertionError("the kernel was asked"))
    assert status_command.run(arguments, asked) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "only -L -n and -S -n are" in err


@pytest.mark.parametrize("arguments", [["-h"], ["--help"]])
def test_help_is_given_without_asking_the_kernel(arguments, capsys):
    assert status_command.run(arguments, failing(AssertionError("the kernel was asked"))) == 0
    assert capsys.readouterr().out.startswith("usage: ipvsproxy status")


@pytest.mark.parametrize(
    "error,reason",
    [
        pytest.param(Unsupported("IPVS", errno.ENOENT), "Protocol not available", id="the kernel has no IPVS"),
        pytest.param(Unsupported("IPVS", errno.EPERM), "Permission denied (you must be root)", id="unprivileged"),
        pytest.param(
            KernelError("IPVS", errno.EACCES), "Permission denied (you must be root)", id="a policy forbids it"
        ),
    ],
)
def test_without_ipvs_the_answer_is_ipvsadms(error, reason, capsys):
    assert status_command.run([], failing(error)) == 2
    assert capsys.readouterr() == (
        "",
        f"Can't initialize ipvs: {reason}\nAre you sure that IP Virtual Server is built in the kernel or as module?\n",
    )


@pytest.mark.parametrize(
    "error,reason",
    [
        pytest.param(KernelError("IPVS", errno.ESRCH), "No such service", id="a service vanished meanwhile"),
        pytest.param(KernelError("IPVS", errno.ENOMEM), "Memory allocation problem", id="no memory"),
        pytest.param(DumpInterrupted("IPVS", errno.EINTR), os.strerror(errno.EINTR), id="a reason without own words"),
    ],
)
def test_a_listing_that_fails_says_the_kernels_reason(error, reason, capsys):
    assert status_command.run([], failing(error)) == 1
    assert capsys.readouterr() == ("", f"{reason}\n")
