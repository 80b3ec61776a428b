"""K06: a network plug-in's rule for a pod's hostPort takes what is sent to any address of the node, so VIPs as well.

Ours come first wherever the other rule was put: before the proxy started, or behind or before our jumps while it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster, Namespace
from tests.lab.traffic import ask
from tests.vm.foreign import VERSIONS, foreign_rules
from tests.vm.nodes import FLAGS, proxy_on, rules, small_cluster
from tests.vm.places import B1, every_family, ready

API = Svc(
    "api",
    ("10.96.0.30", "2001:db8:96::30"),
    ((443, "TCP"),),
    ready(B1),
    external_ips=("203.0.113.11", "2001:db8:113::11"),
    ingress=(("203.0.113.10", "VIP"), ("2001:db8:113::10", "VIP")),
)
WAYS = {
    "cluster IP": API.ips,
    "load-balancer IP": tuple(ip for ip, _ in API.ingress),
    "external IP": API.external_ips,
}
OWNER = ("10.244.1.6:8443", "[2001:db8:244:1::6]:8443")
"""The pod with the hostPort, a2."""

every_client = pytest.mark.parametrize(
    "client",
    [
        pytest.param("a3", id="a pod"),
        pytest.param("node", id="the node itself"),
        pytest.param("outside", id="a client outside"),
    ],
)


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A node on which proxies and rules of others come and go."""
    with small_cluster() as hosts:
        yield hosts


@contextlib.contextmanager
def host_port(place: Cluster, *, on_top: bool = False) -> Iterator[None]:
    """The rules of a plug-in."""
    with contextlib.ExitStack() as stack:
        for version, owner in zip(VERSIONS, OWNER, strict=True):
            what = f"-p tcp -m tcp --dport 443 -m addrtype --dst-type LOCAL -j DNAT --to-destination {owner}"
            put = [f"nat {chain} {what}" for chain in ("PREROUTING", "OUTPUT")]
            stack.enter_context(foreign_rules(place.node, version, *put, on_top=on_top))
        yield


@pytest.fixture(
    scope="module",
    params=["there before the proxy", "put behind our jumps", "put before our jumps"],
)
def shared(
    request: pytest.FixtureRequest, place: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The node with the plug-in's rules and a proxy that looks every second at what others have done."""
    folder, flags = tmp_path_factory.mktemp("proxy"), (*FLAGS, "--ipvs-sync-period=1s")
    with contextlib.ExitStack() as stack:
        if request.param == "there before the proxy":
            stack.enter_context(host_port(place))
        proxy = stack.enter_context(proxy_on(place.node, folder, API, flags=flags))
        proxy.wait_for_services()
        if request.param == "put behind our jumps":
            stack.enter_context(host_port(place))
        if request.param == "put before our jumps":
            stack.enter_context(host_port(place, on_top=True))
            while not all(ours_are_first(place.node, version) for version in VERSIONS):
                proxy.wait_for("audit_finished")
        yield place
        assert proxy.stop() == ExitCode.OK


def ours_are_first(host: Namespace, version: int) -> bool:
    """Whether our jumps stand on top where the plug-in's rules are."""
    nat = rules(host, version)["nat"]
    return all(nat[chain][0].endswith("-j KUBE-SERVICES") for chain in ("PREROUTING", "OUTPUT"))


@every_family
@every_client
@pytest.mark.parametrize("way", WAYS)
def test_k06_a_service_is_reached_although_a_host_port_has_the_same_number(shared, client, way, family):
    assert ask(shared[client], WAYS[way][family], 443).server == "b1"


@every_family
@every_client
def test_k06_the_host_port_is_reached_at_the_nodes_own_address(shared, client, family):
    assert ask(shared[client], NODE_ADDRESSES[family], 443).server == "a2"
