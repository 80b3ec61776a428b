"""A VM in which the chart's Pods run, as the API server on this machine has them: see guest_node.py for its side."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chart.guest_node import VIP
from tests.chart.release import Release
from tests.kube.following import eventually
from tests.lab import machine
from tests.lab.apiserver import ControlPlane
from tests.lab.calls import END, Caller
from tests.lab.containers import Object, field

OUT = Path(__file__).resolve().parents[2] / "build" / "chart-vm"
GUEST = Path(__file__).with_name("guest_node.py")
LIMIT_S = 1200.0
READY_S = 300.0
Files = Mapping[str, Mapping[str, str]]
"""volume → file → text."""


class Node:
    """The VM. `call` is for what GuestNode does; a Pod is put into the folder that both share first."""

    def __init__(self, call: Caller) -> None:
        self.call = call

    def put(self, name: str, pod: Object, files: Files) -> str:
        """Let the node see a Pod under this name, which is returned."""
        place = OUT / "pods" / name
        for volume, content in files.items():
            folder = place / "volumes" / volume
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in content.items():
                (folder / file).write_text(text)
        (place / "pod.json").write_text(json.dumps(pod))
        return name

    def place(self, plane: ControlPlane, pod: Object) -> str:
        """The same with what the API server says of the Pod, under its own name."""
        return self.put(pod["metadata"]["name"], pod, files_of(plane, pod))

    def servers(self) -> set[str]:
        """Servers for new connections behind the VIP, as ipvsadm saves them."""
        lines = self.call("look", argv=["ipvsadm", "-S", "-n"]).splitlines()
        about = [line.split() for line in lines if line.startswith(f"-a -t {VIP}:80 ")]
        return {words[4].partition(":")[0] for words in about if words[-1] != "0"}


def pod_on_n1(release: Release, component: str = "proxy") -> dict[str, Any]:
    """As the API server has it, once it is ready there."""
    deadline = time.monotonic() + READY_S
    while (pod := release.pods(component).get("n1")) is None:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return pod


def run_by_label(release: Release, node: Node, component: str) -> tuple[int, str]:
    """Set the label on n1 that a component of the chart waits for; exit code and log of its container there."""
    eventually(lambda: "n1" not in release.pods(component), READY_S)  # that of the label before
    release.plane.kubectl("label", "node", "n1", f"ipvsproxy.io/{component}=true")
    try:
        pod = node.place(release.plane, pod_on_n1(release, component))
        code, _end_of_log = node.call("run", pod=pod, container=component)
    finally:
        release.plane.kubectl("label", "node", "n1", f"ipvsproxy.io/{component}-")
    return code, (OUT / "pods" / pod / f"{component}.log").read_text()


def files_of(plane: ControlPlane, pod: Object) -> Files:
    """What the kubelet would put into a Pod's volumes: keys of ConfigMaps, a token of its account, facts about it."""
    found = {}
    for volume in pod["spec"]["volumes"]:
        if "configMap" in volume:
            found[volume["name"]] = _config_map(plane, pod, volume["configMap"]["name"])
        if "projected" in volume:
            parts = [_projected(plane, pod, source) for source in volume["projected"]["sources"]]
            found[volume["name"]] = {name: text for part in parts for name, text in part.items()}
    return found


def _projected(plane: ControlPlane, pod: Object, source: Object) -> dict[str, str]:
    match source:
        case {"serviceAccountToken": {"path": path, "expirationSeconds": seconds}}:
            account, name = pod["spec"]["serviceAccountName"], pod["metadata"]["name"]
            bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}", f"--duration={seconds}s")
            return {path: plane.kubectl("create", "token", account, _namespace(pod), *bound).strip()}
        case {"configMap": {"name": name, "items": items}}:
            content = _config_map(plane, pod, name)
            return {item["path"]: content[item["key"]] for item in items}
        case {"downwardAPI": {"items": items}}:
            return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]) for item in items}
    raise ValueError(f"a source that is not known here: {source}")


def _config_map(plane: ControlPlane, pod: Object, name: str) -> dict[str, str]:
    found: Any = json.loads(plane.kubectl("get", "configmap", name, _namespace(pod), "--output=json"))
    return dict(found["data"])


def _namespace(pod: Object) -> str:
    return f"--namespace={pod['metadata']['namespace']}"


@contextlib.contextmanager
def running() -> Iterator[Node]:
    """The VM for the length of a block, once it is up. Raises CallError."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    ended: list[int] = []

    def run() -> None:
        argv = [sys.executable, str(GUEST)]
        ended.append(machine.run(argv, OUT, shape=machine.Shape(network=True), timeout_s=LIMIT_S))

    thread = threading.Thread(target=run)
    thread.start()
    call = Caller(OUT / "calls", thread.is_alive)
    try:
        call("look", limit_s=math.inf, argv=["true"])  # other VMs of this machine come first, however long they take
        yield Node(call)
    finally:
        if thread.is_alive():
            call(END)
        thread.join()
    assert ended == [0]
