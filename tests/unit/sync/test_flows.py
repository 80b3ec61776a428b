"""UDP flows after a sync: those that lead nowhere any more are ended, and no others; on the fake kernel."""

from __future__ import annotations

import errno

import pytest

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, Verb
from tests.builders import blob, flow, vs_key
from tests.clusters import Node, Svc, cluster

DNS_PORTS = ((53, "UDP"), (53, "TCP"))
KEY = vs_key("10.96.0.10", 53, Protocol.UDP)
A, B, C = "10.244.1.5:8053", "10.244.1.6:8053", "10.244.1.7:8053"
CLIENT = "10.244.9.9:999"
NODE, VIP, LB, NODE_PORT = "192.0.2.11", "10.96.0.10:53", "203.0.113.10:53", "192.0.2.11:30053"
ON_A, ON_B = flow(CLIENT, VIP, A), flow("10.244.9.9:1000", VIP, B)
STRANGERS = (
    flow(CLIENT, "10.96.0.11:53", A),  # another Service
    flow(CLIENT, "10.96.0.10:5353", A),  # another port of its address
    flow(CLIENT, A, A),  # a pod asks a pod
    flow(CLIENT, "192.0.2.99:30053", A),  # another host's node port of the same number
    flow("10.96.0.10:53", "198.51.100.7:53", "198.51.100.7:53"),  # from the frontend, not to it
)


def dns(*endpoints: str, **more) -> Svc:
    ready = tuple((endpoint.rpartition(":")[0], True) for endpoint in endpoints)
    return Svc("dns", ips=("10.96.0.10",), ports=DNS_PORTS, endpoints=ready, **more)


def everywhere(*endpoints: str) -> Svc:
    """On a cluster IP, a node port and a load balancer's address."""
    return dns(*endpoints, node_ports=(30053, 0), ingress=(("203.0.113.10", "VIP"),))


@pytest.fixture
def node() -> Node:
    """A node that serves the endpoints A and B, a second after its first sync."""
    made = Node(host=(NODE,))
    made.sync(cluster(dns(A, B)))
    made.clock.now += 1
    return made


def named(events, name):
    return [event for event in events if event["event"] == name]


# What is ended


def test_k10_flows_to_an_endpoint_that_left_are_ended_and_no_others(node):
    node.fake.flows = [ON_A, ON_B, *STRANGERS]
    node.sync(cluster(dns(B)))
    assert node.fake.flows == [ON_B, *STRANGERS]


def test_k20_the_last_endpoint_takes_the_flows_of_every_frontend_along():
    node = Node(host=(NODE,))
    node.sync(cluster(everywhere(A)))
    node.clock.now += 1
    node.fake.flows = [flow(CLIENT, to, A) for to in (VIP, LB, NODE_PORT)] + list(STRANGERS)
    node.sync(cluster(everywhere()))
    assert node.fake.flows == list(STRANGERS)


def test_k20_a_service_that_is_deleted_takes_the_flows_of_every_frontend_along():
    node = Node(host=(NODE,))
    node.sync(cluster(everywhere(A)))
    node.clock.now += 1
    node.fake.flows = [flow(CLIENT, to, A) for to in (VIP, LB, NODE_PORT)] + list(STRANGERS)
    node.sync(cluster(Svc("other")))
    assert node.fake.flows == list(STRANGERS)


def test_k20_one_frontend_that_goes_takes_its_flows_along_and_no_others():
    node = Node(host=(NODE,))
    node.sync(cluster(everywhere(A)))
    node.clock.now += 1
    node.fake.flows = [flow(CLIENT, to, A) for to in (VIP, LB, NODE_PORT)]
    node.sync(cluster(dns(A, node_ports=(30053, 0))))
    assert node.fake.flows == [flow(CLIENT, to, A) for to in (VIP, NODE_PORT)]


def test_k20_a_new_endpoint_after_none_finds_no_flow_of_the_old_one():
    node = Node()
    node.sync(cluster(dns(A)))
    node.sync(cluster(dns()))
    node.fake.flows = [ON_A, flow(CLIENT, VIP, C)]
    node.sync(cluster(dns(C)))
    node.clock.now += 1
    node.sync()
    assert node.fake.flows == [flow(CLIENT, VIP, C)]


def test_a_flow_that_the_host_took_before_the_virtual_server_stood_is_ended(node):
    untranslated = flow(CLIENT, "192.0.2.11:30053", "192.0.2.11:30053")
    node.fake.flows = [untranslated]
    node.sync(cluster(dns(A, B, node_ports=(30053, 0))))
    assert node.fake.flows == []


def test_a_flow_that_the_host_takes_once_the_virtual_server_is_gone_stays(node):
    untranslated = flow(CLIENT, VIP, VIP)
    node.fake.flows = [untranslated, ON_A]
    node.sync(cluster(Svc("other")))
    assert node.fake.flows == [untranslated]


def test_clean_up_ends_the_flows_to_what_it_removes(node):
    node.fake.flows = [ON_A, *STRANGERS]
    node.reconciler.remove_all()
    assert node.fake.flows == list(STRANGERS)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(dns(A, B, C), id="one more endpoint"),
        pytest.param(dns(A, B, affinity_s=60), id="session affinity"),
    ],
)
def test_changes_that_redirect_nobody_look_for_nothing(node, after):
    before = node.fake.flow_dumps
    node.sync(cluster(after))
    assert node.fake.flow_dumps == before


# What is missed


def test_k20_what_a_killed_run_has_missed_is_ended_at_the_next_start(node):
    node.fake.flows = [ON_A, ON_B, *STRANGERS]
    node.fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.6", 8053))  # deleted, and then it was killed
    Node(node.fake, host=(NODE,)).sync(cluster(dns(B)))
    assert node.fake.flows == [ON_B, *STRANGERS]


def test_nothing_is_ended_before_the_cluster_is_known(node):
    node.fake.flows = [ON_A]
    restarted = Node(node.fake)
    restarted.sync()
    assert node.fake.flows == [ON_A]
    assert node.fake.flow_dumps == 1


def test_a_real_server_that_an_audit_takes_out_takes_its_flows_along(node):
    stray = flow(CLIENT, VIP, "10.244.9.1:8053")
    node.fake.flows = [stray, ON_A]
    node.fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.5", 8053), ("10.244.1.6", 8053), ("10.244.9.1", 8053))
    node.reconciler.audit(in_full=True)
    assert node.fake.flows == [ON_A]


def test_a_deletion_whose_answer_was_lost_ends_the_flows_too(node):
    node.fake.flows = [ON_A, ON_B]
    apply = node.fake.kernel.ipvs.apply
    node.fake.kernel.ipvs.apply = lambda operations: [errno.ENOBUFS for _ in apply(operations)]
    node.sync(cluster(dns(B)))
    node.fake.kernel.ipvs.apply = apply
    node.clock.now += 1
    node.sync()
    assert node.fake.flows == [ON_B]


def test_a_deletion_that_is_refused_ends_no_flow_until_it_is_taken(node):
    node.fake.flows = [ON_A]
    node.fake.faults[Verb.DELETE, Kind.REAL_SERVER, KEY] = errno.ENOMEM
    before = node.fake.flow_dumps
    node.sync(cluster(dns(B)))
    assert (node.fake.flows, node.fake.flow_dumps) == ([ON_A], before)
    node.fake.faults.clear()
    node.clock.now += 1
    node.sync()
    assert node.fake.flows == []


# What fails


@pytest.fixture(params=["flow_dump_fault", "flow_delete_fault"])
def failing(node: Node, request: pytest.FixtureRequest) -> Node:
    """A node whose connection tracking refuses to be read, or to delete."""
    setattr(node.fake, request.param, errno.EPERM)
    return node


def mend(fake: FakeKernel) -> None:
    fake.flow_dump_fault = fake.flow_delete_fault = 0


def test_k15_what_fails_is_tried_again_with_growing_pauses(failing):
    failing.fake.flows = [ON_A]
    failing.tell(cluster(dns(B)))
    waits = []
    for _ in range(9):
        retry_at = failing.reconciler.sync().retry_at
        waits.append(retry_at - failing.clock.now)
        failing.clock.now = retry_at
    assert waits == [1, 1, 2, 4, 8, 16, 32, 60, 60]
    mend(failing.fake)
    assert failing.reconciler.sync().retry_at is None
    assert failing.fake.flows == []


def test_what_fails_is_said_once(failing, events):
    failing.fake.flows = [ON_A]
    failing.tell(cluster(dns(B)))
    for _ in range(3):
        failing.clock.now += 60
        failing.reconciler.sync()
    told = [(event["log_level"], event["tries"]) for event in named(events, "stale_flows_kept")]
    assert told == [("error", 1), ("debug", 2), ("debug", 3)]
    assert "EPERM" in named(events, "stale_flows_kept")[0]["reason"]


def test_the_other_family_goes_on(node):
    both = Svc("dns", ips=("10.96.0.10", "fd00::10"), ports=DNS_PORTS, endpoints=(("10.244.1.5", True),))
    node.sync(cluster(both))
    node.clock.now += 1
    stale = node.fake.kernel.conntrack.stale
    lost = flow("fd00:1::9:999", "fd00::10:53", "fd00:1::5:8053")

    def refuse_ipv4(answerers):
        node.fake.flow_dump_fault = errno.EPERM if len(next(iter(answerers))) == 6 else 0
        return stale(answerers)

    node.fake.kernel.conntrack.stale = refuse_ipv4
    node.fake.flows = [lost, ON_A]
    node.sync(cluster(Svc("other")))
    assert node.fake.flows == [ON_A]


def test_a_flow_that_ends_by_itself_meanwhile_is_no_failure(node, events):
    node.fake.flows = [ON_A]
    node.fake.flow_delete_fault = errno.ENOENT
    node.sync(cluster(dns(B)))
    assert not named(events, "stale_flows_kept")
    assert node.reconciler.sync().retry_at is None


def test_ended_flows_are_told_in_one_line(node, events):
    node.fake.flows = [flow(f"10.244.9.9:{port}", VIP, A) for port in range(1000, 1100)]
    node.sync(cluster(dns(B)))
    (told,) = named(events, "stale_flows_removed")
    assert (told["family"], told["count"], len(told["some"])) == ("IPv4", 100, 5)
    assert told["some"][0] == "10.244.9.9:1000 → 10.96.0.10:53 (10.244.1.5:8053)"


# How often


def test_endpoints_that_come_and_go_fast_share_a_look_a_second(node):
    before = node.fake.flow_dumps
    node.sync(cluster(dns(B)))
    for endpoints in ((A, B), (A,), (B, C), (C,)):
        node.sync(cluster(dns(*endpoints)))
    assert node.fake.flow_dumps == before + 1
    node.fake.flows = [ON_A, ON_B, flow(CLIENT, VIP, C)]
    retry_at = node.reconciler.sync().retry_at
    assert retry_at == node.clock.now + 1
    node.clock.now = retry_at
    assert node.reconciler.sync().retry_at is None
    assert node.fake.flow_dumps == before + 2
    assert node.fake.flows == [flow(CLIENT, VIP, C)]


def test_k10_expire_nodest_conn_is_put_back_when_somebody_clears_it(node):
    """It is what ends IPVS's own entries of a server that has left, which no deletion of ours reaches."""
    node.fake.state[Kind.SYSCTL]["net.ipv4.vs.expire_nodest_conn"] = "0"
    node.reconciler.audit(in_full=False)
    assert node.fake.state[Kind.SYSCTL]["net.ipv4.vs.expire_nodest_conn"] == "1"
