"""A node of kubeadm goes from kube-proxy to ipvsproxy and back as docs/migrate.md says, and serves all the time.

The control plane is real but for its kubelets, which kwok plays. Of n1 the containers run, too: in a VM with IPVS runc
runs what the Pod of either DaemonSet says that the API server has there, with the real kube-proxy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.api.node import Objects
from tests.chart.conftest import KUBEADM as RECORDED
from tests.chart.conftest import kubeconfig_of
from tests.chart.guest_node import PODS, VIP
from tests.chart.machine import READY_S, Node, run_by_label, running
from tests.chart.migration import ALL, BACK, KUBEADM, PAGE, Migration, migration_of
from tests.chart.test_installs import replaced
from tests.documented import ROOT
from tests.kube.following import eventually
from tests.lab import programs
from tests.lab.apiserver import HOST_FROM_VM, ControlPlane

pytestmark = pytest.mark.timeout(3000)  # the other VMs of this machine come first

(TEXT,) = re.findall(r"```text\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
SHOWN = {line.removesuffix(" …") for line in TEXT.splitlines()}
"""What a check prints, as the page shows it."""


class Kubelet:
    """The part of n1's kubelet that kwok does not play."""

    def __init__(self, migration: Migration, node: Node) -> None:
        self.ended: list[tuple[str, int]] = []
        self._migration = migration
        self._node = node
        self._pod = ""

    def catch_up(self) -> None:
        """End the Pod that has gone, and start the one that has come."""
        proxies = (self._migration.kube_proxies(), self._migration.release.pods())
        (pod,) = [pods["n1"] for pods in proxies if "n1" in pods]
        if pod["metadata"]["name"] == self._pod:
            return
        if self._pod:
            self.ended.append((self.runs(), self._node.call("stop")))
        self._pod = self._node.place(self._migration.plane, pod)
        self._node.call("start", pod=self._pod)

    def runs(self) -> str:
        """The name of the Pod's first process."""
        facts: str = self._node.call("facts")
        return facts.splitlines()[0].removeprefix("Name:\t")


@pytest.fixture
def migration(cluster: ControlPlane, tmp_path: Path) -> Iterator[Migration]:
    """kube-proxy's ConfigMap says ipvs, and names the API server as the VM sees it."""
    config = (RECORDED / "config.conf").read_text().replace('\nmode: ""', "\nmode: ipvs")
    kubeconfig = kubeconfig_of(f"https://{HOST_FROM_VM}:{cluster.port}")
    with (
        replaced(cluster, "kube-system", "kube-proxy", config_conf=config, kubeconfig_conf=kubeconfig),
        migration_of(cluster, "helm4", tmp_path) as migration,
    ):
        yield migration


@pytest.fixture
def node() -> Iterator[Node]:
    """The VM; in its image is kube-proxy, too, which wants the sysctls of these modules at once."""
    with running() as node:
        node.call("look", argv=["modprobe", "-a", "ip_vs", "nf_conntrack"])
        node.call("add_to_image", program=str(programs.find_program("kube-proxy")))
        yield node


def changes(log: str) -> set[str]:
    """The lines of a check as the page has them: no addresses, and of sets and rules the name alone."""
    lines = [line for line in log.splitlines() if not line.startswith("  ")]
    return {re.sub(r"(?<=NODE-PORT-IPS) .*|:.*", "", line) for line in lines}


def test_from_kube_proxy_to_ipvsproxy_and_back_by_the_page_no_request_fails(
    migration: Migration, node: Node, objects: Objects
):
    kubelet = Kubelet(migration, node)
    steps = iter(KUBEADM)

    def is_served_by(program: str, *addresses: str) -> None:
        """This one hears of a change in the cluster, and tells the kernel."""
        kubelet.catch_up()
        objects.slice("web", *addresses)
        eventually(lambda: node.servers() == {*addresses}, READY_S)
        assert kubelet.runs() == program

    objects.put_service("web", VIP)
    is_served_by("kube-proxy", *PODS[:1])
    node.call("begin_to_ask")

    migration.follow(next(steps))  # kube-proxy learns to step aside
    migration.comes_to(ALL, set())
    is_served_by("kube-proxy", *PODS[:2])
    assert len(kubelet.ended) == 1

    migration.follow(next(steps))  # installed
    migration.follow(next(steps))  # checked, by kwok; now by the container
    code, log = run_by_label(migration.release, node, "check")
    assert (code, changes(log)) == (ExitCode.OK, SHOWN | {"add support entry KUBE-6-NODE-PORT-IPS"}), log

    migration.follow(next(steps))  # switched
    migration.comes_to({"n2", "n3"}, {"n1"})
    is_served_by("ipvsproxy", *PODS)

    migration.follow(step := next(steps))  # verified
    assert run_by_label(migration.release, node, "check") == (ExitCode.OK, "exit code 0\n")
    for words in (shlex.split(command.text.partition(" exec ")[2]) for command in step):
        if words:
            assert node.call("execute", argv=words[2:]).startswith("SERVER")  # behind the name and `--`
    migration.follow(next(steps))  # the others
    migration.comes_to(set(), ALL)
    is_served_by("ipvsproxy", *PODS[:2])

    migration.follow(BACK)
    migration.comes_to({"n1"}, {"n2", "n3"})
    is_served_by("kube-proxy", *PODS)
    assert [name for name, _ in kubelet.ended] == ["kube-proxy", "kube-proxy", "ipvsproxy"]
    assert kubelet.ended[-1][1] == ExitCode.OK

    answers, faults = node.call("end_asking")
    assert faults == []
    assert answers > 100
