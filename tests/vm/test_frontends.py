"""Real packets to every kind of frontend besides the cluster IP: node ports, load-balancer IPs, external IPs.

One state of the cluster holds all of them, so most tests only ask. Addresses are those of tests/lab/hosts.py.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster, Namespace
from tests.lab.traffic import Conversation, Transport, ask, serving
from tests.vm.nodes import AddressLog, ProxyNode, bound, sets, virtual_servers
from tests.vm.places import A1, A2, B1, BRIDGE, every_family, every_transport, ready


class Way(NamedTuple):
    """A way in: an address for each family, and a port."""

    addresses: tuple[str, str]
    port: int


SCTP_CLUSTER_IP = Way(("10.96.0.30", "2001:db8:96::30"), 132)
LOAD_BALANCER = Way(("203.0.113.10", "2001:db8:113::10"), 80)
EXTERNAL_IP = Way(("203.0.113.11", "2001:db8:113::11"), 80)
NODE_PORT = Way(NODE_ADDRESSES, 30080)
SCTP_NODE_PORT = Way(NODE_ADDRESSES, 30132)
SCTP_LOAD_BALANCER = Way(("203.0.113.30", "2001:db8:113::30"), 132)
SCTP_EXTERNAL_IP = Way(("203.0.113.31", "2001:db8:113::31"), 132)
PROXIED = ("203.0.113.12", "2001:db8:113::12")
BALANCER = ("203.0.113.70", "2001:db8:113::70")
LATE = ("192.0.2.50", "2001:db8:1::50")
"""An address that the node has not."""

WEB = Svc(
    "web",
    ("10.96.0.20", "2001:db8:96::20"),
    ((80, "TCP"), (80, "UDP"), (443, "TCP"), (53, "UDP")),
    ready(A1, A2, B1),
    node_ports=(30080, 30080, 30443, 30053),
    external_ips=EXTERNAL_IP.addresses,
    ingress=(*((ip, "VIP") for ip in LOAD_BALANCER.addresses), *((ip, "Proxy") for ip in PROXIED)),
)
SCTP = Svc(
    "sctp",
    SCTP_CLUSTER_IP.addresses,
    ((132, "SCTP"),),
    ready(A1, A2, B1),
    node_ports=(30132,),
    external_ips=SCTP_EXTERNAL_IP.addresses,
    ingress=tuple((address, "VIP") for address in SCTP_LOAD_BALANCER.addresses),
)
EMPTY = Svc(
    "empty",
    ("10.96.0.21", "2001:db8:96::21"),
    ((80, "TCP"), (80, "UDP")),
    (),
    node_ports=(30081, 30081),
    ingress=(("203.0.113.20", "VIP"), ("2001:db8:113::20", "VIP")),
)
OWN = Svc("own", ("10.96.0.22", "2001:db8:96::22"), endpoints=ready(A1, A2, B1), external_ips=NODE_ADDRESSES)
ALL = (WEB, SCTP, EMPTY, OWN)

every_client = pytest.mark.parametrize(
    "client",
    [
        pytest.param("a3", id="a pod"),
        pytest.param("node", id="the node itself"),
        pytest.param("remote", id="another node"),
        pytest.param("outside", id="a client outside"),
    ],
)
every_way = pytest.mark.parametrize(
    "way",
    [
        pytest.param(NODE_PORT, id="node port"),
        pytest.param(LOAD_BALANCER, id="load-balancer IP"),
        pytest.param(EXTERNAL_IP, id="external IP"),
    ],
)


@pytest.fixture
def served(node: ProxyNode) -> ProxyNode:
    """The node with all the Services."""
    node.sync(*ALL)
    return node


@pytest.fixture(scope="module", autouse=True)
def _sshd(hosts: Cluster) -> Iterator[None]:
    """The node listens on port 22 of all its addresses of both families."""
    places = [(hosts.node, "sshd", "::", 22, transport) for transport in (Transport.TCP, Transport.UDP)]
    with serving(*places):
        yield


@pytest.fixture(scope="module")
def _sctp(hosts: Cluster) -> Iterator[None]:
    """The endpoints of the SCTP Service answer."""
    try:
        hosts.node.socket(socket.AF_INET, *Transport.SCTP.value).close()
    except OSError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            raise
        pytest.skip("this kernel has no SCTP sockets")
    places = (("a1", hosts["a1"], A1), ("a2", hosts["a2"], A2), ("b1", hosts["b1"], B1))
    with serving(*((host, name, address, 8132, Transport.SCTP) for name, host, pod in places for address in pod)):
        yield


def answers(
    node: ProxyNode, client: str, way: Way, family: int, transport: Transport = Transport.TCP
) -> dict[str, str]:
    """Who answered three questions → the address that it saw the client at."""
    told = (ask(node.hosts[client], way.addresses[family], way.port, transport) for _ in range(3))
    return {answer.server: answer.client for answer in told}


def assert_refused(node: ProxyNode, client: str, way: Way, family: int, transport: Transport = Transport.TCP) -> None:
    """At once, not by silence."""
    with pytest.raises(ConnectionRefusedError):
        ask(node.hosts[client], way.addresses[family], way.port, transport)


@every_way
@every_family
@every_transport
@every_client
def test_all_endpoints_answer_in_turn(served, client, way, transport, family):
    assert set(answers(served, client, way, family, transport)) == {"a1", "a2", "b1"}


@every_way
@every_family
@pytest.mark.parametrize(
    "client",
    [
        pytest.param("node", id="the node itself, not at the VIP that it takes for its source (K02)"),
        pytest.param("outside", id="a client outside, so that the answer comes back through here"),
    ],
)
def test_an_endpoint_on_another_node_sees_at_the_nodes_address(served, client, way, family):
    assert answers(served, client, way, family)["b1"] == NODE_ADDRESSES[family]


@every_way
@every_family
@every_transport
def test_a_pod_reaches_itself_k03(served, way, transport, family):
    assert answers(served, "a1", way, family, transport)["a1"] == BRIDGE[family]


@pytest.mark.usefixtures("_sctp")
@every_family
@every_client
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(SCTP_CLUSTER_IP, id="cluster IP"),
        pytest.param(SCTP_NODE_PORT, id="node port"),
        pytest.param(SCTP_LOAD_BALANCER, id="load-balancer IP"),
        pytest.param(SCTP_EXTERNAL_IP, id="external IP"),
    ],
)
def test_all_endpoints_answer_in_turn_over_sctp_k30(served, client, way, family):
    assert set(answers(served, client, way, family, Transport.SCTP)) == {"a1", "a2", "b1"}


@every_family
@every_transport
def test_a_node_port_at_localhost_is_refused_k22(served, transport, family):
    loopback = ("127.0.0.1", "::1")
    assert_refused(served, "node", Way(loopback, NODE_PORT.port), family, transport)
    assert not [line for line in virtual_servers(served.host) if " 127." in line or "[::1]" in line]


@every_family
@every_transport
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
@pytest.mark.parametrize("way", [LOAD_BALANCER, EXTERNAL_IP], ids=["load-balancer IP", "external IP"])
def test_a_port_of_the_node_is_closed_at_k31(served, client, way, transport, family):
    assert_refused(served, client, way._replace(port=22), family, transport)


@every_family
@every_transport
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(NODE_ADDRESSES, 30081), id="node port"),
        pytest.param(Way(("203.0.113.20", "2001:db8:113::20"), 80), id="load-balancer IP"),
    ],
)
def test_without_endpoints_it_refuses_at_once_k21(served, client, way, transport, family):
    """IPVS drops what the node itself sends over UDP and says so: EPERM."""
    refusal = PermissionError if (client, transport) == ("node", Transport.UDP) else ConnectionRefusedError
    with pytest.raises(refusal):
        ask(served.hosts[client], way.addresses[family], way.port, transport)


@every_family
@pytest.mark.parametrize(
    "way, transport",
    [
        pytest.param(NODE_PORT._replace(port=30443), Transport.TCP, id="node port, the second of TCP"),
        pytest.param(NODE_PORT._replace(port=30053), Transport.UDP, id="node port, the second of UDP"),
        pytest.param(LOAD_BALANCER._replace(port=443), Transport.TCP, id="load-balancer IP, the second of TCP"),
        pytest.param(LOAD_BALANCER._replace(port=53), Transport.UDP, id="load-balancer IP, the second of UDP"),
        pytest.param(EXTERNAL_IP._replace(port=443), Transport.TCP, id="external IP, the second of TCP"),
        pytest.param(EXTERNAL_IP._replace(port=53), Transport.UDP, id="external IP, the second of UDP"),
    ],
)
def test_every_port_of_one_address_is_served_k19(served, way, transport, family):
    assert set(answers(served, "outside", way, family, transport)) == {"a1", "a2", "b1"}


@every_family
def test_a_port_that_leaves_takes_neither_an_address_nor_another_port_away_k19(served, family):
    fewer = msgspec.structs.replace(WEB, ports=WEB.ports[:2], node_ports=WEB.node_ports[:2])
    with AddressLog(served.host) as addresses:
        for _ in served.syncing(fewer, SCTP, EMPTY, OWN):
            for way in (NODE_PORT, LOAD_BALANCER, EXTERNAL_IP):
                assert ask(served.hosts["outside"], way.addresses[family], way.port)
    assert not addresses.deleted.intersection(LOAD_BALANCER.addresses + EXTERNAL_IP.addresses)
    for way in (NODE_PORT._replace(port=30443), LOAD_BALANCER._replace(port=443), EXTERNAL_IP._replace(port=443)):
        assert_refused(served, "outside", way, family)
    assert ask(served.hosts["outside"], LOAD_BALANCER.addresses[family], 80, Transport.UDP)


@every_family
def test_an_address_of_the_node_serves_node_ports_from_its_notification_until_it_goes_k23_k30(served, family):
    own, late = (shown(address) for address in (NODE_ADDRESSES[family], LATE[family]))
    before = [text for text in virtual_servers(served.host) if f" {own}:30" in text]
    entry = f"add {('KUBE-', 'KUBE-6-')[family]}NODE-PORT-SCTP-HASH {LATE[family]},sctp:30132"
    with address_on_eth0(served, LATE[family]):
        gained = {text.replace(own, late) for text in before}
        served.proxy.wait_until(lambda: servers_at(served, late) == gained)
        # Its entries, of SCTP and as a trace, and nothing else. A sync of its own ends what former tests left draining.
        served.proxy.wait_for("sync_finished", lambda line: line["operations"] == len(gained) + 2)
        assert set(before) < set(virtual_servers(served.host))
        assert entry in sets(served.host)
        for transport in (Transport.TCP, Transport.UDP):
            way = NODE_PORT._replace(addresses=LATE)
            assert set(answers(served, "outside", way, family, transport)) == {"a1", "a2", "b1"}
    served.proxy.wait_until(lambda: not servers_at(served, late))
    assert set(before) < set(virtual_servers(served.host))
    served.proxy.wait_until(lambda: entry not in sets(served.host))


@every_family
@every_client
def test_k32_an_external_ip_that_is_the_nodes_own_address_is_served_and_its_other_ports_stay_open(
    served, client, family
):
    own = Way(NODE_ADDRESSES, 80)
    assert set(answers(served, client, own, family)) == {"a1", "a2", "b1"}
    assert ask(served.hosts[client], own.addresses[family], 22).server == "sshd"


def test_k32_the_nodes_own_address_is_neither_bound_nor_in_the_set_that_closes_ports(served):
    assert not [address for address in bound(served.host) if address.startswith(NODE_ADDRESSES)]
    assert not [line for line in sets(served.host) if "IPVS-IPS" in line and line.endswith(NODE_ADDRESSES)]


@every_family
def test_k32_a_bound_address_that_the_node_gets_on_another_interface_is_let_go_for_as_long(served, family):
    address = EXTERNAL_IP.addresses[family]
    prefix = f"{address}/{(32, 128)[family]}"
    assert prefix in bound(served.host)
    with address_on_eth0(served, address):
        served.proxy.wait_until(lambda: prefix not in bound(served.host))
        assert set(answers(served, "outside", EXTERNAL_IP, family)) == {"a1", "a2", "b1"}
        assert ask(served.hosts["outside"], address, 22).server == "sshd"
    served.proxy.wait_until(lambda: prefix in bound(served.host))
    assert set(answers(served, "outside", EXTERNAL_IP, family)) == {"a1", "a2", "b1"}
    assert_refused(served, "outside", EXTERNAL_IP._replace(port=22), family)


def test_k27_an_address_of_a_load_balancer_that_is_a_proxy_is_nowhere_in_the_kernel(served):
    text = "\n".join([*virtual_servers(served.host), *bound(served.host), *sets(served.host)])
    assert not [address for address in PROXIED if address in text]


def balanced(mode: str) -> Svc:
    """A Service whose load balancer sends from the very address that clients send to."""
    ingress = tuple((address, mode) for address in BALANCER)
    return Svc(
        "balanced", ("10.96.0.70", "2001:db8:96::70"), endpoints=ready(A1, B1), node_ports=(30070,), ingress=ingress
    )


@every_family
def test_k27_a_load_balancer_that_sends_from_its_own_address_is_served_as_soon_as_that_is_not_bound_here(node, family):
    """A node that has the address for its own takes no packet from it, nor sends one there."""
    with balancer_at_the_client(node, family) as (outside, source):
        place = (outside, NODE_ADDRESSES[family], 30070)
        node.sync(balanced("VIP"))
        with pytest.raises(TimeoutError), Conversation(*place, timeout_s=1, source=source):
            pass
        node.sync(balanced("Proxy"))
        servers = set()
        for _ in range(2):
            with Conversation(*place, source=source) as talk:
                servers.add(talk.ask().server)
        assert servers == {"a1", "b1"}


@contextlib.contextmanager
def balancer_at_the_client(node: ProxyNode, family: int) -> Iterator[tuple[Namespace, str]]:
    """The client outside has the load balancer's address, to which the node has a route; yields both."""
    address, outside = BALANCER[family], node.hosts["outside"]
    outside.ip(f"addr add {address}/{(32, 128)[family]} dev eth0 nodad")
    node.host.ip(f"route add {address} dev eth0")
    try:
        yield outside, address
    finally:
        node.host.ip(f"route del {address} dev eth0")
        outside.ip(f"addr del {address}/{(32, 128)[family]} dev eth0")


def test_k19_an_external_ip_that_two_services_share_stays_for_the_one_that_is_left(node):
    shared = "203.0.113.60"
    one = Svc("one", ("10.96.0.51",), endpoints=ready(A1)[:1], external_ips=(shared,))
    two = Svc("two", ("10.96.0.52",), ((443, "TCP"),), ready(A2)[:1], external_ips=(shared,))
    outside = node.hosts["outside"]
    for left, port, server, gone in ((two, 443, "a2", 80), (one, 80, "a1", 443)):
        node.sync(one, two)
        assert (ask(outside, shared, 80).server, ask(outside, shared, 443).server) == ("a1", "a2")
        node.sync(left)
        assert ask(outside, shared, port).server == server
        with pytest.raises(ConnectionRefusedError):
            ask(outside, shared, gone)


@contextlib.contextmanager
def address_on_eth0(node: ProxyNode, address: str) -> Iterator[None]:
    """The node has the address as well in the `with` block; does not wait for the proxy."""
    where = f"{address}/{128 if ':' in address else 32} dev eth0"
    node.proxy.mark()
    node.host.ip(f"addr add {where} nodad")
    try:
        yield
    finally:
        node.host.ip(f"addr del {where}")


def servers_at(node: ProxyNode, address: str) -> set[str]:
    """What there is at an address that is written as ipvsadm does."""
    return {line for line in virtual_servers(node.host) if f" {address}:" in line}


def shown(address: str) -> str:
    """As ipvsadm shows it before a port."""
    return f"[{address}]" if ":" in address else address
