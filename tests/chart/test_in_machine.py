"""The chart's Pods as the API server has them after an install, run on a node: containers, rights, mounts, token.

On the API server's side controllers and kwok do what is due; on the node's side, in a VM with IPVS, runc runs what the
Pod on n1 says, from the image's root file system.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.api.node import Objects
from tests.chart.guest_node import PODS, VIP
from tests.chart.machine import READY_S, Node, files_of, pod_on_n1, run_by_label, running
from tests.chart.release import Release, release_of
from tests.documented import documented
from tests.kube.following import eventually
from tests.lab import helm
from tests.lab.apiserver import HOST_FROM_VM, ControlPlane

pytestmark = pytest.mark.timeout(3000)  # the other VMs of this machine come first

CHART = (str(helm.CHART), "--wait", "--timeout=4m")
(EXPLAIN,) = documented("docs/troubleshoot.md", pattern="kubectl .* exec .*")
NET_ADMIN, NET_RAW = 1 << 12, 1 << 13  # include/uapi/linux/capability.h
CONFINED = ("1", "2")
"""NoNewPrivs, and a filter of system calls, as proc(5) has them."""
LEGACY, NFT = (f"--set=config.ipvsproxy.iptablesBackend={backend}" for backend in ("legacy", "nft"))


@pytest.fixture(scope="module")
def machine() -> Iterator[Node]:
    """The VM."""
    with running() as node:
        yield node


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """The node, on which nothing runs that another test has started."""
    yield machine
    machine.call("forget")


@pytest.fixture
def release(cluster: ControlPlane) -> Iterator[Release]:
    with release_of(cluster, "helm4") as release:
        yield release


def install(release: Release, *values: str) -> None:
    address = (f"--set=apiServer.host={HOST_FROM_VM}", f"--set=apiServer.port={release.plane.port}")
    release.do("install", *CHART, *address, "--set=config.clusterCIDR=10.244.0.0/16", *values)


def placed(release: Release, node: Node) -> str:
    """The name of the Pod on n1, which the node can see now."""
    return node.place(release.plane, pod_on_n1(release))


def replaced(release: Release, node: Node) -> None:
    """As with maxSurge 0: the Pod before ends first."""
    assert node.call("stop") == ExitCode.OK
    node.call("start", pod=placed(release, node))


def serves_metrics_at(node: Node) -> set[str]:
    """The ports of the daemon's metrics: the default one and another, by which the two revisions differ."""
    listening = node.call("look", argv=["ss", "--no-header", "--listening", "--numeric", "--tcp"])
    return {port for port in ("10249", "11249") if f":{port} " in listening}


def rights(node: Node) -> tuple[int, str, str]:
    """What the kernel says of the daemon: its capabilities, that it can gain none, that system calls are filtered."""
    found = dict(line.split(":\t") for line in node.call("facts").splitlines() if ":\t" in line)
    assert found["CapBnd"] == found["CapPrm"] == found["CapEff"]
    return int(found["CapEff"], 16), found["NoNewPrivs"], found["Seccomp"]


def cleaned(release: Release, node: Node) -> None:
    """What the chart's clean-up leaves: nothing of ours."""
    code, log = run_by_label(release, node, "clean-up")
    pod_on_n1(release)  # so that the label is gone for all controllers before the next test
    assert code == ExitCode.OK, log
    assert node.call("look", argv=["ipvsadm", "-S", "-n"]) == ""
    for save in ("iptables-nft-save", "iptables-legacy-save", "ip6tables-nft-save"):
        assert "KUBE" not in node.call("look", argv=[save])
    assert "kube-ipvs0" not in node.call("look", argv=["ip", "-brief", "link"])


def test_a_release_its_upgrade_and_the_way_back_lose_no_request(release: Release, node: Node, objects: Objects):
    objects.put_service("web", VIP)
    objects.slice("web", *PODS[:2])
    install(release, "--set=restartOnConfigChange=true")
    node.call("start", pod=placed(release, node))
    assert node.servers() == {*PODS[:2]}
    asked = node.call("ask", count=6)
    assert (set(asked), asked[2:]) == ({*PODS[:2]}, asked[:4])
    listed = node.call("look", argv=["ipvsadm", "-L", "-n"])
    assert node.call("execute", argv=["ipvsproxy", "status", "-L", "-n"]) == listed
    inside = EXPLAIN.filled({"shop/web": "default/web"}).partition(" -- ")[2]
    assert f"{VIP}:80/TCP  cluster IP" in node.call("execute", argv=shlex.split(inside))

    assert rights(node) == (NET_ADMIN | NET_RAW, *CONFINED)

    node.call("begin_to_ask")
    release.do("upgrade", *CHART, "--reuse-values", "--set=config.metricsBindAddress=127.0.0.1:11249")
    replaced(release, node)
    assert (serves_metrics_at(node), node.servers()) == ({"11249"}, {*PODS[:2]})
    objects.slice("web", *PODS[1:])
    eventually(lambda: node.servers() == {*PODS[1:]}, READY_S)
    release.do("rollback", "1", *CHART[1:])
    replaced(release, node)
    assert (serves_metrics_at(node), node.servers()) == ({"10249"}, {*PODS[1:]})
    answers, faults = node.call("end_asking")
    assert faults == []
    assert answers > 100

    assert node.call("stop") == ExitCode.OK
    assert set(node.call("ask", count=4)) == {*PODS[1:]}
    cleaned(release, node)


def test_what_the_chart_gives_is_enough_for_the_legacy_tables(release: Release, node: Node):
    install(release, LEGACY)
    node.call("start", pod=placed(release, node))
    assert ":KUBE-SERVICES " in node.call("look", argv=["iptables-legacy-save"])
    assert node.call("stop") == ExitCode.OK
    cleaned(release, node)


def without(pod: dict[str, Any], capability: str) -> dict[str, Any]:
    """The Pod, its container with one capability less."""
    found = copy.deepcopy(pod)
    (container,) = found["spec"]["containers"]
    container["securityContext"]["capabilities"]["add"].remove(capability)
    return found


@pytest.mark.parametrize(
    "backend, capability",
    [
        pytest.param(LEGACY, "NET_ADMIN", id="legacy tables without NET_ADMIN"),
        pytest.param(LEGACY, "NET_RAW", id="legacy tables without NET_RAW"),
        pytest.param(NFT, "NET_ADMIN", id="nft without NET_ADMIN"),
        pytest.param(NFT, "NET_RAW", id="nft without NET_RAW"),
    ],
)
def test_with_a_capability_less_than_the_chart_gives_the_daemon_ends_and_names_it(
    release: Release, node: Node, backend: str, capability: str
):
    install(release, backend)
    pod = pod_on_n1(release)
    assert node.call("run", pod=placed(release, node), container="init")[0] == ExitCode.OK
    poorer = node.put("poorer", without(pod, capability), files_of(release.plane, pod))
    code, log = node.call("run", pod=poorer, container="ipvsproxy")
    assert code == ExitCode.UNSUPPORTED, log
    assert [line for line in log.splitlines() if line.startswith("Error: ") and capability in line], log
    assert "Traceback" not in log
    cleaned(release, node)
