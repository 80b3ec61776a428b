"""What the rules alone do to packets: mark them for masquerade, and drop what the node itself must not send (K04, K35).

Rules and sets are real, all else of the kernel is the fake. Without IPVS nobody answers, but it comes behind both
decisions, so that these tests run on any kernel with netfilter. Whom an endpoint sees in the end: test_snat.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ipvsproxy.cluster.events import Changed, ObjectRef
from ipvsproxy.kernel.api import IPSets, Rules
from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.kernel.iptables import LegacyRules
from ipvsproxy.kernel.iptables_nft import NftRules
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from ipvsproxy.modes.ipvs.sets import ENTRY_KIND_BY_NAME
from ipvsproxy.sync.reconciler import Reconciler
from tests.clusters import NODE, Node, Svc, cluster
from tests.lab.hosts import NODE_ADDRESSES, OUTSIDE_ADDRESSES, Namespace
from tests.lab.traffic import Transport, family_of
from tests.vm.foreign import PROGRAMS, VERSIONS, packets
from tests.vm.places import every_family, every_transport

SECOND_ADDRESSES = ("192.0.2.13", "2001:db8:1::13")
OTHER_ADDRESSES = ("198.51.100.11", "2001:db8:51::11")
"""The node's too, but they serve no node ports, and its Node object does not have them."""
SILENCE_S = 0.3
"""How long a client waits where nothing should come."""
NODE_PORTS_AT = ("192.0.2.0/24", "2001:db8:1::/64")
BOTH = ((80, "TCP"), (80, "UDP"))
CLASHING = ((30080, "TCP"), (30080, "UDP"))
"""A Service's own ports, of the number of another one's node ports."""


def vips(number: int) -> tuple[str, str]:
    """An external address of each family."""
    return f"203.0.113.{number}", f"2001:db8:113::{number}"


def balancer(name: str, addresses: tuple[str, str], ports: tuple[tuple[int, str], ...] = BOTH, **more: object) -> Svc:
    """A Service of type LoadBalancer at these addresses; its cluster IPs have the last part of the first."""
    last = addresses[0].rpartition(".")[2]
    own = (f"10.96.1.{last}", f"2001:db8:96::1{last}")
    return Svc(name, own, ports, (), ingress=tuple((ip, "VIP") for ip in addresses), **more)  # type: ignore[arg-type]


SERVICES = (
    Svc("ports", ("10.96.0.20", "2001:db8:96::20"), BOTH, (), node_ports=(30080, 30080)),
    Svc("kept", ("10.96.0.21", "2001:db8:96::21"), BOTH, (), node_ports=(30081, 30081), external_policy="Local"),
    Svc("inside", ("10.96.0.30", "2001:db8:96::30"), (*BOTH, *CLASHING), ()),
    balancer("cluster", vips(10), CLASHING),
    balancer("local", vips(11), CLASHING, external_policy="Local", external_ips=vips(12)),
    balancer("on-the-node", NODE_ADDRESSES, ((30082, "TCP"), (30082, "UDP")), external_policy="Local"),
    Svc(
        "younger",
        ("10.96.0.22", "2001:db8:96::22"),
        BOTH,
        (),
        node_ports=(30082, 30082),
        created="2026-02-01T00:00:00Z",
    ),
    balancer("vip-listed", vips(50), source_ranges=("203.0.113.0/24", "2001:db8:113::/64")),
    balancer("nobody-listed", vips(51), source_ranges=("10.9.0.0/16", "2001:db8:9::/64")),
    balancer("node-listed", vips(52), source_ranges=NODE_PORTS_AT),
    balancer("both-listed", vips(53), source_ranges=("203.0.113.0/24", "2001:db8:113::/64", *NODE_PORTS_AT)),
    balancer("own-vip-listed", OTHER_ADDRESSES, source_ranges=("198.51.100.0/24", "2001:db8:51::/64")),
    balancer("unlisted", vips(54)),
)


class Place(NamedTuple):
    """A node with these Services' rules in this flavour of iptables, and a client outside."""

    node: Namespace
    outside: Namespace
    backend: str
    reconciler: Reconciler


@pytest.fixture(scope="module", params=["legacy", "nft"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    lock = tmp_path_factory.mktemp("lock") / "xtables.lock"
    with Namespace("node") as node, Namespace("outside") as outside, contextlib.ExitStack() as stack:
        connect(node, outside)
        ipsets = stack.enter_context(contextlib.closing(NetlinkIPSets(ENTRY_KIND_BY_NAME)))
        rules: Rules = LegacyRules(OWN_CHAINS, lock_path=lock)
        if request.param == "nft":
            rules = stack.enter_context(contextlib.closing(NftRules(OWN_CHAINS)))
        with node.inside():
            planned = programmed(ipsets, rules)
        bound = planned.fake.state[Kind.ADDRESS]
        node.ip(*(f"addr add {format_addr(address)} dev lo nodad" for address in bound))  # type: ignore[arg-type]
        yield Place(node, outside, request.param, planned.reconciler)


def programmed(ipsets: IPSets, rules: Rules) -> Node:
    """A node whose sets and rules are real; it has the Services."""
    fake = FakeKernel()
    fake.kernel = dataclasses.replace(fake.kernel, ipsets=ipsets, rules=rules)
    host = (*NODE_ADDRESSES, *SECOND_ADDRESSES, *OTHER_ADDRESSES)
    node = Node(fake, host=host, node_port_cidrs=NODE_PORTS_AT)
    addresses = tuple(api.NodeAddress("InternalIP", address) for address in NODE_ADDRESSES)
    ours = api.Node(api.Metadata(NODE), status=api.NodeStatus(addresses))
    node.tracker.note(Changed(ObjectRef("Node", "", NODE), ours))
    node.sync(cluster(*SERVICES))
    return node


def connect(node: Namespace, outside: Namespace) -> None:
    """A wire between the two; all that the node has is reached by it."""
    node.ip(f"link add port type veth peer name eth0 netns {outside.path}", "link set port up")
    lengths = ((24, 32), (64, 128))
    for family, (near, far) in enumerate(lengths):
        node.ip(f"addr add {NODE_ADDRESSES[family]}/{near} dev port nodad")
        node.ip(*(f"addr add {own[family]}/{far} dev port nodad" for own in (SECOND_ADDRESSES, OTHER_ADDRESSES)))
        node.ip(f"route add {OUTSIDE_ADDRESSES[family]} dev port")
        outside.ip("link set eth0 up", f"addr add {OUTSIDE_ADDRESSES[family]}/{far} dev eth0 nodad")
        outside.ip(f"route add {NODE_ADDRESSES[family]} dev eth0")
        outside.ip(f"route add default via {NODE_ADDRESSES[family]} src {OUTSIDE_ADDRESSES[family]}")


def is_marked(place: Place, address: str, port: int, transport: Transport) -> bool:
    """Whether the first packet of a client outside to there is marked for masquerade."""
    version = VERSIONS[":" in address]

    def marked() -> int:
        return packets(place.node, version, "nat", "^KUBE-MARK-MASQ ", backend=place.backend)

    before = marked()
    with place.outside.socket(family_of(address), *transport.value) as client:
        client.settimeout(5)
        with contextlib.suppress(ConnectionRefusedError):
            client.connect((address, port))
            client.send(b"?")
    return marked() > before


def is_kept_out(place: Place, address: str, source: str = "") -> bool:
    """Whether the node's own packet to port 80 there is dropped on its way out, by which the sender hears EPERM."""
    with place.node.socket(family_of(address), *Transport.UDP.value) as client:
        if source:
            client.bind((source, 0))
        client.connect((address, 80))
        try:
            client.send(b"?")
        except PermissionError:
            return True
    return False


@every_family
@every_transport
@pytest.mark.parametrize(
    "to, marked",
    [
        pytest.param((NODE_ADDRESSES, 30080), True, id="a node port"),
        pytest.param((NODE_ADDRESSES, 30081), False, id="a node port of policy Local"),
        pytest.param((OTHER_ADDRESSES, 30080), False, id="its number at an address that serves no node ports"),
        pytest.param((SERVICES[2].ips, 80), False, id="a cluster IP"),
        pytest.param((SERVICES[2].ips, 30080), False, id="its number at a cluster IP"),
        pytest.param((vips(10), 30080), True, id="its number at a load-balancer IP"),
        pytest.param((vips(11), 30080), False, id="its number at a load-balancer IP of policy Local"),
        pytest.param((vips(12), 30080), False, id="its number at an external IP of policy Local"),
        pytest.param((vips(54), 30080), False, id="its number at a VIP that does not serve it"),
        pytest.param((SECOND_ADDRESSES, 30082), True, id="a node port that another Service's port takes elsewhere"),
        pytest.param((NODE_ADDRESSES, 30082), False, id="a load-balancer IP of policy Local that is the node's own"),
    ],
)
def test_k04_whether_a_client_outside_is_masqueraded_at(place, to, marked, transport, family):
    """Pods cannot be told from others here, so nobody is masqueraded at a cluster IP."""
    addresses, port = to
    assert is_marked(place, addresses[family], port, transport) == marked


@every_family
@pytest.mark.parametrize(
    "addresses, kept_out",
    [
        pytest.param(vips(50), True, id="the VIP itself, which its packets have as source"),
        pytest.param(vips(51), True, id="neither the VIP nor the node"),
        pytest.param(vips(52), False, id="the node"),
        pytest.param(vips(53), False, id="the node and the VIP"),
        pytest.param(OTHER_ADDRESSES, True, id="the VIP, which is an address of the node that its Node has not"),
        pytest.param(vips(54), False, id="nobody: there are no ranges"),
    ],
)
def test_k35_whether_the_node_itself_is_kept_out_where_source_ranges_hold(place, addresses, kept_out, family):
    assert is_kept_out(place, addresses[family]) == kept_out


@every_family
@pytest.mark.parametrize(
    "addresses, source, kept_out",
    [
        pytest.param(vips(50), vips(54), True, id="another VIP does not stand for it, though the ranges hold it"),
        pytest.param(vips(52), NODE_ADDRESSES, False, id="its own address, which is in the ranges"),
        pytest.param(vips(50), NODE_ADDRESSES, True, id="its own address, which is not"),
    ],
)
def test_k35_a_process_of_the_node_that_sends_from(place, addresses, source, kept_out, family):
    assert is_kept_out(place, addresses[family], source[family]) == kept_out


# Another program flushes a table (K36). What its rules kept closed is open, until the next audit has looked.


def reaches(place: Place, address: str, port: int) -> bool:
    """Whether a client outside comes through to the node's own stack, where somebody listens on every address."""
    with place.outside.socket(family_of(address), *Transport.TCP.value) as client:
        client.settimeout(SILENCE_S)
        return client.connect_ex((address, port)) == 0


OPENED = {
    "source ranges": ("filter", lambda place, family: reaches(place, vips(51)[family], 80)),
    "ports of the node at a VIP": ("filter", lambda place, family: reaches(place, vips(51)[family], 22)),
    "source ranges for the node itself": ("mangle", lambda place, family: not is_kept_out(place, vips(51)[family])),
}


@every_family
@pytest.mark.parametrize("what", OPENED)
def test_k36_what_a_flush_of_a_table_opens_is_closed_by_the_next_audit(place, what, family):
    """A quick look, which most audits are, is enough."""
    table, is_open = OPENED[what]
    with contextlib.ExitStack() as listening:
        for port in (22, 80):
            listener = listening.enter_context(place.node.socket(socket.AF_INET6, *Transport.TCP.value))
            listener.bind(("::", port))
            listener.listen()
        assert not is_open(place, family)
        place.node.run(f"{PROGRAMS[VERSIONS[family]]}-{place.backend}", "-w", "5", "-t", table, "-F")
        assert is_open(place, family)
        with place.node.inside():
            place.reconciler.audit(in_full=False)
        assert not is_open(place, family)
