"""A node without a kernel of its own: real watches, tracker, reconciler and runner on the in-memory kernel.

It is put together as in daemon.py. What it wants of the kernel is compared as `ipvsadm -S -n` writes it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.daemon import QueueInbox
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.event_recorder import ApiEventSink, EventRecorder
from ipvsproxy.kube.other_nodes import OtherNodesWatch
from ipvsproxy.kube.resources import watched
from ipvsproxy.kube.watch import Watch
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.rules import RuleOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.status.wanted import ipvsadm_text
from ipvsproxy.sync.reconciler import Reconciler
from ipvsproxy.sync.runner import Periods, Runner, Signal
from tests.lab.apiserver import ControlPlane

NODE = "n1"
LIMIT_S = 45.0

_numbers = itertools.count(10)


class Node:
    """What one node has programmed."""

    def __init__(self, fake: FakeKernel, tracker: Tracker, watches: list[Watch]) -> None:
        self.fake = fake
        self.tracker = tracker
        self.watches = watches

    def servers(self, address: str) -> list[str]:
        """The lines of `ipvsadm -S -n` that name this cluster IP."""
        state = {kind: dict(found) for kind, found in self.fake.state.items()}  # the sync thread may be at work
        return [line for line in ipvsadm_text(state) if f" {address}:" in line or f" [{address}]:" in line]

    def wait_for(self, address: str, *lines: str) -> None:
        """Wait until the node has exactly these lines for a cluster IP."""
        deadline = time.monotonic() + LIMIT_S
        while (found := self._servers_or_nothing(address)) != list(lines):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def _servers_or_nothing(self, address: str) -> list[str]:
        try:
            return self.servers(address)
        except RuntimeError:
            return ["a dictionary changed while it was read"]


def events_about(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    """All Events of ours on an object of this name: the API server tells of new Services too, when it is slow."""
    selector = f"--field-selector=regarding.name={name}"
    told = json.loads(plane.kubectl("get", "events.events.k8s.io", "-o", "json", selector))["items"]
    return [event for event in told if event.get("reportingController") == "ipvsproxy"]


@contextlib.contextmanager
def node_with(kubeconfig: Path) -> Iterator[Node]:
    """A node that follows the API server of this kubeconfig, at once and until the end of the block."""
    families = frozenset(Family)
    fake, inbox = FakeKernel(), QueueInbox()
    tracker = Tracker(NODE, families, claims=Claims(waits_for_nodes=True))
    server = ApiServer(Access(kubeconfig=str(kubeconfig)))
    other_nodes = OtherNodesWatch(server, NODE, SystemClock())
    mode = IpvsMode(IpvsOptions(ServiceOptions(families, "rr"), RuleOptions()))
    reconciler = Reconciler(fake.kernel, tracker, mode, SystemClock())
    reconciler.other_nodes = other_nodes
    recorder = EventRecorder(ApiEventSink(server), NODE, SystemClock())
    reconciler.tell = recorder.record
    reconciler.start()
    watches = [Watch(server, resource, SystemClock()) for resource in watched(NODE)]
    runner = Runner(inbox, tracker, reconciler, SystemClock(), Periods())
    sources = (*watches, other_nodes)
    threads = [threading.Thread(target=partial(source.run, inbox.deliver)) for source in sources]
    threads += [threading.Thread(target=runner.run), threading.Thread(target=recorder.run)]
    for thread in threads:
        thread.start()
    try:
        yield Node(fake, tracker, watches)
    finally:
        for source in sources:
            source.stop()
        inbox.put(Signal.STOP)
        recorder.stop()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


class Objects:
    """Services and EndpointSlices of one test, each with a name and cluster IP that no other test has."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._made: list[tuple[str, str]] = []

    def service(self, **spec: Any) -> tuple[str, str]:
        """Make a Service with one TCP port 80; its name and its cluster IP."""
        number = next(_numbers)
        name, address = f"web-{number}", f"10.96.1.{number}"
        self.put_service(name, address, **spec)
        return name, address

    def put_service(self, name: str, address: str, **spec: Any) -> None:
        """Make a Service so."""
        given = {"clusterIP": address, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}], **spec}
        self._put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": given})

    def slice(self, service: str, *addresses: str, name: str = "") -> None:
        """Make the EndpointSlice of a Service so; the port is 8080."""
        labels = {"kubernetes.io/service-name": service}
        self._put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name or service, "labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            }
        )

    def node(self, name: str, *addresses: str) -> None:
        """Make a Node whose kubelet tells these internal addresses."""
        self._put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        told = [{"type": "InternalIP", "address": address} for address in addresses]
        patch = json.dumps({"status": {"addresses": told}})
        self.plane.kubectl("patch", "node", name, "--subresource=status", "--patch", patch)

    def remove(self, kind: str, name: str) -> None:
        """Delete an object."""
        self.plane.kubectl("delete", kind, name, "--wait=false")
        self._made = [made for made in self._made if made != (kind, name)]

    def remove_all(self) -> None:
        """Delete what is left."""
        for kind, name in self._made:
            self.plane.kubectl("delete", kind, name, "--wait=false", "--ignore-not-found")

    def _put(self, item: dict[str, Any]) -> None:
        self.plane.apply(item)
        made = (item["kind"], item["metadata"]["name"])
        if made not in self._made:
            self._made.append(made)
