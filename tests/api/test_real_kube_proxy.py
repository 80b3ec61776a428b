"""The real kube-proxy in the VM, given random clusters: the imitation that other tests compare us with does the same.

So what docs/differences.md says of kube-proxy is so for more than the recordings, and our plan differs by its rows.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ipvsproxy import dry_run
from ipvsproxy.config.command_line import Plan, parse_command_line
from ipvsproxy.config.types import PlanFormat
from ipvsproxy.status import wanted
from tests.golden.comparison import normalised, one_sided, sections
from tests.golden.differences import meant_differences, placeholder_values
from tests.golden.given import Given, Item
from tests.golden.upstream import recorded
from tests.lab import machine, programs
from tests.lab.apiserver import ADMIN_TOKEN, HOST_FROM_VM, ControlPlane, running
from tests.random_clusters import FLAGS, node, services

pytestmark = pytest.mark.long

OUT = Path(__file__).resolve().parents[2] / "build" / "kube-proxy"
CLUSTERS = 6
SERVICES = 25
LIMIT_S = 3000.0  # with the wait for another VM of this machine
MACHINE_S = 1800.0
NETWORKS = "10.96.0.0/16,2001:db8:96::/112"
TAKEN = (
    "203.0.113.10", "203.0.113.11", "203.0.113.12", "2001:db8:113::10", "2001:db8:113::11", "192.0.2.11",
    "2001:db8:1::11", "198.51.100.50", "192.0.2.12", "2001:db8:1::12", "10.244.2.9", "2001:db8:244:2::9", "198.18.0.20",
)  # fmt: skip
"""Of what Services name outside: what an API server lets them."""
FILES = {
    PlanFormat.IPVSADM: "ipvsadm.txt",
    PlanFormat.ADDRESSES: "addresses.txt",
    PlanFormat.IPSET: "ipset.txt",
    PlanFormat.IPTABLES: "iptables.txt",
    PlanFormat.IP6TABLES: "ip6tables.txt",
}
ZONE = "topology.kubernetes.io/zone"
COMMON = ("--proxy-mode=ipvs", "--hostname-override=n1")
ADDRESSES = "".join(
    f"address add {address}/{length} dev eth0 nodad\n"
    for address, length in (("192.0.2.11", 24), ("198.51.100.11", 24), ("2001:db8:1::11", 64))
)
ROWS = meant_differences()


def drawn(cluster: int) -> tuple[list[Item], list[str]]:
    """A cluster with the flags of a kube-proxy: the same one in each run. No two Services want the same port.

    Nor the same cluster IP, also in two clusters: a server takes a moment to let one go.
    """
    found: list[tuple[list[Item], list[str]]] = []
    numbers = range(2 + cluster * SERVICES, 2 + (cluster + 1) * SERVICES)
    each = st.tuples(*(services(number, TAKEN, port=80 + number) for number in numbers))

    @seed(cluster)
    @settings(max_examples=2, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(each, st.tuples(*map(st.sampled_from, FLAGS[:-1])))
    def collect(items: Sequence[list[Item]], words: Sequence[str]) -> None:
        found.append(([item for some in items for item in some], [word for flag in words for word in flag.split()]))

    collect()
    return found[-1]  # the first one is the simplest there is


class Recorded:
    """One cluster, and what the real kube-proxy made of it."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.folder = folder
        self.flags = flags

    @functools.cached_property
    def items(self) -> list[Item]:
        """What the API server had."""
        found: list[Item] = json.loads((self.folder / "manifests" / "all.json").read_text())["items"]
        return found

    def lines(self, plan_format: PlanFormat) -> list[str]:
        return list(normalised((self.folder / FILES[plan_format]).read_text().splitlines()))

    def command(self) -> Plan:
        words = ["plan", "-o", "json", "--manifests", str(self.folder / "manifests"), *COMMON, *self.flags]
        found = parse_command_line([*words, f"--node-addresses={','.join(self.node_addresses())}"])
        assert isinstance(found, Plan)
        return found

    def node_addresses(self) -> list[str]:
        """The host's, as `plan` takes them: those of the Node object first, and none that plays no part."""
        told = [entry["address"] for entry in node("n1", 11)["status"]["addresses"]]
        there = [str(address) for address in self.host() if not (address.is_loopback or address.is_link_local)]
        return sorted(there, key=lambda address: address not in told)

    def host(self) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        words = (self.folder / "node.txt").read_text().split()
        return [ipaddress.ip_interface(word).ip for word in words if "/" in word]

    def given(self) -> Given:
        command = self.command()
        families = tuple(sorted(command.options.families))
        return Given(items=self.items, host=self.host(), config=command.config, families=families)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose Services have the addresses of our random ones."""
    folder = tmp_path_factory.mktemp("plane")
    with running(folder, service_cluster_ip_range=NETWORKS) as plane:
        yield plane


@pytest.fixture(scope="module")
def recordings(plane: ControlPlane) -> list[Recorded]:
    """What the real one does to each cluster."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    kubeconfig = plane.write_kubeconfig(OUT / "kubeconfig", {"token": ADMIN_TOKEN}, HOST_FROM_VM)
    program = programs.find_program("kube-proxy")
    recorder = f"exec {sys.executable} -m tests.lab.recorder {program} {OUT}"
    script = f"printf '{ADDRESSES}' | ip -batch - && {recorder}"
    codes: list[int] = []

    def run() -> None:
        shape = machine.Shape(network=True)
        codes.append(machine.run(["/bin/sh", "-c", script], OUT, shape=shape, timeout_s=MACHINE_S))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        found = []
        for number in range(CLUSTERS):
            items, flags = drawn(number)
            make(plane, items)
            one = Recorded(OUT / str(number), flags)
            (one.folder / "manifests").mkdir(parents=True)
            put(one.folder / "flags", [*COMMON, f"--kubeconfig={kubeconfig}", "--ipvs-sync-period=5s", *flags])
            wait_for(one.folder / "serving", codes)
            # Not before: it may never learn of a zone that its Node has from the start (spec: change tracking, 1.37.2).
            plane.kubectl("label", "nodes", "--all", f"{ZONE}=a")
            put(one.folder / "settled", [])
            wait_for(one.folder / "done", codes)
            listed = plane.kubectl("get", "nodes,services,endpointslices", "--all-namespaces", "-o", "json")
            (one.folder / "manifests" / "all.json").write_text(listed)
            assert sum(item["kind"] == "Service" for item in one.items) > SERVICES
            found.append(one)
        return found
    finally:
        (OUT / "stop").touch()
        thread.join()


def put(path: Path, words: Sequence[str]) -> None:
    """Write a file that is there as a whole or not at all."""
    unfinished = path.with_suffix(".next")
    unfinished.write_text("\n".join(words))
    unfinished.rename(path)


def wait_for(path: Path, codes: Sequence[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert not codes, f"the machine ended with {codes}"
        assert time.monotonic() < deadline, path
        time.sleep(0.2)


def as_a_server_takes_it(item: Item) -> Item:
    """The same where an API server wants more of a Service, or less, than kube-proxy does."""
    if item["kind"] != "Service":
        return item
    spec = {
        **item["spec"],
        "ipFamilyPolicy": "PreferDualStack" if len(item["spec"]["clusterIPs"]) > 1 else "SingleStack",
    }
    if spec["type"] == "ClusterIP" and not spec["externalIPs"]:
        del spec["externalTrafficPolicy"]
    return {**item, "spec": spec}


def make(plane: ControlPlane, items: Sequence[Item]) -> None:
    """Have these objects in the API server and no others but its own."""
    for kind in ("services", "endpointslices"):
        others = "--field-selector=metadata.name!=kubernetes"
        plane.kubectl("delete", kind, "--namespace=default", others, "--wait=false")
    for item in (node("n1", 11), node("n2", 12), *items):
        plane.apply(as_a_server_takes_it(item))
        plane.put_status(item)
    plane.kubectl("label", "nodes", "--all", f"{ZONE}-")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(CLUSTERS))
def test_the_imitation_of_kube_proxy_does_what_the_real_one_does_with_a_random_cluster(
    recordings: list[Recorded], number: int
):
    real = recordings[number]
    for plan_format, lines in recorded(real.given()).items():
        ours, theirs = sections(sorted_rules(normalised(lines))), sections(sorted_rules(real.lines(plan_format)))
        assert ours == theirs, (plan_format, real.flags)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(CLUSTERS))
def test_plan_says_what_the_real_kube_proxy_does_but_for_the_differences_page(recordings: list[Recorded], number: int):
    real = recordings[number]
    command = real.command()
    state, _ = dry_run.plan(command.config, command.options)
    values = placeholder_values(real.given(), real.lines)
    unexplained = [
        (plan_format, side, line)
        for plan_format in FILES
        for line, side in one_sided(list(wanted.FORMATS[plan_format](state)), real.lines(plan_format))
        if not any(row.covers(plan_format, line, side, values) for row in ROWS)
    ]
    assert unexplained == []


def sorted_rules(lines: Iterator[str] | Sequence[str]) -> list[str]:
    """With the rules in order that stand in none: kube-proxy writes them in that of a map."""
    found = list(lines)
    places = [place for place, line in enumerate(found) if line.startswith("-A KUBE-IPVS-OUT-FILTER ")]
    for place, line in zip(places, sorted(found[place] for place in places), strict=True):
        found[place] = line
    return found
