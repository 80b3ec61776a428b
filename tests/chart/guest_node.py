"""The node in the VM on which the chart's Pods run: pods that answer, a client that asks all the time, and a kubelet.

    python tests/chart/guest_node.py     what tests/chart/machine.py starts in the VM; it does what it is called for

The node's network is the VM's own, as a node's is a machine's, so that its way to the API server is an ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from tests.lab import calls, image, traffic  # noqa: E402  # needs the line above
from tests.lab.hosts import Cluster, Namespace, Networks, OwnNamespace  # noqa: E402
from tests.lab.kubelet import Pod  # noqa: E402

VIP = "10.96.0.20"
PODS = ("10.244.1.1", "10.244.1.2", "10.244.1.3")
PORT = 8080
CLIENT = "10.244.1.100"
PACE_S = 0.05
LIMIT_S = 240.0


class Client(threading.Thread):
    """Asks the VIP all the time: on one connection that it holds, and each time on a new one."""

    def __init__(self, host: Namespace) -> None:
        super().__init__(name="client", daemon=True)
        self.answers = 0
        self.faults: list[str] = []
        self._host = host
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        with traffic.Conversation(self._host, VIP, 80) as held:
            while not self._stopped.wait(PACE_S):
                self._note("held", held.ask)
                self._note("new", lambda: traffic.get(self._host, VIP))

    def stop(self) -> None:
        """End after the question that is asked now."""
        self._stopped.set()
        self.join()

    def _note(self, kind: str, ask: Callable[[], object]) -> None:
        begun = time.monotonic()
        try:
            ask()
            self.answers += 1
        except OSError as error:
            took = time.monotonic() - begun
            self.faults.append(f"{kind} connection, {time.time():.3f}, after {took:.1f} s: {error!r}")


class GuestNode:
    """What the node does when it is called; each public method is a call."""

    def __init__(self, node: Namespace, client: Namespace, folder: Path) -> None:
        self._node = node
        self._host = client
        self._folder = folder
        self._image = image.find()
        self._running: Pod | None = None
        self._client: Client | None = None

    def add_to_image(self, program: str) -> None:
        """Put a program into the image, as long as the VM lives: that of another Pod has little more."""
        shutil.copy(program, self._image.rootfs / "usr/local/bin")

    def start(self, pod: str) -> None:
        """Run this Pod; back when it is ready."""
        assert self._running is None  # one on a node, as the DaemonSet's maxSurge says
        placed = self._placed(pod)
        placed.start()
        self._running = placed

    def stop(self) -> int:
        """End the Pod that runs; the exit code of its container."""
        assert self._running is not None  # it was started
        stopped, self._running = self._running, None
        return stopped.stop()

    def run(self, pod: str, container: str) -> tuple[int, str]:
        """Exit code and log of a Pod's container that ends by itself."""
        placed = self._placed(pod)
        return placed.run(container, LIMIT_S), placed.log(container)

    def execute(self, argv: Sequence[str]) -> str:
        """What a program prints that has what the Pod that runs has."""
        assert self._running is not None  # it was started
        return self._running.execute(*argv)

    def facts(self) -> str:
        """What the kernel says of the first process of the Pod that runs."""
        assert self._running is not None  # it was started
        return self._running.facts()

    def forget(self) -> None:
        """Nobody asks and no Pod runs any more, whatever a test has left."""
        if self._client is not None:
            self._client.stop()
        if self._running is not None:
            self._running.kill()
        self._client = self._running = None

    def look(self, argv: Sequence[str]) -> str:
        """What a program of the node prints."""
        return self._node.run(*argv)

    def ask(self, count: int) -> list[str]:
        """The pods that answer so many requests to the VIP, in their order."""
        return [traffic.get(self._host, VIP).server for _ in range(count)]

    def begin_to_ask(self) -> None:
        """From here on the client asks."""
        self._client = Client(self._host)
        self._client.start()

    def answers(self) -> int:
        """How many answers the client has got."""
        assert self._client is not None  # it has begun
        return self._client.answers

    def end_asking(self) -> tuple[int, list[str]]:
        """How many answers it got, and what went wrong."""
        assert self._client is not None  # it has begun
        self._client.stop()
        return self._client.answers, self._client.faults

    def _placed(self, pod: str) -> Pod:
        return Pod(self._folder / "pods" / pod, self._image, self._node)


@contextlib.contextmanager
def guest_node(folder: Path) -> Iterator[GuestNode]:
    """The node with its pods, all of which answer."""
    with Cluster(Networks(), OwnNamespace) as cluster, traffic.Servers() as servers:
        for address in PODS:
            servers.listen(cluster.add_pod(address, address), address, address, PORT, traffic.Transport.TCP)
        servers.start()
        yield GuestNode(cluster.node, cluster.add_pod("client", CLIENT), folder)


def main() -> None:
    """Do what is called for."""
    folder = Path(os.environ["LAB_OUT"])
    with guest_node(folder) as node:
        names = [name for name in vars(GuestNode) if not name.startswith("_")]
        calls.serve(folder / "calls", {name: getattr(node, name) for name in names})


if __name__ == "__main__":
    main()
