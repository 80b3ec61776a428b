"""From kube-proxy to ipvsproxy and back on one node, while clients ask without a pause: a program for the VM.

    python -m tests.lab.take_over KUBE_PROXY KUBECONFIG RESULT.json

The node is n1 of tests/lab/hosts.py; the machine's own network device is moved into it, so that both proxies reach the
API server at 10.0.2.2. What the tests look at is written to RESULT.json, see `Result`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.lab.hosts import NODE_ADDRESSES, NODE_NAME, Cluster, Namespace
from tests.lab.probers import Asker
from tests.lab.proxies import fork
from tests.lab.traffic import Conversation, Servers, Transport, ask

ENDPOINTS = {
    "a1": ("10.244.1.5", "2001:db8:244:1::5"),
    "a2": ("10.244.1.6", "2001:db8:244:1::6"),
    "b1": ("10.244.2.5", "2001:db8:244:2::5"),
}
CLIENT_POD = ("10.244.1.9", "2001:db8:244:1::9")
CLUSTER_IPS = ("10.96.0.20", "2001:db8:96::20")
OUTSIDE_IPS = ("203.0.113.20", "2001:db8:113::20")
PORT, TARGET_PORT, NODE_PORT = 80, 8080, 30080
COMMON = (
    "--proxy-mode=ipvs",
    f"--hostname-override={NODE_NAME}",
    "--cluster-cidr=10.244.0.0/16,2001:db8:244::/56",
    "--conntrack-max-per-core=0",  # the limit belongs to the machine's first network namespace
    "--conntrack-min=0",
)
ROUNDS = 40
"""Questions of each client and address between two steps."""
LIMIT_S = 300.0
LOOK_AGAIN_S = 0.1
SYNCED = re.compile(r'^kubeproxy_sync_proxy_rules_duration_seconds_count\{ip_family="\w+"\} (\d+)', re.MULTILINE)


class TakeOverError(Exception):
    """A step did not come about."""


@dataclass
class Result:
    """What was seen: questions and failures by client, exit codes, and the state after each step.

    `in_force`: from when to when each proxy was, in UTC as errors tell it.
    """

    asked: dict[str, int] = field(default_factory=dict)
    succeeded: dict[str, int] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    in_force: dict[str, list[str]] = field(default_factory=dict)
    answers_on_held_streams: int = 0
    diff_codes: list[int] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    changed_by_diff: list[str] = field(default_factory=list)
    exit_codes: dict[str, int] = field(default_factory=dict)
    servers: dict[str, list[str]] = field(default_factory=dict)


@contextlib.contextmanager
def small_cluster() -> Iterator[Cluster]:
    """The node, its endpoints, a pod that asks, another node, and a client outside; the API server is in reach."""
    subprocess.run(["modprobe", "-a", "ip_vs", "nf_conntrack"], check=True)  # kube-proxy wants their sysctls at once
    with Cluster() as hosts, Servers() as servers:
        remote = hosts.add_remote(*ENDPOINTS["b1"])
        places = {"b1": remote, **{name: hosts.add_pod(name, *ENDPOINTS[name]) for name in ("a1", "a2")}}
        hosts.add_pod("client", *CLIENT_POD)
        hosts.add_outside()
        for name, host in places.items():
            for address in ENDPOINTS[name]:
                for transport in (Transport.TCP, Transport.UDP):
                    servers.listen(host, name, address, TARGET_PORT, transport)
        servers.start()
        _move_uplink(hosts.node)
        yield hosts


def _move_uplink(node: Namespace) -> None:
    for command in ("down", "name uplink", f"netns {node.path}"):
        device = "uplink" if command.startswith("netns") else "eth0"
        subprocess.run(["ip", "link", "set", device, *command.split()], check=True)
    node.ip("address add 10.0.2.15/24 dev uplink", "link set uplink up")


@dataclass(frozen=True)
class Node:
    """The node and the programs on it."""

    hosts: Cluster
    kube_proxy: str
    kubeconfig: str
    folder: Path
    result: Result

    @property
    def flags(self) -> list[str]:
        """What both programs are started with."""
        return [*COMMON, f"--kubeconfig={self.kubeconfig}"]

    @contextlib.contextmanager
    def upstream(self, step: str) -> Iterator[None]:
        """kube-proxy, in force within the block; ended by SIGTERM after it."""
        with (self.folder / f"{step}.log").open("wb") as log, self.hosts.node.inside():
            command = [self.kube_proxy, *self.flags, "--ipvs-sync-period=5s"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: process.poll() is not None or self._syncs() >= 2, f"{step} in force")
            if process.poll() is not None:
                raise TakeOverError(f"{step} has ended: see {step}.log")
            yield
            process.terminate()
            self.result.exit_codes[step] = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
        self.result.servers[step] = self.servers()

    @contextlib.contextmanager
    def ours(self, step: str) -> Iterator[None]:
        """The same with ipvsproxy."""
        with fork(self.hosts.node, self.flags, self.folder / f"{step}.log") as proxy:
            proxy.wait_for_services()
            yield
            self.result.exit_codes[step] = proxy.stop()
        self.result.servers[step] = self.servers()

    def servers(self) -> list[str]:
        """`ipvsadm -S -n`, sorted."""
        return sorted(line.rstrip() for line in self.hosts.node.run("ipvsadm", "-S", "-n").splitlines())

    def look(self) -> None:
        """`ipvsproxy diff`, which must not change anything."""
        program = Path(sys.executable).with_name("ipvsproxy")
        before = self._all()
        with self.hosts.node.inside():
            command = [str(program), "diff", *self.flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        self.result.diff_codes.append(done.returncode)
        self.result.diffs.append(done.stdout + done.stderr)
        self.result.changed_by_diff += sorted(self._all() ^ before)

    def _all(self) -> set[str]:
        """What the tools show, less what time changes."""
        tools = (("ipvsadm", "-S", "-n"), ("ipset", "save"), ("iptables-save",), ("ip6tables-save",))
        lines = {line for argv in tools for line in self.hosts.node.run(*argv).splitlines()}
        return {line for line in lines if not line.startswith(("#", ":"))}

    def _syncs(self) -> int:
        """How many syncs kube-proxy has had, the family with fewer."""
        address = "http://127.0.0.1:10249/metrics"
        try:
            with self.hosts.node.inside(), urllib.request.urlopen(address, timeout=10) as answer:
                counts = [int(count) for count in SYNCED.findall(answer.read().decode())]
        except (urllib.error.URLError, TimeoutError):
            return 0
        return min(counts) if len(counts) == 2 else 0


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Raises TakeOverError."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TakeOverError(f"not within {LIMIT_S:g} s: {what}")
        time.sleep(LOOK_AGAIN_S)


def clients(hosts: Cluster) -> dict[str, Asker]:
    """Who asks what, without a pause. Each from an address of its own.

    To IPVS a reply belongs to the youngest connection of its endpoint and client. So a client that asks two VIPs of the
    same endpoints from the same port now and then hears from the wrong one, whichever proxy there is.
    """
    return {
        "pod to cluster IP": Asker(hosts["client"], CLUSTER_IPS, PORT),
        "node to cluster IP": Asker(hosts.node, CLUSTER_IPS, PORT),
        "outside to load-balancer IP": Asker(hosts["outside"], OUTSIDE_IPS, PORT),
        "another node to node port": Asker(hosts["remote"], NODE_ADDRESSES, NODE_PORT),
    }


def run(node: Node) -> None:
    """All steps."""
    result, hosts = node.result, node.hosts
    with contextlib.ExitStack() as stack:
        with node.upstream("kube-proxy"):
            for address in (*CLUSTER_IPS, *OUTSIDE_IPS):
                ask(hosts["client"], address, PORT)
            askers = clients(hosts)
            for asker in askers.values():
                stack.enter_context(asker)
            streams = [
                stack.enter_context(Conversation(hosts["outside"], address, PORT, aborts=True))
                for address in OUTSIDE_IPS
            ]
            _rounds("kube-proxy", askers.values(), streams, result)
            node.look()
        with node.ours("ipvsproxy"):
            _rounds("ipvsproxy", askers.values(), streams, result)
        with node.upstream("kube-proxy again"):
            _rounds("kube-proxy again", askers.values(), streams, result)
        with node.ours("ipvsproxy again"):
            _rounds("ipvsproxy again", askers.values(), streams, result)
            node.look()
    for name, asker in askers.items():
        result.asked[name] = asker.account.asked
        result.succeeded[name] = asker.account.succeeded
        result.errors[name] = list(asker.account.errors)


def _rounds(step: str, askers: Collection[Asker], streams: Sequence[Conversation], result: Result) -> None:
    """Some more questions of everybody, and of those who hold a stream since the first proxy."""
    result.in_force[step] = [now()]
    before = [asker.asked for asker in askers]
    wait_until(
        lambda: all(asker.asked >= count + ROUNDS for asker, count in zip(askers, before, strict=True)), "more rounds"
    )
    result.in_force[step].append(now())
    for stream in streams:
        stream.ask()
        result.answers_on_held_streams += 1


def now() -> str:
    """The time of day, in UTC."""
    return f"{datetime.now(UTC):%H:%M:%S.%f}"


def main(argv: list[str]) -> int:
    """Run all steps and write what was seen."""
    kube_proxy, kubeconfig, path = argv
    result = Result()
    with small_cluster() as hosts:
        run(Node(hosts, kube_proxy, kubeconfig, Path(path).parent, result))
    Path(path).write_text(json.dumps(dataclasses.asdict(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
