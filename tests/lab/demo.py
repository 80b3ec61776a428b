"""The main job with real packets: a Service becomes virtual servers, and requests to its VIP are answered by its pods.

    python tests/lab/demo.py         here if this kernel has IPVS, else in a VM
    python tests/lab/demo.py --here  in the network namespaces of this machine; what the first form calls

Every step states what is expected and looks at it; the first expectation that fails ends the demo with a sentence and
exit code 1.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path, before anything is installed

from tests.lab import machine, traffic  # noqa: E402  # needs the line above
from tests.lab.hosts import NODE_NAME, Cluster, Namespace, Networks  # noqa: E402
from tests.lab.proxies import Manifests, Proxy, start  # noqa: E402

VIP = "10.102.199.132"
CLUSTER_CIDR = "10.44.0.0/16"
PODS = ("10.44.0.1", "10.44.0.2", "10.44.0.3", "10.44.0.4")
CLIENT = "10.44.0.100"
TOOLS = ("ip", "ipset", "iptables", "ipvsadm", "modprobe")
PACE_S = 0.03
AROUND_A_CHANGE = 6
"""Requests shown before and after an endpoint comes or goes."""
TIME_LIMIT_S = 170


class DemoError(Exception):
    """An expectation that failed, as a sentence."""


def expect(fact: object, sentence: str) -> None:
    """Raise DemoError with the sentence unless `fact` holds."""
    if not fact:
        raise DemoError(sentence)


def service() -> dict[str, object]:
    """default/nginx as kubectl prints it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "nginx", "namespace": "default", "creationTimestamp": "2026-11-30T00:00:00Z"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": VIP,
            "clusterIPs": [VIP],
            "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        },
    }


def endpoint_slice(endpoints: Mapping[str, bool]) -> dict[str, object]:
    """Its endpoints: address → ready."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "nginx-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "nginx"},
        },
        "addressType": "IPv4",
        "ports": [{"port": 80, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": ready}, "nodeName": NODE_NAME}
            for address, ready in endpoints.items()
        ],
    }


class Demo:
    """The cluster, the proxy's manifests, and a client in a pod that asks the VIP."""

    def __init__(self, cluster: Cluster, client: Namespace, manifests: Manifests, proxy: Proxy) -> None:
        self.node = cluster.node
        self.client = client
        self.manifests = manifests
        self.proxy = proxy
        self.repeated = 0

    def ask(self) -> str:
        """The pod that answers. A GET that is cut off is asked once more, as HTTP clients do (RFC 9110 §9.2.2)."""
        try:
            return traffic.get(self.client, VIP).server
        except ConnectionResetError:
            self.repeated += 1
            return traffic.get(self.client, VIP).server
        except OSError as error:
            raise DemoError(f"a request to {VIP}:80 was not answered: {error}.") from error

    def serves_the_service(self) -> None:
        """The VIP is bound, and twenty requests go round."""
        title(f"Twenty requests from a pod to http://{VIP}/")
        answers = [self.ask() for _ in range(20)]
        show_answers(answers)
        expect(set(answers) == set(PODS[:2]), f"the answers came from {sorted(set(answers))}, not from the ready two.")
        expect(takes_turns(answers), f"the answers do not alternate: {answers}.")
        say(f"in turn, ten each; none by {PODS[2]}, which is not ready")

    def status_is_ipvsadms(self) -> None:
        """Our listing and ipvsadm's are the same bytes."""
        title("What the kernel holds now: the real ipvsadm, and our status")
        theirs = self.node.run("ipvsadm", "-Ln")
        ours = self.node.run(program(), "status", "-Ln")
        for command, output in (("ipvsadm -Ln", theirs), ("ipvsproxy status -Ln", ours)):
            show_command(command, output)
        expect(ours == theirs, "ipvsproxy status -Ln and ipvsadm -Ln differ, see above.")
        say("equal, byte for byte")

    def follows(self, sentence: str, endpoints: Mapping[str, bool]) -> None:
        """Requests go on while the endpoints change: each is answered, and by the right pods before and after."""
        title(sentence)
        self.repeated = 0
        before = [self.ask() for _ in range(AROUND_A_CHANGE)]
        self.proxy.mark()
        self.manifests.write("endpoints.json", json.dumps(endpoint_slice(endpoints)))
        written = time.monotonic()
        meanwhile = list(self._until_synced())
        took_ms = (time.monotonic() - written) * 1000
        after = [self.ask() for _ in range(AROUND_A_CHANGE)]
        for when, answers in (("before", before), ("during", meanwhile), ("after", after)):
            show_answers(answers, when)
        say(f"{sync_sentence(self.proxy.last('sync_finished'))}, {took_ms:.0f} ms after the file changed")
        ready = sorted(address for address, is_ready in endpoints.items() if is_ready)
        expect(sorted(set(after)) == ready, f"after the change {sorted(set(after))} answered, not {ready}.")
        # One that leaves may stay at weight 0 until its connections have ended.
        listed = sorted(re.findall(r"-> (10[.0-9]+):80 +Masq +[1-9]", self.node.run("ipvsadm", "-Ln")))
        expect(listed == ready, f"ipvsadm lists {listed} for new connections, not {ready}.")
        say(f"ipvsadm -Ln lists {', '.join(listed)}")
        count = len(before + meanwhile + after)
        say(f"{count} requests, {count} answers; cut off and asked again: {self.repeated}")

    def _until_synced(self) -> Iterator[str]:
        while not any(line["event"] == "sync_finished" for line in self.proxy.news()):
            expect(self.proxy.exit_code is None, f"ipvsproxy ended:\n{self.proxy.text()}")
            yield self.ask()
            time.sleep(PACE_S)

    def stays_after_the_end(self) -> None:
        """SIGTERM ends the proxy, not the service."""
        title("SIGTERM to ipvsproxy: the kernel goes on serving")
        before = self.node.run("ipvsadm", "-Sn")
        code = self.proxy.stop()
        expect(code == 0, f"ipvsproxy ended with exit code {code}:\n{self.proxy.text()}")
        answers = [self.ask() for _ in range(AROUND_A_CHANGE)]
        show_answers(answers)
        expect(self.node.run("ipvsadm", "-Sn") == before, "the virtual servers changed when ipvsproxy ended.")
        expect(takes_turns(answers), f"the answers do not go round: {answers}.")
        say("exit code 0, all virtual servers in place, requests answered as before")


def takes_turns(answers: Sequence[str]) -> bool:
    """Whether each answer comes from the server that answered a whole round before."""
    size = len(set(answers))
    return all(answers[n] == answers[n + size] for n in range(len(answers) - size))


def run_here() -> None:
    """The demo, on this kernel. Raises DemoError and whatever goes wrong on the way."""
    with contextlib.ExitStack() as stack:
        title(f"A node with four pods, and a client in a fifth ({CLIENT}); real HTTP servers")
        cluster = stack.enter_context(Cluster(Networks(pods=(CLUSTER_CIDR,))))
        servers = stack.enter_context(traffic.Servers())
        for address in PODS:
            servers.listen(cluster.add_pod(address, address), address, address, 80, traffic.Transport.TCP)
        servers.start()
        client = cluster.add_pod("client", CLIENT)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ipvsproxy-demo.")))
        manifests = Manifests(folder / "manifests")
        endpoints = {PODS[0]: True, PODS[1]: True, PODS[2]: False}
        manifests.write("service.json", json.dumps(service()))
        manifests.write("endpoints.json", json.dumps(endpoint_slice(endpoints)))
        show_manifests(endpoints)
        proxy = stack.enter_context(start_proxy(cluster.node, folder))
        demo = Demo(cluster, client, manifests, proxy)
        demo.serves_the_service()
        demo.status_is_ipvsadms()
        endpoints[PODS[3]] = True
        demo.follows(f"The endpoint {PODS[3]} comes, while requests go on", endpoints)
        del endpoints[PODS[0]]
        demo.follows(f"The endpoint {PODS[0]} goes, while requests go on", endpoints)
        demo.stays_after_the_end()


@contextlib.contextmanager
def start_proxy(node: Namespace, folder: Path) -> Iterator[Proxy]:
    """ipvsproxy on the node, once its first sync is done."""
    arguments = ["--proxy-mode=ipvs", "--hostname-override", NODE_NAME, "--cluster-cidr", CLUSTER_CIDR]
    title(f"ipvsproxy {' '.join(arguments)} --manifests manifests")
    with start(node, [*arguments, "--manifests", str(folder / "manifests")], folder / "log") as proxy:
        say(sync_sentence(proxy.wait_for_services()))
        addresses = node.run("ip", "-o", "addr", "show", "dev", "kube-ipvs0")
        expect(f" {VIP}/32 " in addresses, f"{VIP} is not bound to kube-ipvs0:\n{addresses}")
        show_command(
            "ip -brief addr show dev kube-ipvs0", node.run("ip", "-brief", "addr", "show", "dev", "kube-ipvs0")
        )
        yield proxy


def program() -> str:
    """The installed ipvsproxy of this Python."""
    return str(Path(sys.executable).with_name("ipvsproxy"))


def sync_sentence(line: Mapping[str, object]) -> str:
    """A log line of a sync for people."""
    return f"ipvsproxy logs sync_finished: {line['operations']} operations in {line['duration_ms']} ms"


def title(sentence: str) -> None:
    """A new step."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if os.environ.get("DEMO_COLOR") else ("", "")
    print(f"\n{bold}■ {sentence}{plain}", flush=True)


def say(sentence: str) -> None:
    """What came out of it."""
    print(f"  → {sentence}", flush=True)


def show_command(command: str, output: str) -> None:
    """A command as typed, and what it printed."""
    print(f"  $ {command}")
    for line in output.splitlines():
        print(f"    {line}")


def show_manifests(endpoints: Mapping[str, bool]) -> None:
    """The Service in a few lines."""
    print(f"  Service default/nginx   {VIP}:80/TCP")
    for address, ready in endpoints.items():
        print(f"    endpoint {address}:80   {'ready' if ready else 'NOT ready'}")


def show_answers(answers: Sequence[str], when: str = "") -> None:
    """Who answered, in order (by the last number of the address), and how often each."""
    order = " ".join(f".{answer.rpartition('.')[2]}" for answer in answers)
    counts = ", ".join(f"{server}: {count}" for server, count in sorted(Counter(answers).items()))
    print(f"  {when:<8}{order or '-'}" if when else f"  {order}", f"  ({counts})" if answers else "", flush=True)


def missing_here() -> list[str]:
    """Tools that the demo calls and this machine does not have."""
    path = f"{os.environ.get('PATH', '')}:{machine.SBIN}"
    return [tool for tool in TOOLS if not shutil.which(tool, path=path)]


def run_where_ipvs_is() -> int:
    """The demo in a machine with IPVS; the exit code. Raises LabError."""
    missing = missing_here()
    if missing:
        raise machine.LabError(
            f"cannot show the demo: this machine lacks {', '.join(missing)}. Run make setup as root."
        )
    print("ipvsproxy demo: one Service, real packets through the kernel's IPVS", flush=True)
    for package in ("ipvsproxy", "tests/lab"):
        compileall.compile_dir(ROOT / package, quiet=2)  # here, because an emulated machine is slow at it
    environment = {"DEMO_COLOR": "1"} if sys.stdout.isatty() and "NO_COLOR" not in os.environ else {}
    command = [sys.executable, str(Path(__file__).resolve()), "--here"]
    out = ROOT / "build" / "demo"
    return machine.run(command, out, timeout_s=TIME_LIMIT_S, env=environment, host_probe=machine.IPVS)


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 if all that was expected was seen."""
    os.chdir(ROOT)
    started = time.monotonic()
    try:
        if argv == ["--here"]:
            run_here()
            return 0
        code = run_where_ipvs_is()
    except (DemoError, AssertionError, OSError, subprocess.SubprocessError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        print(f"\nFAILED: {error}{notes}", flush=True)
        return 1
    except machine.LabError as error:
        print(f"\nFAILED: {error}", flush=True)
        return machine.NO_MACHINE
    if code == 0:
        print(f"\nSUCCESS: everything was as expected ({time.monotonic() - started:.0f} s).", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
