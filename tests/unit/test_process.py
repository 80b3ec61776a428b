"""A restart in place, seen from outside: the same process, without what it held."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, sys
from ipvsproxy.process import accept_reload_signal, restart

print(os.getpid(), flush=True)
if not os.path.exists(sys.argv[1]):
    os.close(os.open(sys.argv[1], os.O_CREAT))
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)  # as libraries in C leave theirs
    os.environ["HELD"] = str(held)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    os.kill(os.getpid(), signal.SIGHUP)  # comes while the process restarts
    restart()
heard = []
signal.signal(signal.SIGHUP, lambda *_: heard.append("SIGHUP"))
accept_reload_signal()
print(os.path.exists(f"/proc/self/fd/{os.environ['HELD']}"), *heard, *sys.argv[2:])
"""


def test_a_restart_runs_the_same_command_line_in_the_same_process_and_loses_no_signal(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "been here"), "--flag", "a value"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    first, second, rest = done.stdout.splitlines()
    assert first == second
    assert rest == "False SIGHUP --flag a value"
