"""What the VM tests share: the cluster of tests/lab/hosts.py with one proxy that runs through all of them.

The proxy starts once: under emulation a start costs seconds, a change of its folder a fraction of one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hosts import Cluster, Namespace
from tests.vm.nodes import ProxyNode, proxy_node, small_cluster


@pytest.fixture(autouse=True)
def _real(real_kernel: None) -> None:
    """Without a real kernel there is nothing to test here."""


@pytest.fixture(scope="session")
def hosts() -> Iterator[Cluster]:
    """The cluster that most tests share."""
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def node(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    """Its node with a proxy at work; each test says which Services there are.

    Nothing drains there: what one test leaves behind would change under the next one.
    """
    with proxy_node(hosts, tmp_path_factory.mktemp("proxy"), "--ipvs-drain-timeout=0") as node:
        yield node


@pytest.fixture
def empty_host() -> Iterator[Namespace]:
    """A network namespace without anything."""
    with Namespace("host") as host:
        yield host
