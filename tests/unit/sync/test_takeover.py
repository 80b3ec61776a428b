"""What stands in the kernel at start, and what edits of a Service do to it: named by the users' reports."""

from __future__ import annotations

import copy

import msgspec
import pytest

from ipvsproxy.cluster.events import Changed, Listed, ObjectRef
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.api_objects import EndpointPort, ServiceSpec
from ipvsproxy.model.enums import Family, VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, SetSpec, VirtualServer
from tests.builders import blob, vs_key
from tests.clusters import Node, Svc, cluster
from tests.clusters import events as events_of

KEY = vs_key("10.96.0.20", 80)
A, B = "10.244.1.5", "10.244.1.6"
WEB = Svc("web", endpoints=((A, True), (B, True)))


def left_behind(weights: dict[str, int]) -> FakeKernel:
    """A kernel that a former run left with these weights."""
    node = Node()
    node.sync(cluster(WEB))
    node.fake.state[Kind.REAL_SERVER][KEY] = blob(*((ip, 8080, weight) for ip, weight in weights.items()))
    return node.fake


def weights(fake: FakeKernel, ips=(A, B)) -> dict[str, int]:
    found = fake.state[Kind.REAL_SERVER][KEY]
    return {ip: weight for ip in ips for weight in (0, 1, 5) if blob((ip, 8080, weight)) in found}


def test_k13_a_ready_endpoint_found_at_weight_0_gets_its_weight_back_and_one_that_left_goes():
    fake = left_behind({A: 0, B: 0})
    Node(fake).sync(cluster(msgspec.structs.replace(WEB, endpoints=((A, True),))))
    assert weights(fake) == {A: 1}


def test_k13_another_programs_weight_becomes_ours():
    fake = left_behind({A: 5, B: 1})
    Node(fake).sync(cluster(WEB))
    assert weights(fake) == {A: 1, B: 1}


def test_what_kube_proxy_left_right_is_not_touched_by_a_single_message():
    fake = left_behind({A: 1, B: 1})
    before = fake.messages
    Node(fake).sync(cluster(WEB))
    assert fake.messages == before


def test_a_virtual_server_without_a_trace_that_is_right_is_not_touched_and_foreign_ones_are_told(events):
    """Whose it was cannot be told from it; that it is wanted makes it ours."""
    theirs = vs_key("192.0.2.99", 80)
    left = left_behind({A: 1, B: 1}).state
    fake = FakeKernel()
    for kind in (Kind.VIRTUAL_SERVER, Kind.REAL_SERVER):
        fake.state[kind] = {KEY: left[kind][KEY], theirs: left[kind][KEY]}
    events.clear()
    Node(fake).sync(cluster(WEB))
    touched = [event["operation"] for event in events if event["event"] == "operation_applied"]
    assert not any("virtual server" in operation or "real server" in operation for operation in touched)
    assert [event["some"] for event in events if event["event"] == "foreign_virtual_servers"] == [[str(theirs)]]


@pytest.mark.parametrize("missing", ["Service", "EndpointSlice", "Node"])
def test_nothing_is_removed_before_all_that_plans_depend_on_is_listed(missing):
    """With the slices missing, all Services would be without endpoints, and every stream of the node would end."""
    fake = left_behind({A: 1, B: 1})
    right = copy.deepcopy(fake.state)
    node = Node(fake, needs_node=True)
    told = {"Service", "EndpointSlice", "Node"} - {missing}
    for event in events_of({}, cluster(WEB)):
        if isinstance(event, Changed) and event.ref.kind in told:
            node.tracker.note(event)
    for kind in told:
        node.tracker.note(Listed(kind))
    node.reconciler.sync()
    node.reconciler.audit(in_full=True)
    assert fake.state == right


def test_k46_a_set_of_another_type_under_our_name_is_replaced_and_filled():
    fake = FakeKernel()
    fake.state[Kind.SET]["KUBE-CLUSTER-IP"] = SetSpec("hash:net", Family.IPV4)
    Node(fake).sync(cluster(WEB))
    assert fake.state[Kind.SET]["KUBE-CLUSTER-IP"] == SetSpec("hash:ip,port", Family.IPV4)
    assert any(entry.set_name == "KUBE-CLUSTER-IP" for entry in fake.state[Kind.ACCEPT_ENTRY])


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(msgspec.structs.replace(WEB, affinity_s=10800), id="session affinity on"),
        pytest.param(msgspec.structs.replace(WEB, ports=((81, "TCP"),)), id="another port number"),
        pytest.param(msgspec.structs.replace(WEB, ports=((80, "UDP"),)), id="another protocol"),
        pytest.param(msgspec.structs.replace(WEB, ips=("10.96.0.21",)), id="another address"),
        pytest.param(msgspec.structs.replace(WEB, node_ports=(30080,)), id="a node port"),
        pytest.param(msgspec.structs.replace(WEB, external_ips=("203.0.113.20",)), id="an external IP"),
        pytest.param(
            msgspec.structs.replace(WEB, node_ports=(30080,), external_policy="Local"), id="a node port, Local"
        ),
    ],
)
def test_k18_each_edit_is_in_force_after_one_sync_and_nothing_of_the_former_form_is_left(edited):
    node = Node(host=("192.0.2.11",))
    for service in (WEB, edited, WEB):
        node.sync(cluster(service))
        fresh = Node(host=("192.0.2.11",))
        fresh.sync(cluster(service))
        assert node.fake.state == fresh.fake.state


def test_k18_another_external_traffic_policy_leaves_nothing_of_the_former():
    public = msgspec.structs.replace(WEB, external_ips=("203.0.113.20",), node_ports=(30080,), here=(A,))
    node = Node(host=("192.0.2.11",))
    for policy in ("Cluster", "Local", "Cluster"):
        service = msgspec.structs.replace(public, external_policy=policy)
        node.sync(cluster(service))
        fresh = Node(host=("192.0.2.11",))
        fresh.sync(cluster(service))
        assert node.fake.state == fresh.fake.state


def test_k18_affinity_and_its_time_out_are_edited_in_place():
    node = Node()
    node.sync(cluster(WEB))
    before = node.fake.state[Kind.REAL_SERVER][KEY]
    for seconds in (10800, 60, 0):
        assert node.sync(cluster(msgspec.structs.replace(WEB, affinity_s=seconds))) == 1
        flags = VirtualServerFlags.PERSISTENT if seconds else VirtualServerFlags.NONE
        assert node.fake.state[Kind.VIRTUAL_SERVER][KEY] == VirtualServer("rr", flags, seconds)
        assert node.fake.state[Kind.REAL_SERVER][KEY] == before


def test_k18_a_service_that_becomes_external_name_leaves_nothing():
    """Its slices may still be there for a while."""
    node = Node(host=("192.0.2.11",))
    before = cluster(msgspec.structs.replace(WEB, external_ips=("203.0.113.20",), node_ports=(30080,)))
    node.sync(before)
    ref = ObjectRef("Service", "default", "web")
    spec = ServiceSpec(type="ExternalName")
    node.sync({**before, ref: msgspec.structs.replace(before[ref], spec=spec)})
    empty = Node(host=("192.0.2.11",))
    empty.sync({})
    assert node.fake.state == empty.fake.state


def test_k18_another_target_port_is_in_force_after_one_sync_and_the_virtual_server_is_not_touched(events):
    node = Node()
    before = cluster(WEB)
    node.sync(before)
    events.clear()
    ref = ObjectRef("EndpointSlice", "default", "web-ipv4")
    node.sync({**before, ref: msgspec.structs.replace(before[ref], ports=(EndpointPort("p80tcp", "TCP", 9090),))})
    assert node.fake.state[Kind.REAL_SERVER][KEY] == blob((A, 9090), (B, 9090))
    touched = [event["operation"] for event in events if event["event"] == "operation_applied"]
    assert not any(" virtual server" in operation for operation in touched)


def test_k18_another_scheduler_is_set_in_place_by_the_start_that_brings_it(events):
    fake = left_behind({A: 1, B: 1})
    events.clear()
    Node(fake, scheduler="lc").sync(cluster(WEB))
    assert fake.state[Kind.VIRTUAL_SERVER][KEY].scheduler == "lc"
    touched = [event["operation"] for event in events if event["event"] == "operation_applied"]
    assert touched == [f"edit virtual server {KEY}"]
