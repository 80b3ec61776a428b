"""A rehearsed first sync is the daemon's own, and leaves the kernel alone."""

from __future__ import annotations

import copy

import msgspec
import pytest

from ipvsproxy.cluster.events import Listed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.first_sync import FirstSync, rehearse
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, VirtualServer
from ipvsproxy.model.real_servers import describe
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from tests.builders import addr, blob, flow, vs_key
from tests.clusters import NODE, Node, Svc, cluster, events

A, B = "10.244.1.5", "10.244.1.6"
WEB = Svc("web", endpoints=((A, True), (B, True)), node_ports=(30080,))
KEY = vs_key("10.96.0.20", 80)
HOST = ("192.0.2.11",)
MODE = IpvsMode(IpvsOptions(ServiceOptions(frozenset(Family))))


def told(now, *, node_listed=True) -> Tracker:
    tracker = Tracker(NODE, frozenset(Family))
    for event in events({}, now):
        tracker.note(event)
    for kind in ("Service", "EndpointSlice", *(["Node"] if node_listed else [])):
        tracker.note(Listed(kind))
    return tracker


def rehearsed(fake: FakeKernel, now, host=HOST) -> FirstSync:
    return rehearse(fake.kernel, told(now), MODE, [addr(text) for text in host])


def kernel_of(*services: Svc) -> FakeKernel:
    node = Node(host=HOST)
    node.sync(cluster(*services))
    return node.fake


def carried_out(fake: FakeKernel, now) -> list[str]:
    """What a daemon that starts on this kernel does to it, as words."""
    done = []
    for part in fake.kernel.subsystems:
        original = part.apply
        part.apply = lambda operations, original=original: [
            done.extend(map(describe, operations)),
            original(operations),
        ][1]
    Node(fake, host=HOST).sync(now)
    return done


def edited(fake: FakeKernel) -> FakeKernel:
    """Damage of every sort."""
    fake.state[Kind.VIRTUAL_SERVER][KEY] = VirtualServer("lc")
    fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 0), ("10.244.9.9", 8080, 1))
    fake.state[Kind.ADDRESS].clear()
    fake.state[Kind.ACCEPT_ENTRY].clear()
    fake.state[Kind.SYSCTL]["net.ipv4.ip_forward"] = "0"
    fake.state[Kind.RULES].popitem()
    return fake


@pytest.mark.parametrize(
    "make,now",
    [
        pytest.param(FakeKernel, cluster(WEB), id="an empty kernel"),
        pytest.param(lambda: kernel_of(WEB), cluster(WEB), id="a kernel that is right"),
        pytest.param(lambda: kernel_of(WEB, Svc("old", ips=("10.96.0.21",))), cluster(WEB), id="a Service too many"),
        pytest.param(lambda: edited(kernel_of(WEB)), cluster(WEB), id="a damaged kernel"),
        pytest.param(lambda: kernel_of(WEB), {}, id="no Service any more"),
    ],
)
def test_it_is_what_a_daemon_that_starts_on_this_kernel_does(make, now):
    fake = make()
    found = [describe(operation) for operation in rehearsed(fake, now).operations]
    assert found == carried_out(fake, now)


def test_it_leaves_the_kernel_as_it_is():
    fake = edited(kernel_of(WEB))
    before = copy.deepcopy(fake.state)
    assert rehearsed(fake, cluster(WEB)).is_needed
    assert fake.state == before


def test_a_kernel_that_is_right_needs_none():
    assert not rehearsed(kernel_of(WEB), cluster(WEB)).is_needed


def test_k08_a_real_server_that_drains_is_no_difference():
    fake = kernel_of(WEB)
    gone = blob((B, 8080, 0))
    fake.state[Kind.REAL_SERVER] = {key: blob((A, 8080, 1), (B, 8080, 0)) for key in fake.state[Kind.REAL_SERVER]}
    fake.connections.update({(key, gone[:-3]): 3 for key in fake.state[Kind.REAL_SERVER]})
    found = rehearsed(fake, cluster(msgspec.structs.replace(WEB, endpoints=((A, True),))))
    assert not found.is_needed
    assert found.draining == len(fake.state[Kind.REAL_SERVER])


def test_k08_a_service_that_is_gone_and_still_has_connections_is_no_difference_once_nobody_new_comes_in():
    node = Node(host=HOST)
    old = Svc("old", ips=("10.96.0.21",))
    node.sync(cluster(WEB, old))
    node.fake.connections[vs_key("10.96.0.21", 80), blob((A, 8080))[:-3]] = 1
    node.sync(cluster(WEB))
    found = rehearsed(node.fake, cluster(WEB))
    assert (found.is_needed, found.draining) == (False, 1)


def test_k48_a_virtual_server_that_is_not_ours_is_left_alone_and_counted():
    fake = kernel_of(WEB)
    theirs = vs_key("192.0.2.99", 80)
    fake.state[Kind.VIRTUAL_SERVER][theirs] = VirtualServer("wlc")
    fake.state[Kind.REAL_SERVER][theirs] = blob(("192.0.2.100", 80))
    found = rehearsed(fake, cluster(WEB))
    assert (found.is_needed, found.foreign) == (False, 1)


def test_k20_a_udp_flow_that_leads_to_nobody_is_one_to_end_and_stays():
    dns = Svc("dns", ports=((53, "UDP"),))
    fake = kernel_of(dns)
    stale = flow("10.244.1.9:4000", "10.96.0.20:53", "10.244.7.7:8053")
    fake.flows.append(stale)
    found = rehearsed(fake, cluster(dns))
    assert (found.operations, found.flows) == ((), (stale,))
    assert fake.flows == [stale]


def test_where_our_node_is_not_known_it_does_not_wait_for_it():
    tracker = told(cluster(WEB), node_listed=False)
    found = rehearse(FakeKernel().kernel, tracker, MODE, [])
    assert KEY in {operation.key for operation in found.operations}
