"""Node ports, external and load-balancer IPs while the node's own addresses come and go."""

from __future__ import annotations

import errno

import pytest

from ipvsproxy.cluster.events import Changed, ObjectRef
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.node_ports import NodePortAddresses
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.reconciler import Reconciler
from tests.builders import FakeClock, addr, blob, vs_key
from tests.clusters import NODE, Node, Svc, cluster
from tests.witness import Witness, closed, served

FIRST, SECOND = "192.0.2.11", "198.51.100.11"
FLOATING = "192.0.2.50"
EXTERNAL, BALANCER = "203.0.113.20", "203.0.113.10"
TWO_ENDPOINTS = (("10.244.1.5", True), ("10.244.2.5", True))
OPTIONS = ServiceOptions(frozenset(Family))


def mixed(node_port_services: int, others: int):
    """NodePort Services of one port and two endpoints, and plain Services."""
    return cluster(
        *(
            Svc(f"np{n}", (f"10.96.1.{n}",), endpoints=TWO_ENDPOINTS, node_ports=(30000 + n,))
            for n in range(1, node_port_services + 1)
        ),
        *(Svc(f"s{n}", (f"10.96.2.{n}",)) for n in range(1, others + 1)),
    )


def virtual_servers_on(node: Node, address: str) -> set[str]:
    return {str(key) for key in node.fake.state[Kind.VIRTUAL_SERVER] if key.address == addr(address)}  # type: ignore[union-attr]


def set_members(node: Node, name: str) -> set[str]:
    kinds = (Kind.SUPPORT_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)
    entries = [entry for kind in kinds for entry in node.fake.state[kind] if isinstance(entry, SetEntry)]
    return {entry.member for entry in entries if entry.set_name == name}


def bound(node: Node) -> set[str]:
    return {format_addr(address) for address in node.fake.state[Kind.ADDRESS]}  # type: ignore[arg-type]


class CountingMode(IpvsMode):
    """Remembers which Services were planned."""

    def __init__(self, options: IpvsOptions) -> None:
        super().__init__(options)
        self.planned: list[str] = []

    def plan(self, view, slices, host):
        self.planned.append(view.name.name)
        return super().plan(view, slices, host)


def node_with(mode: IpvsMode) -> Node:
    """A node that runs this mode."""
    node = Node()
    node.reconciler = Reconciler(node.fake.kernel, node.tracker, mode, node.clock)
    node.reconciler.start()
    return node


# K23: an address more or less


@pytest.mark.parametrize("others", [pytest.param(1, id="beside 1 Service"), pytest.param(200, id="beside 200")])
@pytest.mark.parametrize("count", [pytest.param(1, id="1 node port"), pytest.param(3, id="3 node ports")])
def test_k23_an_address_more_is_its_trace_and_a_virtual_server_with_its_real_servers_for_each_node_port(count, others):
    node = Node(host=[FIRST])
    node.sync(mixed(count, others))
    before = node.fake.messages
    assert node.has(FIRST, FLOATING)
    assert node.sync() == 1 + count * (1 + len(TWO_ENDPOINTS))
    assert virtual_servers_on(node, FLOATING) == {f"{FLOATING}:{30000 + n}/TCP" for n in range(1, count + 1)}
    assert node.fake.messages - before == 1 + count * 3


@pytest.mark.parametrize("others", [pytest.param(1, id="beside 1 Service"), pytest.param(200, id="beside 200")])
def test_k23_an_address_less_is_one_message_for_its_trace_and_each_node_port(others):
    node = Node(host=[FIRST, FLOATING])
    node.sync(mixed(3, others))
    assert node.has(FIRST)
    assert node.sync() == 1 + 3
    assert virtual_servers_on(node, FLOATING) == set()
    assert len(virtual_servers_on(node, FIRST)) == 3


def test_k23_only_services_that_the_hosts_addresses_matter_to_are_planned_again():
    mode = CountingMode(IpvsOptions(OPTIONS))
    node = node_with(mode)
    node.sync(
        cluster(
            Svc("plain"),
            Svc("node-port", ("10.96.0.21",), node_ports=(30080,)),
            Svc("external", ("10.96.0.22",), external_ips=(EXTERNAL,)),
            Svc("balanced", ("10.96.0.23",), ingress=((BALANCER, "VIP"),)),
            Svc("proxied", ("10.96.0.24",), ingress=((BALANCER, "Proxy"),)),
        )
    )
    mode.planned.clear()
    node.has(FIRST)
    node.sync()
    assert sorted(mode.planned) == ["balanced", "external", "node-port"]


def test_a_service_that_gave_its_node_port_up_or_went_is_not_planned_again():
    mode = CountingMode(IpvsOptions(OPTIONS))
    node = node_with(mode)
    node.has(FIRST)
    node.sync(cluster(Svc("a", node_ports=(30080,)), Svc("b", ("10.96.0.21",), node_ports=(30081,))))
    node.sync(cluster(Svc("a")))
    mode.planned.clear()
    node.has(FIRST, SECOND)
    assert node.sync() == 1  # the trace of node ports on it
    assert mode.planned == []
    assert virtual_servers_on(node, FIRST) == virtual_servers_on(node, SECOND) == set()


def test_the_same_addresses_again_are_no_news():
    node = Node(host=[FIRST, SECOND])
    node.sync(mixed(1, 1))
    assert not node.has(SECOND, FIRST)
    assert node.sync() == 0


def test_an_address_that_went_and_came_back_between_two_syncs_sends_nothing():
    node = Node(host=[FIRST, FLOATING])
    node.sync(mixed(2, 1))
    node.has(FIRST)
    node.has(FIRST, FLOATING)
    assert node.sync() == 0


def test_k23_an_address_that_comes_with_a_new_service_is_served_in_the_same_sync():
    node = Node(host=[FIRST])
    node.sync(mixed(1, 1))
    node.has(FIRST, FLOATING)
    node.sync(mixed(2, 1))
    assert virtual_servers_on(node, FLOATING) == {f"{FLOATING}:30001/TCP", f"{FLOATING}:30002/TCP"}


def test_k23_addresses_that_change_before_the_cluster_is_known_count_when_it_is():
    node = Node(host=[FIRST])
    node.has(SECOND)
    node.reconciler.sync()
    node.sync(mixed(1, 0))
    assert virtual_servers_on(node, SECOND) == {f"{SECOND}:30001/TCP"}
    assert virtual_servers_on(node, FIRST) == set()


def test_k23_no_virtual_server_joins_a_vip_with_a_node_port():
    node = Node(host=[FIRST])
    node.sync(cluster(Svc("a", node_ports=(30080,), external_ips=(EXTERNAL,), ingress=((BALANCER, "VIP"),))))
    assert {str(key) for key in node.fake.state[Kind.VIRTUAL_SERVER]} == {
        "10.96.0.20:80/TCP", f"{EXTERNAL}:80/TCP", f"{BALANCER}:80/TCP", f"{FIRST}:30080/TCP",
    }  # fmt: skip


def test_k23_primary_follows_the_node_object():
    node = node_with(IpvsMode(IpvsOptions(OPTIONS, node_ports=NodePortAddresses(primary=True))))
    node.has(FIRST, SECOND)
    node.sync(mixed(1, 0))
    assert virtual_servers_on(node, FIRST) == virtual_servers_on(node, SECOND) == set()
    for now, other in ((FIRST, SECOND), (SECOND, FIRST)):
        node.tracker.note(Changed(ObjectRef("Node", "", NODE), node_object(now, other)))
        node.sync()
        assert virtual_servers_on(node, now) == {f"{now}:30001/TCP"}
        assert virtual_servers_on(node, other) == set()


def node_object(*addresses: str) -> api.Node:
    status = api.NodeStatus(tuple(api.NodeAddress("InternalIP", address) for address in addresses))
    return api.Node(metadata=api.Metadata(name=NODE), status=status)


def test_k30_sctp_set_entries_follow_the_hosts_addresses():
    node = Node(host=[FIRST, SECOND])
    node.sync(cluster(Svc("a", ports=((2905, "SCTP"),), node_ports=(30132,))))
    name = "KUBE-NODE-PORT-SCTP-HASH"
    assert set_members(node, name) == {f"{FIRST},sctp:30132", f"{SECOND},sctp:30132"}
    node.has(FIRST, SECOND, FLOATING)
    assert node.sync() == 4  # its trace, the entry, the virtual server, the real server
    assert set_members(node, name) == {f"{address},sctp:30132" for address in (FIRST, SECOND, FLOATING)}
    node.has(SECOND)
    node.sync()
    assert set_members(node, name) == {f"{SECOND},sctp:30132"}
    assert virtual_servers_on(node, FIRST) == virtual_servers_on(node, FLOATING) == set()
    assert virtual_servers_on(node, SECOND) == {f"{SECOND}:30132/SCTP"}


def test_a_port_stays_in_its_set_while_one_of_two_services_has_it_as_node_port():
    node = Node(host=[FIRST])
    both = Svc("b", ("10.96.0.21",), node_ports=(30080,), created="2026-02-01T00:00:00Z")
    node.sync(cluster(Svc("a", node_ports=(30080,)), both))
    node.sync(cluster(both))
    assert set_members(node, "KUBE-NODE-PORT-TCP") == {"30080"}
    assert vs_key(FIRST, 30080) in served(node.fake.state, {addr(FIRST)})


# K32: a VIP that another interface of the node has


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(Svc("a", external_ips=(FLOATING,)), id="an external IP"),
        pytest.param(Svc("a", ingress=((FLOATING, "VIP"),)), id="a load-balancer IP"),
    ],
)
def test_k32_a_vip_that_appears_on_another_interface_is_let_go_in_one_sync_and_comes_back(service):
    node = Node(host=[FIRST])
    node.sync(cluster(service))
    key = vs_key(FLOATING, 80)
    assert FLOATING in bound(node)

    node.has(FIRST, FLOATING)
    witness = Witness(node.fake, {addr(FIRST), addr(FLOATING)})
    assert node.sync() == 3  # the address, the entry that closed its other ports, the trace of node ports
    witness.check()
    assert FLOATING not in bound(node)
    assert addr(FLOATING) not in closed(node.fake.state)
    assert key in witness.before & served(node.fake.state, witness.host)

    node.has(FIRST)
    Witness(node.fake, {addr(FIRST)})
    assert node.sync() == 3
    assert FLOATING in bound(node)
    assert key in served(node.fake.state)


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(Svc("a", external_ips=(FIRST,)), id="an external IP"),
        pytest.param(Svc("a", ingress=((FIRST, "VIP"),)), id="a load-balancer IP"),
    ],
)
def test_k32_the_nodes_own_address_is_served_and_its_other_ports_stay_open(service):
    node = Node(host=[FIRST, SECOND])
    node.sync(cluster(service))
    assert bound(node) == {"10.96.0.20"}
    assert closed(node.fake.state) == {addr("10.96.0.20")}
    assert vs_key(FIRST, 80) in served(node.fake.state, {addr(FIRST)})


def test_k32_an_address_that_a_former_run_bound_is_let_go_at_start_when_the_node_has_it_now():
    first = Node(host=[FIRST])
    first.sync(cluster(Svc("a", external_ips=(FLOATING,))))
    second = Node(first.fake, host=[FIRST, FLOATING])
    second.sync(cluster(Svc("a", external_ips=(FLOATING,))))
    assert bound(second) == {"10.96.0.20"}
    assert addr(FLOATING) not in closed(second.fake.state)


def test_k32_an_address_that_is_also_a_cluster_ip_stays_for_its_service():
    node = Node(host=[FIRST])
    node.sync(cluster(Svc("a"), Svc("b", ("10.96.0.21",), ports=((81, "TCP"),), external_ips=("10.96.0.20",))))
    node.has(FIRST, "10.96.0.20")
    assert node.sync() == 1  # the trace of node ports on it
    assert "10.96.0.20" in bound(node)


# Other ways in over time


def test_k27_a_load_balancer_that_becomes_its_own_proxy_is_unbound_in_one_sync():
    node = Node(host=[FIRST])
    node.sync(cluster(Svc("a", ingress=((BALANCER, "VIP"),))))
    node.sync(cluster(Svc("a", ingress=((BALANCER, "Proxy"),))))
    assert bound(node) == {"10.96.0.20"}
    assert set_members(node, "KUBE-LOAD-BALANCER") == virtual_servers_on(node, BALANCER) == set()
    assert set_members(node, "KUBE-IPVS-IPS") == {"10.96.0.20"}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"external_ips": (EXTERNAL,)}, id="an external IP"),
        pytest.param({"ingress": ((EXTERNAL, "VIP"),)}, id="a load-balancer IP"),
    ],
)
def test_k19_an_address_from_outside_stays_bound_while_ports_of_it_go(fields):
    node = Node()
    node.sync(cluster(Svc("a", ports=((80, "TCP"), (443, "TCP"), (443, "UDP")), **fields)))
    moments = []
    node.fake.after_message = lambda: moments.append(
        (EXTERNAL in bound(node), vs_key(EXTERNAL, 80) in served(node.fake.state))
    )
    node.sync(cluster(Svc("a", ports=((80, "TCP"),), **fields)))
    assert set(moments) == {(True, True)}
    assert virtual_servers_on(node, EXTERNAL) == {f"{EXTERNAL}:80/TCP"}


def test_k21_the_first_endpoint_is_one_message_for_each_way_in():
    node = Node(host=[FIRST])
    ways_in = {"node_ports": (30080,), "external_ips": (EXTERNAL,), "ingress": ((BALANCER, "VIP"),)}
    node.sync(cluster(Svc("a", endpoints=(), **ways_in)))
    keys = {vs_key("10.96.0.20", 80), vs_key(FIRST, 30080), vs_key(EXTERNAL, 80), vs_key(BALANCER, 80)}
    assert node.fake.state[Kind.REAL_SERVER] == dict.fromkeys(keys, b"")
    assert node.sync(cluster(Svc("a", endpoints=(("10.244.1.5", True),), **ways_in))) == len(keys)
    assert node.fake.state[Kind.REAL_SERVER] == dict.fromkeys(keys, blob(("10.244.1.5", 8080)))


def test_k03_the_loop_back_set_holds_the_local_endpoints_exactly_and_follows_them_in_one_sync():
    node = Node(host=[FIRST])
    ways_in = {"node_ports": (30080,), "external_ips": (EXTERNAL,), "ingress": ((BALANCER, "VIP"),)}

    def members(*local: str):
        node.sync(
            cluster(
                Svc("a", endpoints=tuple((ip, ip != "10.244.1.9") for ip in local), local=True, **ways_in),
                Svc("remote", ("10.96.0.21",), endpoints=(("10.244.2.5", True),)),
            )
        )
        return set_members(node, "KUBE-LOOP-BACK")

    assert members("10.244.1.5") == {"10.244.1.5,tcp:8080,10.244.1.5"}
    assert members("10.244.1.5", "10.244.1.9") == {  # one that is not ready is there too
        "10.244.1.5,tcp:8080,10.244.1.5", "10.244.1.9,tcp:8080,10.244.1.9",
    }  # fmt: skip
    assert members("10.244.1.6") == {"10.244.1.6,tcp:8080,10.244.1.6"}
    assert members() == set()


# Starts, clean-up, lost answers


def test_k48_a_start_takes_over_what_a_former_run_left_on_node_ports_and_removes_what_is_not_wanted():
    first = Node(host=[FIRST])
    first.sync(mixed(2, 0))
    foreign = (vs_key("192.0.2.99", 30001), vs_key(FIRST, 8443))
    for key in foreign:
        first.fake.state[Kind.VIRTUAL_SERVER][key] = VirtualServer("wlc")
        first.fake.state[Kind.REAL_SERVER][key] = b""
    second = Node(first.fake, host=[FIRST])
    second.sync(mixed(1, 0))
    assert set(second.fake.state[Kind.VIRTUAL_SERVER]) == {vs_key("10.96.1.1", 80), vs_key(FIRST, 30001), *foreign}


def test_clean_up_removes_node_ports_on_the_addresses_that_it_is_told():
    node = Node(host=[FIRST])
    node.sync(
        cluster(Svc("a", node_ports=(30080,)), Svc("b", ("10.96.0.21",), ports=((9, "SCTP"),), node_ports=(30132,)))
    )
    mode = IpvsMode(IpvsOptions(OPTIONS))
    reconciler = Reconciler(node.fake.kernel, Tracker(NODE, frozenset(Family)), mode, FakeClock())
    reconciler.host_changed(frozenset({addr(FIRST)}))
    reconciler.remove_all()
    left = {kind: set(objects) for kind, objects in node.fake.state.items() if objects and kind is not Kind.SYSCTL}
    assert left == {}


def test_the_virtual_server_of_an_address_that_went_is_deleted_though_the_first_try_was_lost():
    node = Node(host=[FIRST, FLOATING])
    node.sync(mixed(1, 1))
    real = node.fake.kernel.ipvs.apply
    node.fake.kernel.ipvs.apply = lambda operations: [errno.ENOBUFS for _ in operations]  # type: ignore[method-assign]
    node.has(FIRST)
    node.sync()
    node.fake.kernel.ipvs.apply = real  # type: ignore[method-assign]
    assert virtual_servers_on(node, FLOATING)
    node.clock.now += 60
    node.sync()
    assert virtual_servers_on(node, FLOATING) == set()
    assert virtual_servers_on(node, FIRST) == {f"{FIRST}:30001/TCP"}


def test_k30_sctp_that_the_kernel_cannot_serve_costs_no_other_service_anything(events):
    node = Node(host=[FIRST])
    service = Svc("signal", ("10.96.0.21",), ports=((2905, "SCTP"),), node_ports=(30132,))
    refused = [vs_key("10.96.0.21", 2905, Protocol.SCTP), vs_key(FIRST, 30132, Protocol.SCTP)]
    node.fake.faults = {("add", Kind.VIRTUAL_SERVER, key): errno.EPROTONOSUPPORT for key in refused}
    node.sync(cluster(Svc("web", node_ports=(30080,)), service))
    assert {vs_key("10.96.0.20", 80), vs_key(FIRST, 30080)} <= served(node.fake.state, {addr(FIRST)})
    told = [event for event in events if event["event"] == "operation_refused"]
    assert [event["services"] for event in told] == [["default/signal"]] * 2
