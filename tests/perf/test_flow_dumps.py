"""How often the table of connection tracking is read, on the fake kernel: each time costs what that is large."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.clusters import Cluster, Node, Svc, cluster

SHOP = cluster(Svc("shop", ips=("10.96.0.1",)))
FEWER = cluster(Svc("shop", ips=("10.96.0.1",), endpoints=()))
DNS = Svc("dns", ips=("10.96.255.10", "fd00::a"), ports=((53, "UDP"), (53, "TCP")), node_ports=(30053, 30053))
TWO, ONE = (tuple((f"{net}{n}", True) for net in ("10.244.1.", "fd00:1::") for n in last) for last in ((5, 6), (6,)))


def dns(endpoints: tuple[tuple[str, bool], ...] = TWO, **more) -> Cluster:
    return cluster(msgspec.structs.replace(DNS, endpoints=endpoints, **more))


@pytest.fixture
def dumps() -> Callable[[Cluster], int]:
    """How many the sync of a change makes, of a cluster with a UDP Service on many frontends."""
    node = Node(host=("192.0.2.11", "2001:db8:1::11"))
    node.sync(SHOP | dns())
    node.clock.now += 1

    def count(after: Cluster) -> int:
        before = node.fake.flow_dumps
        node.sync(after)
        return node.fake.flow_dumps - before

    return count


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(FEWER | dns(), id="a TCP endpoint goes"),
        pytest.param(SHOP | dns((*TWO, ("10.244.1.7", True))), id="a UDP endpoint comes"),
        pytest.param(SHOP | dns(created="2027-01-01T00:00:00Z"), id="what nothing depends on changes"),
    ],
)
def test_a_change_that_redirects_no_udp_client_reads_no_connections(dumps, after):
    assert dumps(after) == 0


@pytest.mark.parametrize(
    "after,families",
    [
        pytest.param(SHOP | dns(ONE), 2, id="UDP endpoints of both families go"),
        pytest.param(SHOP | dns((*ONE, TWO[2])), 1, id="a UDP endpoint of one family goes"),
        pytest.param(SHOP | dns(external_ips=("203.0.113.10",)), 1, id="a UDP frontend comes"),
        pytest.param(SHOP | dns(node_ports=()), 2, id="UDP frontends go"),
        pytest.param(SHOP, 2, id="the Service goes"),
    ],
)
def test_a_change_that_redirects_udp_clients_reads_the_connections_of_a_family_once(dumps, after, families):
    assert dumps(after) == families


@pytest.mark.parametrize(
    "found,families",
    [
        pytest.param(SHOP, 0, id="without UDP"),
        pytest.param(SHOP | dns(), 2, id="with UDP of both families"),
        pytest.param(SHOP | dns(ips=("10.96.255.10",), node_ports=()), 1, id="with UDP of one family"),
    ],
)
def test_a_first_sync_reads_the_connections_of_a_family_once(found, families):
    node = Node(host=("192.0.2.11", "2001:db8:1::11"))
    node.sync(found)
    assert node.fake.flow_dumps == families
