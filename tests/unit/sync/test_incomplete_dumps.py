"""IPVS does not tell when its table changed under a dump, which then misses entries: none may be left behind (K48)."""

from __future__ import annotations

import pytest

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import Kind, State, VirtualServer, VirtualServerKey
from ipvsproxy.model.real_servers import identity, split
from tests.builders import vs_key
from tests.clusters import Cluster, Node, Svc, cluster

HOST = "192.0.2.11"
VIP, OWN, NODE_PORT = vs_key("10.96.0.20", 80), vs_key(HOST, 80), vs_key(HOST, 30080)
WEB = Svc("web", external_ips=(HOST,), node_ports=(30080,))
OTHER = Svc("other", ("10.96.0.21",))
KEYS = [
    pytest.param(VIP, id="cluster IP"),
    pytest.param(OWN, id="own address"),
    pytest.param(NODE_PORT, id="node port"),
]


class Dumps:
    """The dumps of a fake kernel's IPVS, which miss one virtual server for as long as the test says."""

    def __init__(self, fake: FakeKernel, key: VirtualServerKey) -> None:
        self.miss = True
        self._key = key
        self._read = fake.kernel.ipvs.read
        fake.kernel.ipvs.read = self.read  # type: ignore[method-assign]

    def read(self) -> State:
        found = self._read()
        for kind in found if self.miss else ():
            found[kind].pop(self._key, None)
        return found


def served(now: Cluster) -> State:
    node = Node(host=(HOST,))
    node.sync(now)
    return node.fake.state


@pytest.fixture
def node() -> Node:
    made = Node(host=(HOST,))
    made.sync(cluster(WEB, OTHER))
    return made


@pytest.mark.parametrize("key", KEYS)
def test_a_start_that_does_not_see_a_virtual_server_deletes_it_with_its_traces(node, key):
    Dumps(node.fake, key)
    Node(node.fake, host=(HOST,)).sync(cluster(OTHER))
    assert node.fake.state == served(cluster(OTHER))


def test_a_start_that_does_not_see_a_virtual_server_keeps_its_entry_where_an_interface_has_got_its_address():
    node = Node()
    node.sync(cluster(WEB, OTHER))
    Dumps(node.fake, OWN)
    Node(node.fake, host=(HOST,)).sync(cluster(WEB, OTHER))
    assert node.fake.state == served(cluster(WEB, OTHER))


@pytest.mark.parametrize("key", KEYS)
def test_a_virtual_server_that_two_dumps_missed_goes_with_its_service(node, key):
    dumps = Dumps(node.fake, key)
    node.reconciler.audit(in_full=True)  # it is taken for gone, made anew, found to be there, and in doubt
    node.sync(cluster(OTHER))  # in doubt, so read again first
    dumps.miss = False
    node.reconciler.audit(in_full=True)
    assert node.fake.state == served(cluster(OTHER))


def test_a_node_port_that_two_dumps_missed_goes_with_the_nodes_address(node):
    dumps = Dumps(node.fake, NODE_PORT)
    node.reconciler.audit(in_full=True)
    node.has("192.0.2.12")
    node.sync()
    dumps.miss = False
    node.reconciler.audit(in_full=True)
    assert NODE_PORT not in node.fake.state[Kind.VIRTUAL_SERVER]


def test_a_virtual_server_that_drains_is_not_given_up_because_a_dump_missed_it(node):
    (record,) = split(node.fake.state[Kind.REAL_SERVER][VIP], 4)
    node.fake.connections[VIP, identity(record)] = 1
    node.sync(cluster(OTHER))
    assert node.reconciler.sync().draining == 1
    dumps = Dumps(node.fake, VIP)
    node.reconciler.audit(in_full=True)
    dumps.miss = False
    assert VIP.address in node.fake.state[Kind.ADDRESS]
    node.fake.connections.clear()
    node.pass_time(2000)
    assert node.fake.state == served(cluster(OTHER))


def test_somebody_elses_virtual_server_at_a_port_that_was_never_ours_stays(node):
    theirs = vs_key("192.0.2.12", 30080)
    node.fake.state[Kind.VIRTUAL_SERVER][theirs] = VirtualServer("rr")
    node.fake.state[Kind.REAL_SERVER][theirs] = b""
    node.sync(cluster(OTHER))
    assert theirs in node.fake.state[Kind.VIRTUAL_SERVER]


def test_a_deletion_of_what_is_seen_costs_no_more_than_before(node):
    """Three virtual servers, three entries, the address and its own entry; and one question who is connected."""
    assert node.sync(cluster(OTHER)) == 9
