"""What the LVS and netfilter tools cost for the same state: `ipvsadm -R`, `ip -batch`, `ipset restore`.

Their text is what `ipvsproxy plan` prints for the same cluster; sets and the device are made before, as they stand at
the start of our own sync. The kernel must be clean.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TOOLS = {"ipvsadm": ["ipvsadm", "-R"], "ip": ["ip", "-batch", "-"], "ipset": ["ipset", "restore"]}


def write_input(folder: Path, planned: dict[str, str]) -> None:
    """The text that each tool reads, from what `ipvsproxy plan -o` prints in these formats."""
    members = planned["ipset"].splitlines()
    sets = [line for line in members if line.startswith("create")]
    entries = [line for line in members if line.startswith("add")]
    addresses = (f"addr add {address} dev kube-ipvs0" for address in planned["addresses"].splitlines())
    for name, lines in (
        ("sets", sets),
        ("ipset", entries),
        ("ip", addresses),
        ("ipvsadm", planned["ipvsadm"].splitlines()),
    ):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def measure(folder: Path) -> dict[str, int]:
    """CPU time of each tool, user and kernel; the tool's start is a part of it."""
    subprocess.run(["ip", "link", "add", "kube-ipvs0", "type", "dummy"], check=True)
    subprocess.run(["modprobe", "-a", "ip_vs", "ip_vs_rr"], check=True)
    with (folder / "sets.txt").open("rb") as text:
        subprocess.run(["ipset", "restore"], stdin=text, check=True)
    figures: dict[str, int] = {}
    for name, command in TOOLS.items():
        with (folder / f"{name}.txt").open("rb") as text:
            user_s, kernel_s = _cpu_s(command, text.fileno())
        figures[f"tools.{name}.user_insn"] = round(user_s * 1e9)
        figures[f"tools.{name}.kernel_insn"] = round(kernel_s * 1e9)
    return figures


def _cpu_s(command: list[str], stdin: int) -> tuple[float, float]:
    with subprocess.Popen(command, stdin=stdin) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime, used.ru_stime
