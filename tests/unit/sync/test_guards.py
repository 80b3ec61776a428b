"""Guards drop clients outside where policy or source ranges say so: without its guard nothing serves (K25, K36)."""

from __future__ import annotations

import errno

import msgspec
import pytest

from ipvsproxy.model import real_servers
from ipvsproxy.model.kernel_objects import Kind, SetEntry, Verb
from tests.builders import addr, blob, vs_key
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, admitted

HERE, THERE = "10.244.1.5", "10.244.2.5"
VIP, NODE = "203.0.113.20", "192.0.2.11"
KEYS = (vs_key(VIP, 80), vs_key(NODE, 30080))
GUARDS = tuple(SetEntry("KUBE-NO-LOCAL-ENDPOINTS", key.address, 6, key.port) for key in KEYS)
BOTH = Svc(
    "a",
    endpoints=((HERE, True), (THERE, True)),
    here=(HERE,),
    node_ports=(30080,),
    external_ips=(VIP,),
    external_policy="Local",
)
ELSEWHERE = msgspec.structs.replace(BOTH, endpoints=((THERE, True),))
CLUSTER = msgspec.structs.replace(ELSEWHERE, external_policy="Cluster")
OPEN = Svc("a", ingress=((VIP, "VIP"),))
RESTRICTED = msgspec.structs.replace(OPEN, source_ranges=("198.51.100.0/24",))
RANGES_GUARD = SetEntry("KUBE-LOAD-BALANCER-FW", addr(VIP), 6, 80)
REMOTE = blob((THERE, 8080))

each_frontend = pytest.mark.parametrize(
    "key, guard",
    [pytest.param(KEYS[0], GUARDS[0], id="external IP"), pytest.param(KEYS[1], GUARDS[1], id="node port")],
)


def node_with(service: Svc) -> Node:
    node = Node(host=(NODE,))
    node.sync(cluster(service))
    return node


def refuse(node: Node, verb: Verb, kind: Kind, *keys: object) -> None:
    """From now on the kernel takes no such operation."""
    node.fake.faults.update({(verb, kind, key): errno.ENOMEM for key in keys})  # type: ignore[misc]


def relent(node: Node) -> None:
    """The kernel takes everything again, and a minute passes."""
    node.fake.faults.clear()
    node.pass_time(60)


def serving(node: Node, key: object) -> list[str]:
    """The real servers that get new connections."""
    found = real_servers.split(node.fake.state[Kind.REAL_SERVER][key], 4)  # type: ignore[index, arg-type]
    return [str(real_servers.unpack(record)) for record in found if not real_servers.is_drained(record)]


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param(BOTH, ELSEWHERE, id="the last endpoint here leaves"),
        pytest.param(ELSEWHERE, BOTH, id="the first one here comes"),
        pytest.param(CLUSTER, ELSEWHERE, id="the policy becomes Local"),
        pytest.param(ELSEWHERE, CLUSTER, id="the policy becomes Cluster"),
        pytest.param(CLUSTER, BOTH, id="both at once"),
        pytest.param(BOTH, msgspec.structs.replace(BOTH, endpoints=()), id="all endpoints leave"),
        pytest.param(ELSEWHERE, Svc("b", ("10.96.0.22",)), id="the Service is deleted"),
    ],
)
def test_k25_at_no_moment_is_an_outside_client_led_where_it_is_not_before_or_after(before, after):
    node = node_with(before)
    witness = Witness(node.fake, {addr(NODE)})
    node.sync(cluster(after))
    witness.check_sources()


@each_frontend
def test_k25_without_its_guard_no_endpoint_of_another_node_serves_until_it_is_taken(key, guard):
    node = node_with(BOTH)
    refuse(node, Verb.ADD, Kind.GUARD_ENTRY, guard)
    node.sync(cluster(ELSEWHERE))
    assert node.fake.state[Kind.REAL_SERVER][key] == b""
    relent(node)
    assert guard in node.fake.state[Kind.GUARD_ENTRY]
    assert node.fake.state[Kind.REAL_SERVER][key] == REMOTE


@each_frontend
def test_k25_without_its_guard_no_endpoint_of_another_node_gets_its_weight_back(key, guard):
    node = node_with(ELSEWHERE)
    node.fake.connections[key, real_servers.identity(REMOTE)] = 1
    node.sync(cluster(BOTH))
    assert serving(node, key) == [f"{HERE}:8080"]
    refuse(node, Verb.ADD, Kind.GUARD_ENTRY, guard)
    node.sync(cluster(ELSEWHERE))
    assert serving(node, key) == []
    relent(node)
    assert serving(node, key) == [f"{THERE}:8080"]


@each_frontend
def test_k25_a_guard_stays_until_the_endpoint_of_another_node_has_left(key, guard):
    node = node_with(ELSEWHERE)
    refuse(node, Verb.DELETE, Kind.REAL_SERVER, key)
    refuse(node, Verb.EDIT, Kind.REAL_SERVER, key)
    node.sync(cluster(BOTH))
    assert THERE + ":8080" in serving(node, key)
    assert guard in node.fake.state[Kind.GUARD_ENTRY]
    relent(node)
    assert serving(node, key) == [f"{HERE}:8080"]
    assert guard not in node.fake.state[Kind.GUARD_ENTRY]


def test_k36_a_guard_of_source_ranges_stays_until_its_virtual_server_has_left():
    node = node_with(RESTRICTED)
    key = vs_key(VIP, 80)
    refuse(node, Verb.DELETE, Kind.VIRTUAL_SERVER, key)
    node.sync(cluster(Svc("b", ("10.96.0.22",))))
    assert key in node.fake.state[Kind.VIRTUAL_SERVER]
    assert RANGES_GUARD in node.fake.state[Kind.GUARD_ENTRY]
    relent(node)
    assert key not in node.fake.state[Kind.VIRTUAL_SERVER]
    assert RANGES_GUARD not in node.fake.state[Kind.GUARD_ENTRY]


@pytest.mark.parametrize(
    "before, after, guard, key",
    [
        pytest.param(OPEN, RESTRICTED, RANGES_GUARD, vs_key(VIP, 80), id="source ranges come"),
        pytest.param(CLUSTER, ELSEWHERE, GUARDS[0], KEYS[0], id="the policy becomes Local"),
    ],
)
def test_k36_what_served_before_serves_nobody_new_while_its_new_guard_is_refused(before, after, guard, key):
    node = node_with(before)
    right = node_with(after).fake.state[Kind.REAL_SERVER][key]
    refuse(node, Verb.ADD, Kind.GUARD_ENTRY, guard)
    node.sync(cluster(after))
    assert serving(node, key) == []
    relent(node)
    assert guard in node.fake.state[Kind.GUARD_ENTRY]
    assert node.fake.state[Kind.REAL_SERVER][key] == right


def test_k36_a_virtual_server_whose_guard_is_refused_is_empty_and_refuses():
    node = Node()
    refuse(node, Verb.ADD, Kind.GUARD_ENTRY, RANGES_GUARD)
    node.sync(cluster(RESTRICTED))
    assert node.fake.state[Kind.REAL_SERVER][vs_key(VIP, 80)] == b""
    assert serving(node, vs_key("10.96.0.20", 80)) == [f"{HERE}:8080"]


AS_EXTERNAL_IP = Svc("a", external_ips=(VIP,))


@pytest.mark.parametrize(
    "before,after",
    [
        pytest.param(RESTRICTED, AS_EXTERNAL_IP, id="a load balancer's address becomes an external IP"),
        pytest.param(AS_EXTERNAL_IP, RESTRICTED, id="an external IP becomes a load balancer's address"),
        pytest.param(
            RESTRICTED,
            msgspec.structs.replace(AS_EXTERNAL_IP, external_policy="Local", endpoints=((HERE, True),), here=(HERE,)),
            id="and the policy changes too",
        ),
    ],
)
def test_k36_ranges_that_go_with_their_guard_keep_nobody_out_who_is_let_in_before_and_after(before, after):
    node = node_with(before)
    witness = Witness(node.fake, (addr(NODE),))
    node.sync(cluster(after))
    witness.check_sources()


def balancer(name: str, endpoint: str, *ranges: str, created: str = "2026-01-01T00:00:00Z") -> Svc:
    ip = {"a": "10.96.0.20", "b": "10.96.0.21"}[name]
    return Svc(
        name, (ip,), endpoints=((endpoint, True),), ingress=((VIP, "VIP"),), source_ranges=ranges, created=created
    )


WIDE, NARROW, OTHER = "198.51.100.0/24", "198.51.100.7/32", "10.0.0.0/8"


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param((balancer("a", HERE, WIDE),), (balancer("b", THERE, OTHER),), id="other ranges, another owner"),
        pytest.param((balancer("a", HERE, WIDE),), (balancer("a", THERE, OTHER),), id="other ranges, the same owner"),
        pytest.param((balancer("a", HERE, WIDE),), (balancer("b", THERE, WIDE, OTHER),), id="one range more"),
        pytest.param((balancer("a", HERE, WIDE, OTHER),), (balancer("b", THERE, WIDE),), id="one range less"),
        pytest.param((balancer("a", HERE, WIDE),), (balancer("b", THERE, NARROW),), id="a part of the range"),
        pytest.param((balancer("a", HERE, NARROW),), (balancer("b", THERE, WIDE),), id="a range around it"),
        pytest.param((balancer("a", HERE, WIDE),), (balancer("b", THERE),), id="open to all from now on"),
        pytest.param((balancer("a", HERE),), (balancer("b", THERE, WIDE),), id="open to all until now"),
        pytest.param(
            (balancer("a", HERE, WIDE), balancer("b", THERE, OTHER, created="2026-02-01T00:00:00Z")),
            (balancer("b", THERE, OTHER, created="2026-02-01T00:00:00Z"),),
            id="the younger of two is left",
        ),
        pytest.param(
            (balancer("a", HERE, WIDE),),
            (
                msgspec.structs.replace(balancer("a", HERE), ingress=()),
                msgspec.structs.replace(balancer("b", THERE, OTHER), endpoints=()),
            ),
            id="the new owner has no endpoint",
        ),
    ],
)
def test_k36_at_no_moment_do_the_clients_of_one_owner_of_a_frontend_meet_the_endpoints_of_another(before, after):
    node = Node()
    node.sync(cluster(*before))
    witness = Witness(node.fake)
    node.sync(cluster(*after))
    witness.check_sources()


def test_k36_who_is_within_the_old_ranges_and_the_new_ones_is_always_let_in():
    node = Node()
    node.sync(cluster(balancer("a", HERE, WIDE, "10.1.0.0/16")))
    key = vs_key(VIP, 80)
    moments = []
    node.fake.after_message = lambda: moments.append(admitted(node.fake.state, key))
    node.sync(cluster(balancer("b", THERE, NARROW, OTHER)))
    both = {addr("198.51.100.7"), addr("10.1.2.3")}
    assert all(moment >= both for moment in moments)
