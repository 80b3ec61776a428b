"""`diff`, `explain` and `top` on a real kernel: they agree with the daemon and with packets, and change nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, NODE_NAME, OUTSIDE_ADDRESSES, Cluster, Namespace
from tests.lab.proxies import Proxy
from tests.lab.traffic import ask, stream_to
from tests.vm.nodes import (
    FLAGS,
    ProxyNode,
    bound,
    cleaned_up,
    flags_with,
    manifest,
    proxy_node,
    proxy_on,
    rules,
    sets,
    small_cluster,
    virtual_servers,
)
from tests.vm.places import A1, A2, A3, B1, every_family, ready

VIPS = ("10.96.0.20", "2001:db8:96::20")
BALANCER = ("203.0.113.20", "2001:db8:113::20")
WEB = Svc(
    "web",
    VIPS,
    endpoints=ready(A1, A2),
    node_ports=(30080,),
    ingress=tuple((address, "VIP") for address in BALANCER),
    source_ranges=("10.244.0.0/16", "2001:db8:244::/56"),
    external_policy="Local",
)
every_backend = pytest.mark.parametrize("backend", [pytest.param("legacy", marks=pytest.mark.long), "nft"])
# Each start of the program takes ten seconds under emulation: what the others show too is a long test.


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture
def clean(hosts: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Without what another test has left, and leaving nothing, in either flavour of iptables."""
    assert cleaned_up(hosts.node, tmp_path / "before").exit_code == ExitCode.OK
    yield hosts
    assert cleaned_up(hosts.node, tmp_path / "after").exit_code == ExitCode.OK


@pytest.fixture
def served(clean: Cluster, tmp_path: Path) -> Iterator[ProxyNode]:
    """A node whose daemon has done its work and runs on."""
    with proxy_node(clean, tmp_path) as node:
        node.sync(WEB)
        yield node


def looked(host: Namespace, *words: str) -> tuple[int, list[str]]:
    """Exit code and lines of the program in a process of its own."""
    command = [sys.executable, "-m", "ipvsproxy", *words]
    with host.inside():
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines()


def wait_for_services(proxy: Proxy) -> None:
    proxy.wait_until(lambda: any(line["event"] == "sync_finished" and line["services"] for line in proxy.lines()))


def diff(host: Namespace, folder: Path, flags=FLAGS) -> tuple[int, list[str]]:
    return looked(host, "diff", "--manifests", str(folder), *flags)


def explain(node: ProxyNode, target: str, *words: str) -> tuple[int, list[str]]:
    folder = str(node.manifests.folder)
    code, lines = looked(node.host, "explain", target, *words, "--manifests", folder, *FLAGS)
    return code, [" ".join(line.split()) for line in lines]


def state(host: Namespace) -> tuple[object, ...]:
    return virtual_servers(host), bound(host), sets(host), rules(host, 4), rules(host, 6)


def told(folder: Path, *services: Svc) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "services.json").write_text(manifest(*services))
    return folder


# diff


@every_backend
def test_beside_a_daemon_that_has_done_its_work_there_is_no_difference(clean: Cluster, tmp_path, backend):
    flags = flags_with(backend)
    with proxy_on(clean.node, tmp_path, WEB, flags=flags) as proxy:
        wait_for_services(proxy)
        assert diff(clean.node, tmp_path / "manifests", flags) == (ExitCode.OK, [])
        proxy.stop()


def test_what_somebody_has_changed_is_a_line_each_and_a_start_takes_them_away(clean: Cluster, tmp_path):
    host = clean.node
    with proxy_on(host, tmp_path, WEB) as proxy:
        wait_for_services(proxy)
        proxy.stop()
    host.run("ipvsadm", "-E", "-t", f"{VIPS[0]}:80", "-s", "lc")
    host.run("ipvsadm", "-d", "-t", f"{VIPS[0]}:80", "-r", f"{A1[0]}:8080")
    host.run("ip", "addr", "del", f"{VIPS[0]}/32", "dev", "kube-ipvs0")
    host.run("ipset", "del", "KUBE-CLUSTER-IP", f"{VIPS[0]},tcp:80")
    host.set_sysctl("net/ipv4/vs/conntrack", "0")
    damaged = state(host)
    code, lines = diff(host, tmp_path / "manifests")
    assert state(host) == damaged
    assert (code, lines) == (
        ExitCode.DIFFERENT,
        [
            "edit sysctl net.ipv4.vs.conntrack: 0 → 1",
            f"edit virtual server {VIPS[0]}:80/TCP: lc → rr  # default/web",
            f"add real server {A1[0]}:8080 of {VIPS[0]}:80/TCP: weight 1  # default/web",
            f"add address {VIPS[0]}/32  # default/web",
            f"add accept entry KUBE-CLUSTER-IP {VIPS[0]},tcp:80  # default/web",
        ],
    )
    with proxy_on(host, tmp_path, WEB) as proxy:
        wait_for_services(proxy)
        assert diff(host, tmp_path / "manifests") == (ExitCode.OK, [])
        proxy.stop()


@pytest.mark.long
@every_backend
def test_on_a_host_without_anything_all_is_to_be_added_and_nothing_is_there_afterwards(empty_host, tmp_path, backend):
    def tables() -> list[str]:
        names = ("/proc/net/ip_tables_names", "/proc/net/ip6_tables_names")
        return [empty_host.run("sh", "-c", f"cat {name} 2>/dev/null || true") for name in names]

    before = tables()
    code, lines = diff(empty_host, told(tmp_path / "manifests", WEB), flags_with(backend))
    assert code == ExitCode.DIFFERENT
    assert f"add virtual server {VIPS[0]}:80/TCP: rr  # default/web" in lines
    assert {"add IPv4 nat rules", "add IPv6 filter rules", "add link kube-ipvs0: dummy"} <= set(lines)
    assert all(line.startswith(("add ", "edit sysctl ", "  + ")) for line in lines)
    assert (virtual_servers(empty_host), bound(empty_host), sets(empty_host)) == ([], set(), [])
    assert tables() == before


@pytest.mark.long
def test_k08_a_stream_that_drains_is_no_difference(served: ProxyNode):
    with stream_to("a1", served.hosts["a3"], VIPS[0], 80) as talk:
        served.sync(Svc("web", VIPS, endpoints=ready(A2)))
        code, _ = diff(served.host, served.manifests.folder)
        assert code == ExitCode.OK
        assert talk.ask().server == "a1"


# explain


@every_family
def test_explain_tells_who_comes_in_as_packets_do(served: ProxyNode, family):
    """From a pod, which is in the ranges, and from outside, which is not."""
    shown = f"[{BALANCER[family]}]" if family else BALANCER[family]
    code, lines = explain(served, f"{shown}:80", "--from", A3[family])
    assert code == ExitCode.OK
    ends = [line for line in lines if line.startswith("→")]
    assert len(ends) == 1
    assert ends[0].endswith("with its own source address")
    assert ask(served.hosts["a3"], BALANCER[family], 80, aborts=True).server in {"a1", "a2"}
    _, lines = explain(served, f"{shown}:80", "--from", OUTSIDE_ADDRESSES[family])
    assert "→ dropped" in lines
    with pytest.raises(TimeoutError):
        ask(served.hosts["outside"], BALANCER[family], 80, aborts=True)


def test_explain_shows_each_endpoint_with_its_reason_and_each_object_as_it_stands(served: ProxyNode):
    served.sync(
        Svc("web", VIPS, endpoints=(*ready(A1, B1), (A2[0], False)), node_ports=(30080,), external_policy="Local")
    )
    code, lines = explain(served, "default/web")
    assert code == ExitCode.OK
    assert f"{A1[0]}:8080 {NODE_NAME} used used" in lines
    assert any(line.startswith(f"{B1[0]}:8080") and line.endswith("on another node, policy Local") for line in lines)
    assert any(line.startswith(f"{A2[0]}:8080") and line.endswith("not ready") for line in lines)
    assert f"{NODE_ADDRESSES[0]}:30080/TCP node port" in lines
    assert f"ok address {VIPS[0]}/32 on kube-ipvs0" in lines


# top


def test_top_counts_connections_and_names_services(served: ProxyNode):
    """The two looks are a second apart, and a stream stands at both; the daemon tells the names."""
    with stream_to("a1", served.hosts["a3"], VIPS[0], 80):
        code, lines = looked(served.host, "top", "--once", "--interval=1")
    assert code == ExitCode.OK
    rows = {words[0]: words[1:] for words in map(str.split, lines[1:])}
    assert rows[f"{VIPS[0]}:80/TCP"][:3] == ["default/web:p80tcp", "2/2", "1"]
    assert f"[{VIPS[1]}]:80/TCP" in rows
