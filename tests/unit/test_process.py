"""A restart in place, seen from outside: the same process, without what it held."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from ipvsproxy.process import accept_signals, hold_signals, restart

print(os.getpid(), flush=True)
number = int(sys.argv[2])
if not os.path.exists(sys.argv[1]):
    os.close(os.open(sys.argv[1], os.O_CREAT))
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)  # as libraries in C leave theirs
    os.environ["HELD"] = str(held)
    hold_signals()
    os.kill(os.getpid(), number)  # comes while the process restarts
    restart()
heard = []
signal.signal(number, lambda number, _: heard.append(signal.Signals(number).name))
accept_signals()
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
    first, second, rest = done.stdout.splitlines()
    assert first == second
    assert rest == f"False {number.name} --flag a value"
