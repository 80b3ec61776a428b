"""Over any history of clusters and any table of connection tracking: just the stale UDP flows go (K10, K20)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model import real_servers
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.flows import UdpFlow
from ipvsproxy.model.kernel_objects import Kind
from tests.builders import packed
from tests.property.test_sync import (
    BALANCER_IPS,
    ENDPOINTS,
    EXTERNAL_IPS,
    HOSTS,
    IPS,
    World,
    clusters,
    histories,
    live,
    node_in,
    some_of,
    worlds,
)

# More of what is often served, so that not every example is about strangers.
FRONTENDS = (*IPS, *IPS, *EXTERNAL_IPS, *BALANCER_IPS, *HOSTS)
PORTS = (53, 53, 53, 30080, 80)
Served = dict[bytes, set[bytes]]


@st.composite
def flows(draw):
    """From anybody to a frontend or to what looks like one, answered by an endpoint, by itself or by a stranger."""
    is_ipv6 = draw(st.booleans())
    to, by = (st.sampled_from([ip for ip in ips if (":" in ip) is is_ipv6]) for ips in (FRONTENDS, ENDPOINTS))
    destination = packed(draw(to), draw(st.sampled_from(PORTS)))
    server = draw(st.one_of(st.just(destination), st.builds(packed, by, st.sampled_from((8053, 8080)))))
    client = packed("fd00::99" if is_ipv6 else "10.244.9.9", draw(st.integers(1, 9)))
    return UdpFlow(client, destination, server, draw(st.integers(0, 1000)))


def tables():
    return st.lists(flows(), max_size=12, unique=True)


def served(fake: FakeKernel) -> Served:
    """For each UDP frontend that the kernel serves, its endpoints."""
    return {
        packed_key(key): {record[:-3] for record in real_servers.split(blob, len(key.address))}
        for key, blob in fake.state[Kind.REAL_SERVER].items()
        if key.protocol is Protocol.UDP
    }


def packed_key(key) -> bytes:
    return key.address + key.port.to_bytes(2)


def should_go(flow: UdpFlow, before: Served, after: Served) -> bool:
    """What the case says, and not how it is done."""
    to = flow.destination
    came, went = to in after and to not in before, to in before and to not in after
    lost_one = to in before and to in after and bool(before[to] - after[to])
    if went:
        return flow.server != to
    return (came or lost_one) and flow.server not in after[to]


@given(histories(max_size=4), st.data())
def test_k10_k20_just_the_stale_flows_go_with_every_change(history, data):
    node = node_in(history[0])
    node.sync()
    for world in history:
        node.clock.now += 1
        before = served(node.fake)
        node.fake.flows = data.draw(tables())
        table = list(node.fake.flows)
        live(node, world)
        after = served(node.fake)
        assert node.fake.flows == [flow for flow in table if not should_go(flow, before, after)]


@given(worlds(), st.one_of(st.none(), clusters()), tables())
def test_k20_a_start_ends_what_a_killed_run_has_left_of_any_frontend_that_it_finds_or_wants(left, changed, table):
    now = left.cluster if changed is None else changed
    node = node_in(left)
    node.sync()
    before = served(node.fake)
    node.fake.flows = list(table)
    node_in(World(now, left.host), node.fake).sync()
    after = served(node.fake)
    assert node.fake.flows == [
        flow
        for flow in table
        if (flow.server in after[flow.destination] if flow.destination in after else not should_go(flow, before, after))
    ]


@given(worlds(), worlds(), tables(), some_of((53, 80)))
def test_what_fails_at_first_is_made_good(first, second, table, numbers):
    node = node_in(first)
    node.sync()
    node.clock.now += 1
    before = served(node.fake)
    node.fake.flows = list(table)
    node.fake.flow_dump_fault, node.fake.flow_delete_fault = (*numbers, 0, 0)[:2]
    live(node, second)
    node.fake.flow_dump_fault = node.fake.flow_delete_fault = 0
    node.clock.now += 60
    node.sync()
    after = served(node.fake)
    assert node.fake.flows == [flow for flow in table if not should_go(flow, before, after)]


def test_the_judge_can_see_a_stale_flow():
    flow = UdpFlow(packed("10.244.9.9", 1), packed("10.96.0.20", 53), packed("10.244.1.5", 8053))
    assert should_go(flow, {flow.destination: {flow.server}}, {flow.destination: set()})
    assert not should_go(flow, {flow.destination: {flow.server}}, {flow.destination: {flow.server}})
