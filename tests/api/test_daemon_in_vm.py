"""The daemon itself on a real kernel: what kubectl makes on this machine's API server shows in the VM's IPVS tables."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import chart_role
from tests.api.node import NODE, Objects, events_about
from tests.documented import documented
from tests.kube.following import eventually
from tests.lab import machine
from tests.lab.apiserver import HOST_FROM_VM, ControlPlane

(SERVE,) = documented("README.md", "Try it", pattern=r"\S*/ipvsproxy .*--kubeconfig=FILE .*")
LIMIT_S = 600.0  # with the wait for another VM of this machine
OUT = Path(__file__).resolve().parents[2] / "build" / "api-vm"

# Runs the daemon and shows its kernel state in a file again and again, until the test says stop.
GUEST = """
"$@" --cluster-cidr=10.244.0.0/16 2>"$LAB_OUT/log" &
proxy=$!
while kill -0 $proxy 2>/dev/null && [ ! -e "$LAB_OUT/stop" ]; do
    { ipvsadm -S -n; ip -oneline address show dev kube-ipvs0; } >"$LAB_OUT/next" 2>/dev/null
    mv "$LAB_OUT/next" "$LAB_OUT/state"
    sleep 0.2
done
kill $proxy
wait $proxy
"""


class Guest:
    """The VM with the daemon, as far as it shows in the folder that both share."""

    def __init__(self) -> None:
        self.exit_code: int | None = None

    def wait_for(self, address: str, *lines: str) -> None:
        """Wait until the kernel has exactly these IPVS lines for a cluster IP, and the address if there are any."""
        deadline = time.monotonic() + LIMIT_S
        while (found := _about(address)) != ([*lines], bool(lines)):
            assert self.exit_code is None, _read("log")
            assert time.monotonic() < deadline, (found, _read("log"))
            time.sleep(0.1)


def _about(address: str) -> tuple[list[str], bool]:
    state = _read("state").splitlines()
    bound = any(f"inet {address}/32" in line for line in state)
    return [line.rstrip() for line in state if f" {address}:" in line], bound


def _read(name: str) -> str:
    path = OUT / name
    return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def guest(plane: ControlPlane) -> Iterator[Guest]:
    """The VM with the daemon in it, which has the rights that the chart gives; told to stop at the end of the block."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    chart_role.kubeconfig(plane, OUT / "kubeconfig", chart_role.install(plane), HOST_FROM_VM)
    found = Guest()
    words = shlex.split(SERVE.filled({"FILE": str(OUT / "kubeconfig"), "n1": NODE}))
    argv = ["/bin/sh", "-c", GUEST, "guest", str(Path(sys.executable).with_name("ipvsproxy")), *words[1:]]

    def run() -> None:
        found.exit_code = machine.run(argv, OUT, shape=machine.Shape(network=True), timeout_s=800)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        (OUT / "stop").touch()
        thread.join()


@pytest.mark.timeout(900)
def test_daemon_in_a_vm_follows_what_kubectl_does(plane: ControlPlane, objects: Objects):
    name, address = objects.service()
    objects.slice(name, "10.244.1.5")
    server = f"-A -t {address}:80 -s rr"
    first, second = (f"-a -t {address}:80 -r {pod}:8080 -m -w 1" for pod in ("10.244.1.5", "10.244.1.6"))
    nowhere, _ = objects.service(ports=[{"name": "web", "port": 80, "protocol": "TCP"}])
    objects.slice(nowhere, "10.244.1.9")  # its port is called http
    with guest(plane) as daemon:
        daemon.wait_for(address, server, first)
        eventually(lambda: [event["reason"] for event in events_about(plane, nowhere)] == ["NoEndpointPort"], LIMIT_S)
        objects.slice(name, "10.244.1.5", "10.244.1.6")
        daemon.wait_for(address, server, first, second)
        plane.stop_server(signal.SIGKILL)
        plane.start_server()
        objects.slice(name, "10.244.1.6")
        daemon.wait_for(address, server, second)
        objects.remove("Service", name)
        daemon.wait_for(address)
    assert daemon.exit_code == 0, _read("log")
    assert '"stopped"' in _read("log")
