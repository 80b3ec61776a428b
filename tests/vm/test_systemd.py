"""What the pages say to type to systemd, typed to a real one: with our unit as docs/install.md has it, and with
services that have the names of k3s and rke2 and do nothing.

It is the first process of a namespace, which has no other units than these.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documented import ROOT, documented
from tests.explained import NODE, SHOP
from tests.lab.hosts import Namespace
from tests.vm.nodes import virtual_servers

OTHERS = documented("docs/migrate.md", program="systemctl", in_block=True)
ENABLE, RELOAD = documented("docs/install.md", program="systemctl")
(RESTART,) = documented("docs/operate.md", program="systemctl")
SERVICES = {"k3s", "k3s-agent", "rke2-server"}
PAGE = (ROOT / "docs/install.md").read_text()
LIMIT_S = 120.0
TARGETS = ("basic", "network-online", "pages", "shutdown", "sysinit")
NOTHING = "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sleep infinity\n"
CGROUP = "ipvsproxy-pages"
SYSTEMD = f"""
for folder in /run /etc/systemd/system /lib/systemd/system; do mount -t tmpfs tmpfs $folder; done
cp -r "$1" /run/systemd
mkdir /run/cgroup
mount -t cgroup2 cgroup2 /run/cgroup
mkdir /run/cgroup/{CGROUP}
echo $$ >/run/cgroup/{CGROUP}/cgroup.procs
exec unshare --cgroup sh -ec '
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    exec env container=lab /lib/systemd/systemd --system --unit=pages.target'
"""
FORGET = f"""
mount -t tmpfs tmpfs /run
mkdir /run/cgroup
mount -t cgroup2 cgroup2 /run/cgroup
until find /run/cgroup/{CGROUP} -depth -type d -exec rmdir {{}} + 2>/dev/null; do sleep 0.2; done
"""


class Systemd:
    """It at work; `type` is for a shell beside it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._unshare = process

    @property
    def _pid(self) -> str:
        pid = self._unshare.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]

    def type(self, command: str) -> str:
        """What it prints. Raises AssertionError with what it says."""
        # --root: a mount namespace has a root of its own, which a guest of the lab has changed.
        words = ["nsenter", "--target", self._pid, "--mount", "--root", "--pid", "--net", "sh", "-c", command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def state(self) -> str:
        """Of the whole; "offline" for one that is not at work."""
        return self.type("systemctl is-system-running || true").strip()

    def process_of(self, service: str) -> int:
        """Its main process; 0: none."""
        return int(self.type(f"systemctl show --property=MainPID --value {service}"))


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The folder of units, as below /run/systemd."""
    folder = tmp_path / "systemd" / "system"
    folder.mkdir(parents=True)
    for target in TARGETS:
        (folder / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    return folder


@contextlib.contextmanager
def systemd(host: Namespace, units: Path) -> Iterator[Systemd]:
    """With these units, in the network of the host, as long as the block lasts."""
    command = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with host.inside():
        process = subprocess.Popen([*command, "sh", "-ec", SYSTEMD, "sh", str(units.parent)])
    with process:
        try:
            found = Systemd(process)
            wait_until(lambda: found.state() in {"running", "degraded"})
            yield found
        finally:
            process.kill()
    subprocess.run(["unshare", "--mount", "sh", "-ec", FORGET], check=True, timeout=LIMIT_S)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        last: object = "it does not hold"
        try:
            if holds():
                return
        except (AssertionError, IndexError) as error:
            last = error
        assert time.monotonic() < deadline, last
        time.sleep(0.2)


def test_the_services_of_k3s_and_rke2_start_anew(empty_host: Namespace, units: Path):
    for service in SERVICES:
        (units / f"{service}.service").write_text(NOTHING)
    with systemd(empty_host, units) as running:
        for command in OTHERS:
            service = command.text.split()[-1]
            running.type(f"systemctl start {service}")
            before = running.process_of(service)
            running.type(command.text)
            assert running.process_of(service) not in {0, before}
    assert {command.text.split()[-1] for command in OTHERS} == SERVICES


@pytest.mark.long
def test_our_unit_serves_is_reloaded_and_restarted(empty_host: Namespace, units: Path, tmp_path: Path):
    log = tmp_path / "log"
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    unit = unit.replace("/opt/ipvsproxy/bin/ipvsproxy", f"{sys.executable} -m ipvsproxy")
    unit = unit.replace("/etc/ipvsproxy", str(tmp_path))
    ours = f"[Service]\nStandardError=append:{log}\nWorkingDirectory={ROOT}\n"
    (units / "ipvsproxy.service").write_text(f"{unit}{ours}")
    (config,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    access = "clientConnection:\n  kubeconfig: /etc/ipvsproxy/kubeconfig\n"
    assert access in config
    (tmp_path / "config.conf").write_text(config.replace(access, f"ipvsproxy: {{manifests: {tmp_path}/objects}}\n"))
    (tmp_path / "objects").mkdir()
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, *SHOP]})
    (tmp_path / "objects" / "shop.json").write_text(objects)

    def has_started(times: int) -> bool:
        return log.read_text().count('"starting"') >= times

    with systemd(empty_host, units) as running:
        running.type(ENABLE.text)
        wait_until(lambda: any("10.96.0.20:80" in line for line in virtual_servers(empty_host)))
        assert running.type("systemctl is-enabled ipvsproxy") == "enabled\n"
        first = running.process_of("ipvsproxy")
        running.type(f"{RELOAD.text} ipvsproxy")
        wait_until(lambda: has_started(2))
        assert running.process_of("ipvsproxy") == first
        running.type(f"{RESTART.text} ipvsproxy")
        assert running.process_of("ipvsproxy") not in {0, first}
        wait_until(lambda: has_started(3))
        running.type("systemctl stop ipvsproxy")
    assert any("10.96.0.20:80" in line for line in virtual_servers(empty_host))
