"""Runs a Pod's containers as a kubelet does: volumes first, init containers one by one, probes, and SIGTERM at the end.

A Pod is a folder: pod.json as the API server has it, volumes/NAME/FILE what its ConfigMaps and its token are, and what
each container said in NAME.log. Needs root, and runc.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.lab.containers import Image, Object, in_bytes, oci_config
from tests.lab.hosts import Namespace

PODS = Path("/run/pods")
PROFILE = Path("/usr/share/containers/seccomp.json")
"""Of Debian's golang-github-containers-common, which buildah needs."""
READY_S = 240.0
"""Longer than the chart's probes allow: under emulation a start takes half a minute, on a busy machine more."""
LOOK_AGAIN_S = 0.2


class PodError(Exception):
    """A container did not do what its Pod says, in words, with the end of its log."""


class Pod:
    """A Pod placed on this node."""

    def __init__(self, folder: Path, image: Image, node: Namespace) -> None:
        self.spec: Object = json.loads((folder / "pod.json").read_text())
        self._folder = folder
        self._image = image
        self._node = node
        self._place = PODS / folder.name
        self._volumes = {volume["name"]: self._mounted(volume) for volume in self.spec["spec"]["volumes"]}
        self._daemon: subprocess.Popen[bytes] | None = None

    def _mounted(self, volume: Object) -> Path:
        """Where a volume is. Raises PodError, OSError."""
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        name = str(volume["name"])
        place, given = (folder / "volumes" / name for folder in (self._place, self._folder))
        if "emptyDir" not in volume:
            shutil.copytree(given, place, dirs_exist_ok=True)
            return place
        place.mkdir(parents=True, exist_ok=True)
        options = f"mode=1777,size={in_bytes(volume['emptyDir']['sizeLimit'])}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        return place

    def start(self) -> None:
        """Its init containers, then the container; back when its probes, if it has any, say so. Raises PodError."""
        for container in self.spec["spec"].get("initContainers", ()):
            if code := self.run(container["name"], READY_S):
                raise PodError(f"{container['name']} ended with {code}:\n{self.log(container['name'])}")
        (container,) = self.spec["spec"]["containers"]
        self._daemon = self._launch(container["name"])
        try:
            for probe in ("startupProbe", "readinessProbe"):
                if probe in container:
                    self._wait_for(container, probe)
        except PodError:
            self._remove(container["name"], self._daemon)
            raise

    def run(self, name: str, limit_s: float) -> int:
        """The exit code of a container that ends by itself. Raises PodError."""
        process = self._launch(name)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise PodError(f"{name} has not ended after {limit_s:g} s:\n{self.log(name)}") from error
        finally:
            self._remove(name, process)

    def execute(self, *argv: str) -> str:
        """What a program prints that has all that the container has, in a container of its own.

        `runc exec` would do in a machine, but in the VM it comes out below the guest's root, which is a chroot.
        """
        made = json.loads((self._place / self._main / "config.json").read_text())
        made["process"]["args"] = argv
        with self._node.inside():
            done = subprocess.run(self._command("exec", made), capture_output=True, text=True, check=False)
        if done.returncode:
            raise PodError(f"{argv[0]} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def facts(self) -> str:
        """What the kernel says of the container's first process: /proc/PID/status."""
        done = subprocess.run(["runc", "state", self._id(self._main)], capture_output=True, text=True, check=True)
        return Path(f"/proc/{json.loads(done.stdout)['pid']}/status").read_text()

    def stop(self) -> int:
        """SIGTERM, and what the container ends with within its time. Raises PodError."""
        assert self._daemon is not None  # it was started
        subprocess.run(["runc", "kill", self._id(self._main), "TERM"], check=True)
        try:
            return self._daemon.wait(self.spec["spec"]["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired as error:
            raise PodError(f"{self._main} does not end:\n{self.log(self._main)}") from error
        finally:
            self._remove(self._main, self._daemon)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._daemon is not None:
            self._remove(self._main, self._daemon)

    def log(self, name: str) -> str:
        """The end of what a container said."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-4000:]

    @property
    def _main(self) -> str:
        return str(self.spec["spec"]["containers"][0]["name"])

    def _id(self, name: str) -> str:
        return f"{self._folder.name}.{name}"

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        made = oci_config(self.spec, name, self._image, self._volumes, json.loads(PROFILE.read_text()))
        command = self._command(name, made)
        with (self._folder / f"{name}.log").open("wb") as log, self._node.inside():
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _command(self, name: str, made: Object) -> list[str]:
        bundle = self._place / name
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(made, indent=1))
        return ["runc", "run", "--bundle", str(bundle), self._id(name)]

    def _remove(self, name: str, process: subprocess.Popen[bytes]) -> None:
        subprocess.run(["runc", "delete", "--force", self._id(name)], check=False, capture_output=True)
        process.kill()
        process.wait()

    def _wait_for(self, container: Object, probe: str) -> None:
        assert self._daemon is not None  # it was started
        deadline = time.monotonic() + READY_S
        while not self._answers(container, container[probe]):
            if (code := self._daemon.poll()) is not None:
                raise PodError(f"{container['name']} ended with {code}:\n{self.log(container['name'])}")
            if time.monotonic() > deadline:
                raise PodError(f"{probe} is not answered:\n{self.log(container['name'])}")
            time.sleep(LOOK_AGAIN_S)

    def _answers(self, container: Object, probe: Object) -> bool:
        asked = probe["httpGet"]
        port = next(port["containerPort"] for port in container["ports"] if port["name"] == asked["port"])
        connection = http.client.HTTPConnection(asked["host"], port, timeout=probe["timeoutSeconds"])
        with contextlib.closing(connection), contextlib.suppress(OSError), self._node.inside():
            connection.request("GET", asked["path"])
            return 200 <= connection.getresponse().status < 400
        return False


def _host_path(volume: Object) -> Path:
    """A path of the node, made where its type says so. Raises PodError."""
    path, kind = Path(volume["path"]), volume.get("type")
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if kind == "FileOrCreate":
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))
    if kind == "Directory" and not path.is_dir():
        raise PodError(f"{path} is no folder of this node")
    return path
