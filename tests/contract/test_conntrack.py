"""What `kernel/api.py` promises of Conntrack, on the fake and on the real kernel."""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import pytest

from ipvsproxy.kernel.api import Conntrack
from ipvsproxy.kernel.conntrack import ZONE, NetlinkConntrack
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket, attribute
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.flows import PackedEndpoint, UdpFlow
from tests.builders import flow, packed
from tests.lab.flows import OldKernelSocket, create

DNS, DNS6 = packed("10.96.0.10", 53), packed("fd00:10:96::10", 53)
OTHER, OTHER6 = packed("10.96.0.11", 53), packed("fd00:10:96::11", 53)
NODE_PORT = packed("192.0.2.11", 30053)
A, B = packed("10.244.1.5", 8053), packed("10.244.1.6", 8053)
A6, B6 = packed("fd00:10:244::5", 8053), packed("fd00:10:244::6", 8053)


class Places(NamedTuple):
    """Two frontends, and two endpoints of which the second has left."""

    frontend: PackedEndpoint
    other: PackedEndpoint
    here: PackedEndpoint
    gone: PackedEndpoint


every_family = pytest.mark.parametrize(
    "at", [pytest.param(Places(DNS, OTHER, A, B), id="IPv4"), pytest.param(Places(DNS6, OTHER6, A6, B6), id="IPv6")]
)


class Table:
    """Connection tracking's table, and the edge to it."""

    def __init__(self, fake: FakeKernel, conntrack: Conntrack) -> None:
        self.conntrack = conntrack
        self._fake = fake
        self._numbers = itertools.count(1)
        self._ports = itertools.count(1024)

    def add(self, destination: PackedEndpoint, server: PackedEndpoint) -> UdpFlow:
        """One more client's flow; without a number, which is the kernel's to give."""
        client = packed("10.244.9.9" if len(destination) == 6 else "fd00:10:244::99", next(self._ports))
        return self.put(UdpFlow(client, destination, server))

    def put(self, added: UdpFlow) -> UdpFlow:
        """The same with a client to choose."""
        if isinstance(self.conntrack, NetlinkConntrack):
            assert create(self.conntrack.netlink, [added]) == [0]
        else:
            self._fake.flows.append(msgspec.structs.replace(added, number=next(self._numbers)))
        return added

    @property
    def flows(self) -> set[UdpFlow]:
        """Every flow to our frontends."""
        found = [
            *self.conntrack.stale(dict.fromkeys((DNS, OTHER, NODE_PORT), ())),
            *self.conntrack.stale(dict.fromkeys((DNS6, OTHER6), ())),
        ]
        return without_number(found)


def without_number(flows: Iterable[UdpFlow]) -> set[UdpFlow]:
    return {msgspec.structs.replace(each, number=0) for each in flows}


@pytest.fixture
def table(pick: Callable, fake_kernel: FakeKernel) -> Table:
    return Table(fake_kernel, pick(fake_kernel.kernel.conntrack, NetlinkConntrack))


def test_an_empty_table_has_no_stale_flow(table):
    assert table.conntrack.stale({DNS: (A,)}) == []


def test_k41_the_table_says_how_full_it_is(table):
    table.add(DNS, A)
    before = table.conntrack.usage()
    table.add(DNS, B)
    after = table.conntrack.usage()
    assert after.entries > before.entries
    assert after.limit == before.limit > after.entries


def test_without_frontends_nothing_is_looked_for(table):
    table.add(DNS, B)
    assert table.conntrack.stale({}) == []


@every_family
def test_a_flow_is_stale_if_its_server_may_not_answer_for_its_destination(table, at):
    table.add(at.frontend, at.here)
    lost = [table.add(at.frontend, at.gone), table.add(at.frontend, at.frontend)]
    table.add(at.other, at.gone)
    assert without_number(table.conntrack.stale({at.frontend: {at.here}})) == set(lost)


@every_family
def test_flows_to_several_frontends_come_from_one_call(table, at):
    lost = [table.add(at.frontend, at.gone), table.add(at.other, at.here)]
    table.add(at.frontend, at.here)
    table.add(at.other, at.gone)
    found = without_number(table.conntrack.stale({at.frontend: {at.here}, at.other: {at.gone}}))
    assert found == set(lost)


def test_frontends_of_other_addresses_and_ports_come_from_one_call(table):
    lost = [table.add(DNS, B), table.add(NODE_PORT, B)]
    assert without_number(table.conntrack.stale({DNS: {A}, NODE_PORT: {A}})) == set(lost)


@pytest.mark.parametrize(
    "destination",
    [
        pytest.param(packed("10.96.0.10", 54), id="another port of the address"),
        pytest.param(packed("10.96.0.11", 53), id="the port at another address"),
    ],
)
def test_a_frontend_is_its_address_and_its_port(table, destination):
    table.add(destination, B)
    assert table.conntrack.stale({DNS: ()}) == []


@every_family
def test_a_deleted_flow_is_gone_and_no_other(table, at):
    kept = [table.add(at.frontend, at.here), table.add(at.other, at.gone)]
    table.add(at.frontend, at.gone)
    assert table.conntrack.delete(table.conntrack.stale({at.frontend: {at.here}})) == [0]
    assert table.flows == set(kept)


def test_a_flow_that_is_gone_answers_enoent(table):
    table.add(DNS, B)
    found = table.conntrack.stale({DNS: ()})
    assert table.conntrack.delete(found + found) == [0, errno.ENOENT]


def test_a_newer_flow_of_the_same_ends_is_not_taken_for_the_one_that_was_found(table):
    old = table.add(DNS, B)
    found = table.conntrack.stale({DNS: (A,)})
    table.conntrack.delete(found)
    new = table.put(msgspec.structs.replace(old, server=A))
    assert table.conntrack.delete(found) == [errno.ENOENT]
    assert table.flows == {new}


def test_no_flows_have_no_answers(table):
    assert table.conntrack.delete([]) == []


def test_more_flows_than_one_batch_takes_are_found_and_deleted(table):
    flows = [table.add(DNS, B if n % 2 else A) for n in range(450)]
    found = table.conntrack.stale({DNS: {A}})
    assert table.conntrack.delete(found) == [0] * 225
    assert table.flows == set(flows[::2])


# What only a real kernel has: other protocols and zones, and ways to ask it for less.


@pytest.fixture
def real_table(
    table: Table,
    real_kernel: None,  # noqa: ARG001  # the fake has UDP in one zone only
) -> NetlinkConntrack:
    assert isinstance(table.conntrack, NetlinkConntrack)
    return table.conntrack


@pytest.fixture
def unfiltered(
    network_namespace: None,  # noqa: ARG001  # whose table it reads
) -> Iterator[NetlinkConntrack]:
    conntrack = NetlinkConntrack(OldKernelSocket(NETLINK_NETFILTER, "the table"))
    yield conntrack
    conntrack.close()


@every_family
def test_without_the_kernels_filter_the_same_is_found(real_table, unfiltered, at):
    client = (packed("10.244.9.9", 0) if len(at.frontend) == 6 else packed("fd00:10:244::99", 0))[:-1]
    pairs = itertools.product((at.frontend, at.other), (at.frontend, at.here, at.gone))
    flows = [UdpFlow(client + bytes([number]), *pair) for number, pair in enumerate(pairs)]
    for protocol in (Protocol.UDP, Protocol.TCP):
        assert set(create(real_table.netlink, flows, protocol)) == {0}
    for answerers, expected in (
        ({at.frontend: (at.here,)}, 2),
        ({at.frontend: (at.here,), at.other: ()}, 5),
        ({at.gone: ()}, 0),
    ):
        found = set(real_table.stale(answerers))
        assert found == set(unfiltered.stale(answerers))
        assert len(found) == expected


def test_flows_of_other_protocols_are_left_alone(real_table, unfiltered):
    create(real_table.netlink, [flow("10.244.1.9:999", "10.96.0.10:53", "10.244.1.6:8053")], Protocol.TCP)
    create(real_table.netlink, [flow("10.244.1.9:999", "10.96.0.10:53", "10.244.1.6:8053")], Protocol.SCTP)
    assert real_table.stale({DNS: ()}) == unfiltered.stale({DNS: ()}) == []


def test_flows_of_other_zones_are_left_alone(real_table):
    """IPVS knows the zone 0 only: what others keep in theirs is not its doing."""
    numbers = create(
        real_table.netlink,
        [flow("10.244.1.9:999", "10.96.0.10:53", "10.244.1.6:8053")],
        more=attribute(ZONE, struct.pack(">H", 7)),
    )
    assert numbers == [0]
    assert real_table.stale({DNS: ()}) == []


@pytest.mark.parametrize(
    "answerers,told",
    [
        pytest.param({DNS: (A,)}, 0, id="one frontend"),
        pytest.param({DNS: (A,), packed("10.96.0.11", 54): (A,)}, 1, id="frontends without anything in common"),
        pytest.param({DNS: (A,), packed("10.96.0.12", 53): (A,)}, 1, id="frontends with one port"),
        pytest.param({DNS: (A,), packed("10.96.0.10", 54): (A,)}, 0, id="frontends with one address"),
    ],
)
def test_the_kernel_tells_only_what_agrees_with_all_that_the_frontends_have_in_common(real_table, answerers, told):
    create(real_table.netlink, [flow("10.244.1.9:1", "10.96.0.11:53", "10.244.1.6:8053")])
    create(real_table.netlink, [flow("10.244.1.9:1", "10.96.0.10:53", "10.244.1.6:8053")], Protocol.TCP)
    looked_at = []

    class Listening(NetlinkSocket):
        def select(self, message_type, body, pick):
            return super().select(message_type, body, lambda *where: looked_at.append(where) or pick(*where))

    listening = NetlinkConntrack(Listening(NETLINK_NETFILTER, "the table"))
    listening.stale(answerers)
    listening.close()
    assert len(looked_at) == told
