"""A DNS cache on the node (K47), with packets: beside the DNS Service, and in its place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import Cluster, Namespace
from tests.lab.traffic import Transport, ask, serving
from tests.vm.nodes import FLAGS, bound, cleaned_up, proxy_on, sets, small_cluster, virtual_servers
from tests.vm.places import A1, A2

TRANSPORTS = (Transport.UDP, Transport.TCP)
CACHE, DNS_IP, WEB_IP = "169.254.20.10", "10.96.0.10", "10.96.0.20"
DNS = Svc("dns", (DNS_IP,), ((53, "UDP"), (53, "TCP")), ((A1[0], True),))
WEB = Svc("web", (WEB_IP,), endpoints=((A2[0], True),))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """The cluster, with the cache's link and its own address on the node."""
    with small_cluster() as hosts:
        hosts.node.ip("link add nodelocaldns type dummy", f"addr add {CACHE}/32 dev nodelocaldns")
        yield hosts


def cache_at(node: Namespace, *addresses: str) -> list[tuple[Namespace, str, str, int, Transport]]:
    """Where the cache answers, as `serving` takes it."""
    return [(node, "cache", address, 53, transport) for address, transport in product(addresses, TRANSPORTS)]


def answers(hosts: Cluster, address: str) -> set[str]:
    """Who answers a pod, and the node itself, at port 53 of this address."""
    return {ask(hosts[name], address, 53, transport).server for name, transport in product(("a3", "node"), TRANSPORTS)}


def traces(node: Namespace, address: str) -> list[str]:
    """Every virtual server, bound address and set entry with this address in it."""
    return [line for line in (*virtual_servers(node), *bound(node), *sets(node)) if address in line]


def test_k47_a_cache_at_an_address_of_its_own_answers_beside_the_service(hosts, tmp_path):
    with serving(*cache_at(hosts.node, CACHE)), proxy_on(hosts.node, tmp_path, DNS, WEB, flags=FLAGS) as proxy:
        proxy.wait_for_services()
        assert answers(hosts, CACHE) == {"cache"}
        assert answers(hosts, DNS_IP) == {"a1"}
        assert traces(hosts.node, CACHE) == []
        assert proxy.stop() == 0
    assert CACHE in hosts.node.run("ip", "-o", "addr", "show", "dev", "nodelocaldns")


def test_k47_an_excluded_cluster_ip_is_the_caches_until_it_is_excluded_no_more(hosts, tmp_path):
    excluded = (*FLAGS, f"--ipvs-exclude-cidrs={DNS_IP}/32")
    assert cleaned_up(hosts.node, tmp_path / "before").exit_code == ExitCode.OK  # of what the test before has left
    hosts.node.ip(f"addr add {DNS_IP}/32 dev nodelocaldns")
    cache = cache_at(hosts.node, CACHE, DNS_IP)
    with serving(*cache), proxy_on(hosts.node, tmp_path, DNS, WEB, flags=excluded) as proxy:
        proxy.wait_for_services()
        assert traces(hosts.node, DNS_IP) == []
        assert answers(hosts, DNS_IP) == answers(hosts, CACHE) == {"cache"}
        assert ask(hosts["a3"], WEB_IP, 80).server == "a2"
        assert proxy.stop() == 0
    hosts.node.ip(f"addr del {DNS_IP}/32 dev nodelocaldns")
    with proxy_on(hosts.node, tmp_path, DNS, WEB, flags=FLAGS) as proxy:
        assert proxy.wait_for_services()["refused"] == 0
        assert answers(hosts, DNS_IP) == {"a1"}
        assert proxy.stop() == 0
