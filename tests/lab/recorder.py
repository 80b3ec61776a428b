"""Records what the real kube-proxy leaves in this kernel: a program for the VM, told what to do by files.

    python -m tests.lab.recorder KUBE_PROXY FOLDER

For each folder FOLDER/0, FOLDER/1, … that gets a file `flags` it empties the kernel, starts kube-proxy with those
flags, writes a file `serving`, waits for a file `settled`, and goes on until two recordings in a row are equal, which
it writes into that folder, in files named as those of tests/data/kube-proxy, at last `done`. FOLDER/stop ends it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

LOOK_AGAIN_S = 0.2
LIMIT_S = 240.0
SYNCS = re.compile(r'^kubeproxy_sync_proxy_rules_duration_seconds_count\{ip_family="(\w+)"\} (\d+)', re.MULTILINE)
EMPTY_TABLES = "".join(f"*{table}\nCOMMIT\n" for table in ("filter", "nat", "mangle"))
TOOLS = {
    "ipvsadm.txt": ("ipvsadm", "-S", "-n"),
    "ipset.txt": ("ipset", "save"),
    "iptables.txt": ("iptables-save",),
    "ip6tables.txt": ("ip6tables-save",),
}


class RecorderError(Exception):
    """kube-proxy did not do what it should have."""


def run(*argv: str, given: str | None = None) -> str:
    """What a program prints. Raises subprocess.CalledProcessError."""
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=True, timeout=120).stdout


def empty_kernel() -> None:
    """Nothing is left of an earlier proxy."""
    run("modprobe", "-a", "ip_vs", "dummy")
    run("ipvsadm", "-C")
    for restore in ("iptables-restore", "ip6tables-restore"):
        run(restore, given=EMPTY_TABLES)
    run("ipset", "destroy")
    subprocess.run(["ip", "link", "delete", "kube-ipvs0"], capture_output=True, check=False)  # not there at first


def recording() -> dict[str, list[str]]:
    """What the tools show now, file by file."""
    found = {name: _lines(run(*argv)) for name, argv in TOOLS.items()}
    shown = run("ip", "-oneline", "address", "show", "dev", "kube-ipvs0").splitlines()
    return found | {"addresses.txt": [line.split()[3] for line in shown if "scope link" not in line]}


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if not line.startswith("#")]


def syncs() -> Mapping[str, int]:
    """How many syncs each family has had."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:10249/metrics", timeout=10) as answer:
            return {family: int(count) for family, count in SYNCS.findall(answer.read().decode())}
    except (urllib.error.URLError, TimeoutError):
        return {}


def wait_for_syncs(proxy: subprocess.Popen[bytes], count: int) -> int:
    """Back when each family has had so many; how many at least. Raises RecorderError."""
    deadline = time.monotonic() + LIMIT_S
    while min((done := syncs() or {"": 0}).values()) < count or len(done) < 2:
        if proxy.poll() is not None or time.monotonic() > deadline:
            raise RecorderError(f"kube-proxy has had {done} syncs, not {count}; it ended with {proxy.poll()}")
        time.sleep(LOOK_AGAIN_S)
    return min(done.values())


def record(program: str, folder: Path) -> None:
    """One scenario. Raises RecorderError."""
    empty_kernel()
    (folder / "node.txt").write_text(run("ip", "-br", "addr"))
    with (folder / "log").open("wb") as log:
        flags = (folder / "flags").read_text().split()
        proxy = subprocess.Popen([program, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for_syncs(proxy, 1)
            (folder / "serving").touch()
            while not (folder / "settled").exists():
                time.sleep(LOOK_AGAIN_S)
            had = wait_for_syncs(proxy, 1) + 1
            last: dict[str, list[str]] = {}
            now = recording()
            while now != last:
                had = wait_for_syncs(proxy, had + 1)
                last, now = now, recording()
        finally:
            proxy.kill()
            proxy.wait()
    for name, lines in now.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "done").touch()


def main(argv: list[str]) -> int:
    """Record until told to stop."""
    program, root = argv[0], Path(argv[1])
    number = 0
    while not (root / "stop").exists():
        folder = root / str(number)
        if (folder / "flags").exists():
            record(program, folder)
            number += 1
        time.sleep(LOOK_AGAIN_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
