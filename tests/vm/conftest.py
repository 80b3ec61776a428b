"""What the VM tests share: the cluster of tests/lab/hosts.py with one proxy that runs through all of them.

The proxy starts once: under emulation a start costs seconds, a change of its folder a fraction of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Cluster, Namespace
from tests.lab.proxies import Manifests
from tests.lab.traffic import Servers, Transport
from tests.vm.nodes import ProxyNode, proxy_on
from tests.vm.places import A1, A2, A3, B1

PODS = {"a1": A1, "a2": A2, "a3": A3}
PORTS = (8080, 8443, 8053)
"""What Svc of tests/clusters.py makes of ports 80, 443 and 53."""


@pytest.fixture(autouse=True)
def _real(real_kernel: None) -> None:
    """Without a real kernel there is nothing to test here."""


@pytest.fixture(scope="session")
def hosts() -> Iterator[Cluster]:
    """The node with pods a1, a2, a3, the pod b1 on another node, and a client outside."""
    with Cluster() as hosts, Servers() as servers:
        places = [(name, hosts.add_pod(name, *addresses), addresses) for name, addresses in PODS.items()]
        places.append(("b1", hosts.add_remote(*B1), B1))
        hosts.add_outside()
        for name, host, addresses in places:
            for address in addresses:
                for port in PORTS:
                    for transport in (Transport.TCP, Transport.UDP):
                        servers.listen(host, name, address, port, transport)
        servers.start()
        yield hosts


@pytest.fixture(scope="session")
def node(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    """The node with a proxy at work; each test says which Services there are."""
    folder = tmp_path_factory.mktemp("proxy")
    manifests = Manifests(folder / "manifests")
    with proxy_on(hosts.node, folder) as proxy:
        proxy.wait_for("sync_finished")
        yield ProxyNode(hosts, manifests, proxy)
        assert proxy.stop() == 0


@pytest.fixture
def empty_host() -> Iterator[Namespace]:
    """A network namespace without anything."""
    with Namespace("host") as host:
        yield host
