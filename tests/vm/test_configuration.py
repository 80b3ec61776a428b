"""The configuration file is followed: a ConfigMap's swap and SIGHUP start the daemon anew in place, under traffic."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_NAME, Cluster
from tests.lab.proxies import Proxy, start
from tests.lab.traffic import ask, stream_to
from tests.vm.nodes import manifest, small_cluster
from tests.vm.places import A1, A2

VIP = "10.96.0.20"
WEB = Svc("web", (VIP,), endpoints=((A1[0], True), (A2[0], True)))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    with small_cluster() as hosts:
        yield hosts


class Volume:
    """A ConfigMap's volume with one file, which changes as the kubelet does it: a link is renamed over."""

    def __init__(self, folder: Path, manifests: Path) -> None:
        self._folder = folder
        self._manifests = manifests
        self._versions = 0
        folder.mkdir()
        self.file = folder / "config.conf"
        self.file.symlink_to("..data/config.conf")

    def write(self, tcp_timeout: str) -> None:
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        (version / "config.conf").write_text(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
            "kind: KubeProxyConfiguration\n"
            "mode: iptables\n"
            "clusterCIDR: 10.244.0.0/16,2001:db8:244::/56\n"
            f"ipvs: {{tcpTimeout: {tcp_timeout}}}\n"
            f"ipvsproxy: {{manifests: {self._manifests}, iptablesBackend: legacy}}\n"
        )
        (self._folder / "..data_tmp").symlink_to(version.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")


def tcp_timeout_of(hosts: Cluster) -> int:
    """What the kernel has, in seconds. Not the scheduler: while that is changed the kernel has none for a moment."""
    return int(hosts.node.run("ipvsadm", "-L", "--timeout").rpartition(":")[2].split()[0])


def knock_until(proxy: Proxy, hosts: Cluster, event: str) -> None:
    """New connections all the time, until the proxy has logged this event; raises what befalls one of them."""
    while not any(line["event"] == event for line in proxy.news()):
        assert proxy.exit_code is None, proxy.text()
        assert ask(hosts["outside"], VIP, 80, aborts=True).server in {"a1", "a2"}
    proxy.wait_for(event)


def test_a_new_file_and_a_signal_restart_in_place_and_no_client_feels_it(hosts: Cluster, tmp_path: Path):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "services.json").write_text(manifest(WEB))
    volume = Volume(tmp_path / "volume", tmp_path / "manifests")
    volume.write("901s")
    argv = [f"--config={volume.file}", f"--hostname-override={NODE_NAME}", "--proxy-mode=ipvs"]
    with start(hosts.node, argv, tmp_path / "log") as proxy:
        proxy.wait_for("mode_in_file_overridden")
        proxy.wait_for_services()
        with stream_to("a1", hosts["outside"], VIP, 80) as talk:
            volume.write("902s")
            knock_until(proxy, hosts, "restarting")
            knock_until(proxy, hosts, "starting")
            proxy.wait_until(lambda: tcp_timeout_of(hosts) == 902)

            volume.write("903s")
            knock_until(proxy, hosts, "restarting")
            volume.write("'no such'")  # by the time it starts anew
            knock_until(proxy, hosts, "configuration_refused")
            proxy.wait_until(lambda: tcp_timeout_of(hosts) == 903)
            volume.write("902s")
            knock_until(proxy, hosts, "starting")
            proxy.wait_until(lambda: tcp_timeout_of(hosts) == 902)

            volume.write("'no such'")
            knock_until(proxy, hosts, "configuration_refused")
            proxy.send(signal.SIGHUP)
            knock_until(proxy, hosts, "configuration_refused")
            assert tcp_timeout_of(hosts) == 902

            volume.write("902s")
            proxy.send(signal.SIGHUP)
            knock_until(proxy, hosts, "restarting")
            knock_until(proxy, hosts, "starting")
            assert proxy.wait_for_services()["operations"] == 0
            assert talk.ask().server == "a1"
        assert proxy.stop() == 0
