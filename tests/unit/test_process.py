"""A restart in place, seen from outside: the same process, without what it held but what is handed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ipvsproxy.process import take_over

SCRIPT = """
import os, signal, sys
from ipvsproxy.process import accept_signals, hold_signals, restart, take_over

print(os.getpid(), flush=True)
number = int(sys.argv[2])
if not os.path.exists(sys.argv[1]):
    os.close(os.open(sys.argv[1], os.O_CREAT))
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)  # as libraries in C leave theirs
    os.environ["HELD"] = str(held)
    hold_signals()
    os.kill(os.getpid(), number)  # comes while the process restarts
    restart(b"a text\\0" * 100_000)
heard = []
signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
accept_signals()
files = set(os.listdir("/proc/self/fd"))
text = take_over()
print(text == b"a text\\0" * 100_000, take_over(), len(files - set(os.listdir("/proc/self/fd"))))
print(os.path.exists(f"/proc/self/fd/{os.environ['HELD']}"), *heard, *sys.argv[3:])
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_restart_runs_the_same_command_line_in_the_same_process_and_loses_no_signal(number, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "been here"), str(int(number)), "--flag", "a value"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    first, second, handed, rest = done.stdout.splitlines()
    assert first == second
    assert handed == "True None 1"  # the whole text, once, and its file is closed
    assert rest == f"False {number.name} --flag a value"


@pytest.mark.parametrize("text", ["", "3", "1:3:5", "a:b", f"{2**22 + 1}:0"])
def test_what_another_process_has_left_in_the_environment_is_nothing_handed_over(text, monkeypatch):
    monkeypatch.setenv("IPVSPROXY_HANDED_OVER", text)
    assert take_over() is None
    assert "IPVSPROXY_HANDED_OVER" not in os.environ
