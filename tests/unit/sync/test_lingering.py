"""What leaves while clients are connected: it drains, ends in time, and nobody who still sends meets silence."""

from __future__ import annotations

import errno
import math

import msgspec
import pytest
from structlog.testing import capture_logs

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, Verb, VirtualServer, VirtualServerKey
from ipvsproxy.sync.lingering import CHECK_S, GRACE_S
from tests.builders import addr, blob, vs_key
from tests.clusters import Node, Svc, cluster
from tests.unit.sync.test_reconciler import clean
from tests.witness import Witness, admitted, closed, served

VIP, EXTERNAL, HOST = "10.96.0.20", "203.0.113.20", "192.0.2.11"
KEY = vs_key(VIP, 80)
A, B = "10.244.1.5", "10.244.2.5"
NOBODY = cluster()
DRAIN_S = 900.0


def web(*endpoints: str, **fields) -> Svc:
    return Svc("web", endpoints=tuple((address, True) for address in endpoints), **fields)


def connect(fake: FakeKernel, *servers: str, key: VirtualServerKey = KEY, count: int = 1, port: int = 8080) -> None:
    """From now on so many connections are open to these real servers."""
    for server in servers:
        fake.connections[key, real_servers.identity(blob((server, port)))] = count


def weights(fake: FakeKernel, key: VirtualServerKey = KEY) -> dict[str, int] | None:
    """Each real server's weight; None without the virtual server."""
    records = fake.state[Kind.REAL_SERVER].get(key)
    if records is None:
        return None
    unpacked = map(real_servers.unpack, real_servers.split(bytes(records), len(key.address)))  # type: ignore[arg-type]
    return {format_addr(server.address): server.weight for server in unpacked}


def bound(fake: FakeKernel) -> set[str]:
    """Addresses on kube-ipvs0; each must have its other ports closed."""
    assert closed(fake.state) == set(fake.state[Kind.ADDRESS])
    return {format_addr(address) for address in fake.state[Kind.ADDRESS]}  # type: ignore[arg-type]


@pytest.fixture
def node() -> Node:
    """A node whose Service "web" has two endpoints, each with a connection."""
    node = Node()
    node.sync(cluster(web(A, B)))
    connect(node.fake, A, B)
    return node


# An endpoint leaves


def test_k08_an_endpoint_with_connections_gets_weight_0_and_stays_until_they_have_gone(node):
    node.sync(cluster(web(B)))
    assert weights(node.fake) == {A: 0, B: 1}
    node.pass_time(DRAIN_S / 2)
    assert weights(node.fake) == {A: 0, B: 1}
    connect(node.fake, A, count=0)
    node.pass_time(CHECK_S)
    assert weights(node.fake) == {B: 1}


def test_k08_an_endpoint_without_connections_goes_in_the_same_pass():
    node = Node()
    node.sync(cluster(web(A, B)))
    node.sync(cluster(web(B)))
    assert weights(node.fake) == {B: 1}


def test_k08_an_endpoint_goes_when_its_time_is_up_though_connections_are_left(node):
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S - 0.5)
    assert weights(node.fake) == {A: 0, B: 1}
    with capture_logs() as logs:
        node.pass_time(0.5)
    assert weights(node.fake) == {B: 1}
    assert [line["virtual_server"] for line in logs if line["event"] == "connections_cut"] == [str(KEY)]


def test_k08_an_endpoint_that_returns_while_it_drains_gets_its_weight_back_and_is_never_deleted(node):
    seen = []
    node.fake.after_message = lambda: seen.append(weights(node.fake))
    node.sync(cluster(web(B)))
    node.sync(cluster(web(A, B)))
    assert seen[-1] == {A: 1, B: 1}
    assert all(A in moment for moment in seen)
    assert node.pass_time(2 * DRAIN_S).draining == 0
    assert weights(node.fake) == {A: 1, B: 1}


def test_an_endpoint_that_leaves_again_has_all_its_time_again(node):
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S - 1)
    node.sync(cluster(web(A, B)))
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S - 1)
    assert weights(node.fake) == {A: 0, B: 1}


def test_an_endpoint_that_drains_has_no_more_time_when_another_one_leaves(node):
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S - 10)
    node.sync(cluster(web()))
    node.pass_time(10)
    assert weights(node.fake) == {B: 0}


def test_k21_the_last_endpoint_of_a_service_drains_too(node):
    node.sync(cluster(web()))
    assert weights(node.fake) == {A: 0, B: 0}
    assert KEY not in served(node.fake.state)
    node.sync(cluster(web(B)))
    assert weights(node.fake) == {A: 0, B: 1}


@pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
def test_k10_an_endpoint_of_another_protocol_than_tcp_goes_at_once(protocol):
    node = Node()
    key = vs_key(VIP, 53, protocol)
    ports = ((53, protocol.name),)
    node.sync(cluster(web(A, B, ports=ports)))
    connect(node.fake, A, B, key=key, port=8053)
    assert node.sync(cluster(web(B, ports=ports))) == 1
    assert weights(node.fake, key) == {B: 1}


def test_without_a_drain_time_an_endpoint_goes_at_once():
    node = Node(drain_s=0)
    node.sync(cluster(web(A, B)))
    connect(node.fake, A)
    assert node.sync(cluster(web(B))) == 1
    assert weights(node.fake) == {B: 1}


@pytest.mark.parametrize(
    "annotation, drain_s",
    [
        pytest.param("32s", 32.0, id="a shorter one"),
        pytest.param("2h", 7200.0, id="a longer one"),
        pytest.param("soon", DRAIN_S, id="none that can be read"),
    ],
)
def test_a_service_may_have_a_drain_time_of_its_own(node, annotation, drain_s):
    node.sync(cluster(web(A, B, drain=annotation)))
    node.sync(cluster(web(B, drain=annotation)))
    node.pass_time(drain_s - 0.5)
    assert weights(node.fake) == {A: 0, B: 1}
    node.pass_time(0.5)
    assert weights(node.fake) == {B: 1}


def test_the_drain_time_of_a_service_that_is_deleted_is_the_one_that_it_had(node):
    node.sync(cluster(web(A, B, drain="30s")))
    node.sync(NOBODY)
    node.pass_time(29.5)
    assert weights(node.fake) == {A: 0, B: 0}
    node.pass_time(0.5)
    assert weights(node.fake) is None


@pytest.mark.parametrize("finds", [pytest.param("audit", id="an audit"), pytest.param("start", id="a start")])
def test_what_is_found_behind_a_service_drains_as_that_service_says(finds):
    node = Node()
    node.sync(cluster(web(A, drain="30s")))
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080), (B, 8080))
    connect(node.fake, B)
    if finds == "audit":
        node.reconciler.audit(in_full=True)
    else:
        node = Node(node.fake)
        node.sync(cluster(web(A, drain="30s")))
    node.pass_time(29.5)
    assert weights(node.fake) == {A: 1, B: 0}
    node.pass_time(0.5)
    assert weights(node.fake) == {A: 1}


def test_a_service_whose_own_drain_time_is_0_cuts_at_once(node):
    node.sync(cluster(web(A, B, drain="0")))
    node.sync(cluster(web(B, drain="0")))
    assert weights(node.fake) == {B: 1}


# A Service is deleted


def test_k12_a_service_with_connections_refuses_new_ones_at_once_and_keeps_those_until_they_end(node):
    node.sync(NOBODY)
    assert KEY not in served(node.fake.state)
    assert weights(node.fake) == {A: 0, B: 0}
    assert bound(node.fake) == {VIP}
    connect(node.fake, A, B, count=0)
    node.pass_time(CHECK_S)
    assert weights(node.fake) is None
    assert bound(node.fake) == set()


def test_k12_only_the_endpoints_that_have_connections_stay_behind_a_deleted_service(node):
    connect(node.fake, A, count=0)
    node.sync(NOBODY)
    assert weights(node.fake) == {B: 0}


def test_k12_a_service_without_connections_is_gone_in_the_same_pass():
    node = Node()
    node.sync(NOBODY)
    empty = {kind: dict(objects) for kind, objects in node.fake.state.items()}
    node.sync(cluster(web(A, B)))
    node.sync(NOBODY)
    assert node.fake.state == empty


def test_k12_after_the_drain_time_clients_hear_a_reset_for_a_while_and_then_all_is_gone(node):
    node.sync(NOBODY)
    node.pass_time(DRAIN_S)
    assert weights(node.fake) is None  # a packet now meets a bound address without that port: refused actively
    assert bound(node.fake) == {VIP}
    node.pass_time(GRACE_S - 0.5)
    assert bound(node.fake) == {VIP}
    assert node.pass_time(0.5).retry_at is None
    assert bound(node.fake) == set()


def test_k12_an_endpoint_that_drains_already_when_its_service_goes_keeps_its_own_time(node):
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S / 2)
    node.sync(NOBODY)
    assert weights(node.fake) == {A: 0, B: 0}
    node.pass_time(DRAIN_S / 2)
    assert weights(node.fake) == {B: 0}
    node.pass_time(DRAIN_S / 2)
    assert weights(node.fake) is None
    assert bound(node.fake) == {VIP}


def test_k12_a_deleted_service_whose_only_endpoint_drains_already_is_not_touched_until_it_ends(node):
    node.sync(cluster(web(A)))
    connect(node.fake, B, count=0)
    node.pass_time(CHECK_S)
    node.sync(cluster(web()))
    assert weights(node.fake) == {A: 0}
    assert node.sync(NOBODY) == 1  # the accept entry
    assert weights(node.fake) == {A: 0}
    node.pass_time(DRAIN_S)
    assert weights(node.fake) is None


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(web(A, ports=((80, "UDP"),)), id="UDP"),
        pytest.param(web(A, ports=((80, "SCTP"),)), id="SCTP"),
        pytest.param(web(A, drain="0s"), id="TCP without a drain time"),
    ],
)
def test_k12_what_does_not_drain_ends_at_once_and_is_refused_for_a_while(service):
    node = Node()
    node.sync(cluster(service))
    (key,) = (key for key in node.fake.state[Kind.VIRTUAL_SERVER] if isinstance(key, VirtualServerKey))
    connect(node.fake, A, key=key)
    node.sync(NOBODY)
    assert weights(node.fake, key) is None
    assert bound(node.fake) == {VIP}
    node.pass_time(GRACE_S)
    assert bound(node.fake) == set()


def test_a_service_that_comes_back_while_it_drains_is_served_again_and_keeps_its_connections(node):
    seen = []
    node.sync(NOBODY)
    node.fake.after_message = lambda: seen.append(weights(node.fake))
    node.sync(cluster(web(A)))
    assert all(B in moment and A in moment for moment in seen)
    assert weights(node.fake) == {A: 1, B: 0}
    assert KEY in served(node.fake.state)
    node.pass_time(2 * DRAIN_S)
    assert weights(node.fake) == {A: 1}
    assert bound(node.fake) == {VIP}


def test_another_service_at_the_address_of_one_that_drains_is_served_at_once(node):
    node.sync(cluster(Svc("other", ports=((81, "TCP"),))))
    assert vs_key(VIP, 81) in served(node.fake.state)
    assert weights(node.fake) == {A: 0, B: 0}
    node.pass_time(DRAIN_S + GRACE_S)
    assert weights(node.fake) is None
    assert bound(node.fake) == {VIP}


def test_an_address_stays_until_the_last_of_its_virtual_servers_has_drained():
    node = Node()
    other = vs_key(VIP, 443)
    node.sync(cluster(web(A, ports=((80, "TCP"), (443, "TCP"), (53, "TCP")))))
    connect(node.fake, A)
    connect(node.fake, A, key=other, port=8443)
    node.sync(NOBODY)
    assert (weights(node.fake), weights(node.fake, other), weights(node.fake, vs_key(VIP, 53))) == (
        {A: 0},
        {A: 0},
        None,
    )
    connect(node.fake, A, count=0)
    node.pass_time(CHECK_S)
    assert (weights(node.fake), bound(node.fake)) == (None, {VIP})
    connect(node.fake, A, key=other, port=8443, count=0)
    node.pass_time(CHECK_S)
    assert (weights(node.fake, other), bound(node.fake)) == (None, set())


def test_k19_a_port_that_goes_drains_while_the_address_serves_the_others():
    node = Node()
    node.sync(cluster(web(A, ports=((80, "TCP"), (81, "TCP")))))
    connect(node.fake, A)
    witness = Witness(node.fake)
    node.sync(cluster(web(A, ports=((81, "TCP"),))))
    witness.check()
    assert weights(node.fake) == {A: 0}
    assert served(node.fake.state) == {vs_key(VIP, 81)}
    node.pass_time(DRAIN_S)
    assert weights(node.fake) is None


def test_k36_the_source_ranges_of_a_deleted_service_stay_as_long_as_its_streams():
    node = Node()
    node.sync(cluster(web(A, ingress=((EXTERNAL, "VIP"),), source_ranges=("198.51.100.0/24",))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    before = admitted(node.fake.state, key)
    seen = []
    node.fake.after_message = lambda: seen.append(
        key not in node.fake.state[Kind.VIRTUAL_SERVER] or admitted(node.fake.state, key) == before
    )
    node.sync(NOBODY)
    node.reconciler.audit(in_full=True)
    connect(node.fake, A, key=key, count=0)
    node.pass_time(CHECK_S)
    assert all(seen)
    assert node.fake.state[Kind.GUARD_ENTRY] == {}
    assert not [entry for entry in node.fake.state[Kind.SUPPORT_ENTRY] if "SOURCE" in str(entry)]


def test_k36_source_ranges_stay_with_a_service_whose_only_endpoint_drained_already():
    node = Node()
    ranged = {"ingress": ((EXTERNAL, "VIP"),), "source_ranges": ("198.51.100.0/24",)}
    node.sync(cluster(web(A, **ranged)))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    before = admitted(node.fake.state, key)
    node.sync(cluster(web(**ranged)))
    node.sync(NOBODY)
    assert weights(node.fake, key) == {A: 0}
    assert admitted(node.fake.state, key) == before
    node.pass_time(DRAIN_S + GRACE_S)
    assert node.fake.state[Kind.GUARD_ENTRY] == {}


def test_k36_source_ranges_stand_until_a_virtual_server_without_connections_has_gone():
    node = Node()
    node.sync(cluster(web(A, ingress=((EXTERNAL, "VIP"),), source_ranges=("198.51.100.0/24",))))
    key = vs_key(EXTERNAL, 80)
    before = admitted(node.fake.state, key)
    seen = []
    node.fake.after_message = lambda: seen.append(
        key not in node.fake.state[Kind.VIRTUAL_SERVER] or admitted(node.fake.state, key) == before
    )
    node.sync(NOBODY)
    assert all(seen)
    assert key not in node.fake.state[Kind.VIRTUAL_SERVER]


def test_k36_a_service_at_the_address_of_one_that_drains_lets_nobody_in_by_its_source_ranges():
    node = Node()
    node.sync(cluster(web(A, ingress=((EXTERNAL, "VIP"),), source_ranges=("198.51.100.0/24",))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    node.sync(NOBODY)
    witness = Witness(node.fake)
    other = Svc("other", ("10.96.0.21",), ingress=((EXTERNAL, "VIP"),), source_ranges=("198.51.100.7/32",))
    node.sync(cluster(other))
    witness.check_sources()
    assert admitted(node.fake.state, key) == {addr("198.51.100.7")}


def test_k36_a_start_keeps_the_source_ranges_of_what_drains():
    node = Node()
    node.sync(cluster(web(A, ingress=((EXTERNAL, "VIP"),), source_ranges=("198.51.100.0/24",))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    before = admitted(node.fake.state, key)
    again = Node(node.fake)
    again.sync(cluster(Svc("other", ("10.96.0.21",))))
    assert weights(node.fake, key) == {A: 0}
    assert admitted(node.fake.state, key) == before
    again.pass_time(DRAIN_S + GRACE_S)
    assert node.fake.state[Kind.GUARD_ENTRY] == {}


# Addresses that others may have


def test_a_node_port_of_a_deleted_service_goes_at_once_since_the_node_itself_answers_with_a_reset():
    node = Node(host=[HOST])
    node.sync(cluster(web(A, node_ports=(30080,))))
    key = vs_key(HOST, 30080)
    connect(node.fake, A, key=key)
    node.sync(NOBODY)
    assert weights(node.fake, key) is None


def test_an_endpoint_behind_a_node_port_drains_like_any_other():
    node = Node(host=[HOST])
    node.sync(cluster(web(A, B, node_ports=(30080,))))
    key = vs_key(HOST, 30080)
    connect(node.fake, A, key=key)
    node.sync(cluster(web(B, node_ports=(30080,))))
    assert weights(node.fake, key) == {A: 0, B: 1}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(cluster(web(A, node_ports=(30080,))), id="while its Service lives on"),
        pytest.param(NOBODY, id="with its Service"),
    ],
)
def test_the_virtual_server_on_an_address_that_the_node_lost_goes_at_once(after):
    """The address may be another host's by now, and what the node itself sends there would be caught."""
    node = Node(host=[HOST])
    node.sync(cluster(web(A, node_ports=(30080,))))
    key = vs_key(HOST, 30080)
    connect(node.fake, A, key=key)
    node.has()
    node.sync(after)
    assert weights(node.fake, key) is None


def test_k32_an_address_that_an_interface_gains_is_let_go_at_once_while_its_virtual_server_stays():
    node = Node()
    node.sync(cluster(web(A, B, external_ips=(EXTERNAL,))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    node.sync(cluster(web(B, external_ips=(EXTERNAL,))))
    node.has(EXTERNAL)
    node.sync()
    assert bound(node.fake) == {VIP}
    assert weights(node.fake, key) == {A: 0, B: 1}


@pytest.mark.parametrize("seconds", [pytest.param(0, id="that drains"), pytest.param(DRAIN_S, id="in its grace time")])
def test_k32_an_address_of_a_deleted_service_is_let_go_when_an_interface_gains_it(seconds):
    node = Node()
    node.sync(cluster(web(A, external_ips=(EXTERNAL,)), Svc("other", ("10.96.0.21",), external_ips=("203.0.113.9",))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    node.sync(cluster(Svc("other", ("10.96.0.21",), external_ips=("203.0.113.9",))))
    node.pass_time(seconds)
    assert EXTERNAL in bound(node.fake)
    node.has(EXTERNAL)
    node.sync()
    assert EXTERNAL not in bound(node.fake)
    assert weights(node.fake, key) is None
    assert node.pass_time(0).retry_at is None


def test_k32_an_address_that_an_interface_gains_as_its_service_goes_does_not_linger():
    node = Node()
    node.sync(cluster(web(A, external_ips=(EXTERNAL,))))
    connect(node.fake, A, key=vs_key(EXTERNAL, 80))
    node.has(EXTERNAL)
    node.sync(NOBODY)
    assert bound(node.fake) == set()
    assert weights(node.fake, vs_key(EXTERNAL, 80)) is None


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param({"external_ips": (EXTERNAL,)}, {}, id="an external IP"),
        pytest.param({"ingress": ((EXTERNAL, "VIP"),)}, {"ingress": ((EXTERNAL, "Proxy"),)}, id="VIP becomes Proxy"),
    ],
)
def test_k27_an_address_that_a_service_gives_up_while_it_lives_on_is_unbound_in_one_pass(before, after):
    node = Node()
    node.sync(cluster(web(A, **before)))
    connect(node.fake, A, key=vs_key(EXTERNAL, 80))
    node.sync(cluster(web(A, **after)))
    assert bound(node.fake) == {VIP}
    assert weights(node.fake, vs_key(EXTERNAL, 80)) is None


def test_k27_an_address_is_unbound_when_it_is_given_up_though_clients_were_cut_there_before():
    node = Node()
    before = cluster(web(A, ports=((53, "UDP"),), external_ips=(EXTERNAL,)))
    node.sync(before)
    connect(node.fake, A, key=vs_key(EXTERNAL, 53, Protocol.UDP), port=8053)
    node.sync(NOBODY)
    assert EXTERNAL in bound(node.fake)
    node.sync(before)
    node.sync(cluster(web(A, ports=((53, "UDP"),))))
    assert bound(node.fake) == {VIP}


def test_the_cluster_ip_of_a_service_that_was_made_anew_within_one_pass_drains(node):
    node.sync(cluster(web(A, ips=("10.96.0.21",))))
    assert weights(node.fake) == {A: 0, B: 0}
    assert bound(node.fake) == {VIP, "10.96.0.21"}


@pytest.mark.parametrize("names", [pytest.param(("a", "b"), id="before"), pytest.param(("b", "a"), id="after")])
def test_a_port_at_an_external_ip_that_its_service_gives_up_drains_where_another_service_has_the_address(names):
    """Whichever of the two is planned first."""
    first, second = names
    node = Node()
    node.sync(cluster(Svc(first, external_ips=(EXTERNAL,), endpoints=((A, True),))))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    other = Svc(second, ("10.96.0.21",), ((81, "TCP"),), external_ips=(EXTERNAL,))
    node.sync(cluster(Svc(first, endpoints=((A, True),)), other))
    assert weights(node.fake, key) == {A: 0}


def test_k08_a_port_drains_at_an_address_that_another_service_takes_over_while_the_nodes_addresses_change():
    """The node's addresses make the first Service planned anew, too: still all wants count at once."""
    node = Node(host=(HOST,))
    before = Svc("a", ports=((80, "TCP"), (53, "TCP")), node_ports=(30080, 30053), external_ips=(EXTERNAL,))
    node.sync(cluster(before))
    key = vs_key(EXTERNAL, 53)
    connect(node.fake, A, key=key, port=8053)
    node.has(HOST, "192.0.2.12")
    after = msgspec.structs.replace(before, external_ips=())
    node.sync(cluster(after, Svc("c", ("10.96.0.21",), external_ips=(EXTERNAL,))))
    assert weights(node.fake, key) == {A: 0}
    assert vs_key("192.0.2.12", 30080) in served(node.fake.state, {addr("192.0.2.12")})


@pytest.mark.parametrize("names", [pytest.param(("a", "b"), id="before"), pytest.param(("b", "a"), id="after")])
def test_a_port_at_an_external_ip_that_its_service_gives_up_drains_while_the_address_stays_for_others(names):
    """Whichever of the two is planned first."""
    first, second = names
    node = Node()
    gone = Svc(second, ("10.96.0.21",), ((81, "TCP"),), external_ips=(EXTERNAL,), endpoints=((B, True),))
    node.sync(cluster(Svc(first, external_ips=(EXTERNAL,), endpoints=((A, True),)), gone))
    key = vs_key(EXTERNAL, 80)
    connect(node.fake, A, key=key)
    connect(node.fake, B, key=vs_key(EXTERNAL, 81))
    node.sync(cluster(Svc(first, endpoints=((A, True),))))
    assert EXTERNAL in bound(node.fake)
    assert weights(node.fake, key) == {A: 0}


# What is asked, and when


def test_nothing_is_asked_and_nobody_is_woken_while_nothing_drains(node, monkeypatch):
    monkeypatch.setattr(node.fake.kernel.ipvs, "connections", lambda _: pytest.fail("asked"))
    assert node.reconciler.sync().retry_at is None
    node.clock.now += 3600
    assert node.sync(cluster(web(A, B), Svc("other", ("10.96.0.21",)))) > 0
    assert node.reconciler.audit(in_full=True).retry_at is None


def test_only_the_virtual_servers_concerned_are_asked_and_only_every_few_seconds(node, monkeypatch):
    asked: list[tuple[float, list[VirtualServerKey]]] = []
    ask = node.fake.kernel.ipvs.connections
    monkeypatch.setattr(
        node.fake.kernel.ipvs,
        "connections",
        lambda keys: asked.append((node.clock.now, list(keys))) or ask(keys),
    )
    other = Svc("other", ("10.96.0.21",))
    node.sync(cluster(web(B), other))
    node.clock.now += 1
    node.sync(cluster(web(B), Svc("other", ("10.96.0.21",), endpoints=((A, True), (B, True)))))
    node.pass_time(2 * CHECK_S)
    assert asked == [(0.0, [KEY]), (CHECK_S, [KEY]), (2 * CHECK_S, [KEY])]


def test_counts_that_cannot_be_read_end_nothing_before_its_time(node, monkeypatch):
    def unreadable(_: object) -> None:
        raise KernelError("cannot read IPVS", errno.EIO)

    monkeypatch.setattr(node.fake.kernel.ipvs, "connections", unreadable)
    connect(node.fake, A, B, count=0)
    with capture_logs() as logs:
        node.sync(cluster(web(B)))
        node.pass_time(DRAIN_S - 0.5)
    assert weights(node.fake) == {A: 0, B: 1}
    assert [line["log_level"] for line in logs if line["event"] == "connections_not_read"][:2] == ["warning", "debug"]
    node.pass_time(0.5)
    assert weights(node.fake) == {B: 1}


def test_how_much_drains_is_told_with_each_sync(node):
    node.tell(cluster(web(B)))
    assert node.reconciler.sync().draining == 1
    connect(node.fake, A, count=0)
    assert node.pass_time(CHECK_S).draining == 0


# Others, refusals, audits


def test_what_drains_is_no_drift(node):
    node.sync(cluster(web(B)))
    node.sync(NOBODY)
    for in_full in (True, False):
        assert node.reconciler.audit(in_full=in_full).operations == 0
    assert not node.reconciler.tally.drift


def test_a_weight_that_somebody_gives_back_is_taken_away_again(node):
    node.sync(cluster(web(B)))
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 1), (B, 8080))
    node.reconciler.audit(in_full=True)
    assert weights(node.fake) == {A: 0, B: 1}
    node.pass_time(DRAIN_S)
    assert weights(node.fake) == {B: 1}


def test_a_server_that_somebody_else_has_added_drains_by_the_default():
    node = Node()
    node.sync(cluster(web(B, drain="1s")))
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 5), (B, 8080))
    connect(node.fake, A)
    node.reconciler.audit(in_full=True)
    assert weights(node.fake) == {A: 0, B: 1}
    node.pass_time(DRAIN_S)
    assert weights(node.fake) == {B: 1}


def remove_real_server(fake: FakeKernel) -> None:
    fake.state[Kind.REAL_SERVER][KEY] = blob((B, 8080, 0))


def remove_virtual_server(fake: FakeKernel) -> None:
    del fake.state[Kind.VIRTUAL_SERVER][KEY]
    del fake.state[Kind.REAL_SERVER][KEY]


def remove_address(fake: FakeKernel) -> None:
    del fake.state[Kind.ADDRESS][KEY.address]


@pytest.mark.parametrize("remove", [remove_real_server, remove_virtual_server, remove_address])
def test_what_lingers_and_somebody_deletes_is_not_made_again(node, remove):
    node.sync(NOBODY)
    remove(node.fake)
    before = {kind: dict(objects) for kind, objects in node.fake.state.items()}
    connect(node.fake, A, B, count=1)
    node.reconciler.audit(in_full=True)
    for kind in (Kind.REAL_SERVER, Kind.VIRTUAL_SERVER, Kind.ADDRESS):
        assert node.fake.state[kind].items() <= before[kind].items()
    node.pass_time(DRAIN_S + GRACE_S)
    assert weights(node.fake) is None
    assert bound(node.fake) == set()


def test_an_address_that_is_lost_while_it_lingers_is_not_bound_again(node):
    node.sync(NOBODY)
    del node.fake.state[Kind.ADDRESS][KEY.address]
    node.reconciler.device_changed(DeviceChanged(DeviceChange.ADDRESS_LOST, KEY.address))
    node.sync()
    assert node.fake.state[Kind.ADDRESS] == {}


def test_k31_the_closing_entry_of_an_address_that_lingers_is_put_back(node):
    node.sync(NOBODY)
    node.fake.state[Kind.BOUND_ENTRY].clear()
    node.reconciler.audit(in_full=True)
    assert bound(node.fake) == {VIP}


def test_a_weight_that_the_kernel_refuses_to_take_away_is_tried_again(node):
    node.fake.faults = {(Verb.EDIT, Kind.REAL_SERVER, KEY): errno.ENOMEM}
    node.sync(cluster(web(B)))
    assert weights(node.fake) == {A: 1, B: 1}
    node.fake.faults = {}
    node.pass_time(1)
    assert weights(node.fake) == {A: 0, B: 1}


def test_a_deletion_at_the_end_that_the_kernel_refuses_is_tried_again(node):
    node.sync(NOBODY)
    connect(node.fake, A, B, count=0)
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, KEY): errno.EBUSY}
    node.pass_time(CHECK_S)
    node.fake.faults = {}
    node.pass_time(1)
    assert weights(node.fake) is None
    assert bound(node.fake) == set()


# Starts and ends


def test_k13_after_a_crash_what_drained_drains_on_with_all_its_time_and_what_is_ready_serves_at_once(node):
    node.sync(cluster(web(B)))
    node.pass_time(DRAIN_S - 10)
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 0), (B, 8080, 0))
    again = Node(node.fake)
    assert again.sync(cluster(web(B))) == 2  # B's weight; whether anything is connected to A
    assert weights(node.fake) == {A: 0, B: 1}
    again.pass_time(DRAIN_S - 0.5)
    assert weights(node.fake) == {A: 0, B: 1}
    again.pass_time(0.5)
    assert weights(node.fake) == {B: 1}


def test_k13_what_left_while_nobody_looked_drains_whatever_its_weight(node):
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 5), (B, 8080, 1))
    Node(node.fake).sync(cluster(web(B)))
    assert weights(node.fake) == {A: 0, B: 1}


def test_k13_a_service_that_was_deleted_while_nobody_looked_drains(node):
    again = Node(node.fake)
    again.sync(cluster(Svc("other", ("10.96.0.21",))))
    assert weights(node.fake) == {A: 0, B: 0}
    assert VIP in bound(node.fake)
    again.pass_time(DRAIN_S + GRACE_S)
    assert weights(node.fake) is None
    assert VIP not in bound(node.fake)


def test_k14_nothing_loses_its_weight_before_services_and_slices_are_listed(node):
    node.sync(cluster(web(B)))
    node.fake.state[Kind.REAL_SERVER][KEY] = blob((A, 8080, 0), (B, 8080, 1))
    node.fake.state[Kind.VIRTUAL_SERVER][vs_key(VIP, 81)] = VirtualServer("rr")
    node.fake.state[Kind.REAL_SERVER][vs_key(VIP, 81)] = blob((A, 1, 7))
    connect(node.fake, A, key=vs_key(VIP, 81), port=1)
    again = Node(node.fake)
    node.fake.state[Kind.REAL_SERVER][vs_key(VIP, 81)] = blob((A, 1, 7), (B, 1, 7))  # drift, and nobody knows of what
    before = {kind: dict(objects) for kind, objects in node.fake.state.items()}
    for in_full in (False, True):
        again.reconciler.audit(in_full=in_full)
        again.reconciler.distrust((Kind.REAL_SERVER,))
        again.reconciler.sync()
    assert node.fake.state == before


def test_the_first_pass_gives_each_service_its_own_drain_time(node):
    node.sync(cluster(web(A, B, drain="10s")))
    again = Node(node.fake)
    again.sync(cluster(web(B, drain="10s")))
    again.pass_time(10)
    assert weights(node.fake) == {B: 1}


def test_clean_up_waits_for_nobody(node):
    node.sync(cluster(web(B)))
    clean(node.fake)
    assert node.fake.state[Kind.VIRTUAL_SERVER] == node.fake.state[Kind.ADDRESS] == {}


def test_a_running_program_that_is_told_to_remove_all_waits_for_nobody(node):
    node.sync(NOBODY)
    assert node.reconciler.remove_all().retry_at is None
    assert node.fake.state[Kind.VIRTUAL_SERVER] == node.fake.state[Kind.ADDRESS] == {}


def test_every_time_of_what_lingers_is_finite(node):
    result = node.reconciler.sync()
    node.sync(NOBODY)
    result = node.reconciler.sync()
    assert result.retry_at is not None
    assert math.isfinite(result.retry_at)


def test_a_service_with_many_endpoints_of_which_one_is_busy_keeps_that_one_only():
    endpoints = tuple(f"10.244.3.{n}" for n in range(1, 60))
    node = Node()
    node.sync(cluster(web(*endpoints)))
    connect(node.fake, endpoints[7])
    node.sync(cluster(msgspec.structs.replace(web(*endpoints[1:2]))))
    assert weights(node.fake) == {endpoints[1]: 1, endpoints[7]: 0}


def test_an_ipv6_service_drains_as_well():
    node = Node()
    key = vs_key("fd00:10:96::20", 80)
    node.sync(cluster(web("fd00:10:244::5", ips=("fd00:10:96::20",))))
    connect(node.fake, "fd00:10:244::5", key=key)
    node.sync(NOBODY)
    assert weights(node.fake, key) == {"fd00:10:244::5": 0}
    node.pass_time(DRAIN_S)
    assert (weights(node.fake, key), bound(node.fake)) == (None, {"fd00:10:96::20"})
    node.pass_time(GRACE_S)
    assert node.fake.state[Kind.ADDRESS].get(addr("fd00:10:96::20")) is None
