"""Real packets from every kind of client to a ClusterIP, through the kernel that a running ipvsproxy programs.

A server tells its name and the client's address that it sees, so every answer shows who was chosen and what was NATed.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES
from tests.lab.traffic import Conversation, Transport, ask, ping, serving
from tests.vm.nodes import AddressLog, ProxyNode
from tests.vm.places import A1, A2, A3, B1, BRIDGE, every_family, every_transport, ready

VIPS = ("10.96.0.20", "2001:db8:96::20")
OTHER_VIPS = ("10.96.0.21", "2001:db8:96::21")
BOTH = ((80, "TCP"), (80, "UDP"))

WEB = Svc("web", VIPS, BOTH, (*ready(A1, A2, B1), (A3[0], False), (A3[1], False)))
EMPTY = Svc("empty", OTHER_VIPS, BOTH, ())

CLIENTS = [
    pytest.param("a1", id="a pod that is an endpoint itself"),
    pytest.param("a3", id="a pod"),
    pytest.param("node", id="the node itself"),
    pytest.param("remote", id="another node"),
    pytest.param("outside", id="a client outside"),
]
every_client = pytest.mark.parametrize("client", CLIENTS)


@every_family
@every_transport
@every_client
def test_all_ready_endpoints_answer_in_turn_and_no_other(node: ProxyNode, client, transport, family):
    """K03 too: the pod that is an endpoint reaches itself in its turn."""
    node.sync(WEB)
    answers = [ask(node.hosts[client], VIPS[family], 80, transport) for _ in range(6)]
    servers = [answer.server for answer in answers]
    assert set(servers[:3]) == {"a1", "a2", "b1"}
    assert servers[:3] == servers[3:]


@every_family
@pytest.mark.parametrize(
    "client, server, seen",
    [
        pytest.param("a1", "a2", A1, id="a pod keeps its address"),
        pytest.param("a1", "b1", A1, id="a pod keeps its address to another node"),
        pytest.param("a1", "a1", BRIDGE, id="a pod that reaches itself comes from the bridge (K03)"),
        pytest.param("node", "b1", NODE_ADDRESSES, id="the node comes from its own address, not from the VIP (K02)"),
        pytest.param("node", "a1", BRIDGE, id="the node comes from the bridge to its own pods"),
        pytest.param(
            "outside", "b1", NODE_ADDRESSES, id="a client outside is masqueraded, so that the answer comes back here"
        ),
        pytest.param("remote", "a1", BRIDGE, id="another node is masqueraded"),
    ],
)
def test_servers_see_the_client_at(node: ProxyNode, client, server, seen, family):
    node.sync(WEB)
    answers = {answer.server: answer.client for answer in (ask(node.hosts[client], VIPS[family], 80) for _ in range(3))}
    assert answers[server] == seen[family]


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_session_affinity_keeps_a_client_at_its_server(node: ProxyNode, client, family):
    node.sync(Svc("sticky", VIPS, endpoints=ready(A1, A2, B1), affinity_s=600))
    assert len({ask(node.hosts[client], VIPS[family], 80).server for _ in range(5)}) == 1


@every_family
@every_transport
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_port_of_the_node_is_closed_at_a_vip_and_open_at_its_own_address_k31(
    node: ProxyNode, client, transport, family
):
    node.sync(WEB)
    everywhere = ("0.0.0.0", "::")[family]
    with serving((node.host, "sshd", everywhere, 22, transport)):
        with pytest.raises(ConnectionRefusedError):
            ask(node.hosts[client], VIPS[family], 22, transport)
        own = (
            BRIDGE if client == "a3" else NODE_ADDRESSES
        )  # the one that is next to the client, so that UDP answers from it
        assert ask(node.hosts[client], own[family], 22, transport).server == "sshd"


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_vip_answers_ping(node: ProxyNode, client, family):
    node.sync(WEB)
    assert ping(node.hosts[client], VIPS[family])


@every_family
@every_transport
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_service_without_endpoints_refuses_at_once_k21(node: ProxyNode, client, transport, family):
    """IPVS drops what the node itself sends over UDP and says so: EPERM."""
    node.sync(EMPTY)
    refusal = PermissionError if (client, transport) == ("node", Transport.UDP) else ConnectionRefusedError
    with pytest.raises(refusal):
        ask(node.hosts[client], OTHER_VIPS[family], 80, transport)


@every_transport
def test_the_first_endpoint_of_a_service_is_used_at_once_k21(node: ProxyNode, transport):
    node.sync(EMPTY)
    node.sync(Svc("empty", OTHER_VIPS, BOTH, ready(A1)))
    assert ask(node.hosts["a3"], OTHER_VIPS[0], 80, transport).server == "a1"


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_stream_to_an_endpoint_that_leaves_hears_a_reset(node: ProxyNode, client, family):
    node.sync(Svc("web", VIPS, BOTH, ready(A1)))
    with Conversation(node.hosts[client], VIPS[family], 80) as talk:
        assert talk.ask().server == "a1"
        node.sync(Svc("web", VIPS, BOTH, ready(A2)))
        with pytest.raises(ConnectionResetError):
            talk.ask()
    assert ask(node.hosts[client], VIPS[family], 80).server == "a2"


@every_family
def test_a_stream_to_an_endpoint_that_stays_goes_on(node: ProxyNode, family):
    node.sync(Svc("web", VIPS, BOTH, ready(A1)))
    with Conversation(node.hosts["a3"], VIPS[family], 80) as talk:
        talk.ask()
        node.sync(WEB)
        assert talk.ask().server == "a1"


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_stream_to_a_port_that_leaves_its_service_hears_a_reset(node: ProxyNode, client, family):
    node.sync(Svc("web", VIPS, ((80, "TCP"), (443, "TCP")), ready(A1)))
    with Conversation(node.hosts[client], VIPS[family], 443) as talk:
        talk.ask()
        node.sync(Svc("web", VIPS, ((80, "TCP"),), ready(A1)))
        with pytest.raises(ConnectionResetError):
            talk.ask()
        with pytest.raises(ConnectionRefusedError):
            ask(node.hosts[client], VIPS[family], 443)


def test_a_stream_to_a_service_that_is_deleted_hears_a_reset_k12(node: ProxyNode):
    node.sync(Svc("web", VIPS, BOTH, ready(A1)))
    with Conversation(node.hosts["a3"], VIPS[0], 80, timeout_s=3) as talk:
        talk.ask()
        node.sync()
        with pytest.raises(ConnectionResetError):
            talk.ask()


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
def test_a_steady_udp_sender_goes_on_at_the_new_endpoint_k10(node: ProxyNode, client, family):
    """One source port all the time; in one sync the new endpoint comes and the old one goes.

    One datagram may be lost: the kernel drops the one that meets the old entry before its clean-up does (EPERM where
    the node itself sends; net/netfilter/ipvs/ip_vs_core.c ip_vs_in_hook, expire_nodest_conn).
    """
    node.sync(Svc("web", VIPS, BOTH, ready(A1)))
    servers: list[str] = []
    lost = 0
    with Conversation(node.hosts[client], VIPS[family], 80, Transport.UDP, timeout_s=2) as talk:
        for _ in node.syncing(Svc("web", VIPS, BOTH, ready(A2))):
            try:
                servers.append(talk.ask().server)
            except (PermissionError, TimeoutError):
                lost += 1
        servers.append(talk.ask().server)
    assert lost <= 1
    assert servers[-1] == "a2"
    assert servers == sorted(servers)  # never back


@pytest.mark.parametrize(
    "before, after, kept",
    [
        pytest.param(((80, "TCP"), (443, "TCP")), ((80, "TCP"),), (80, Transport.TCP), id="443 leaves, 80 stays"),
        pytest.param(((53, "TCP"), (53, "UDP")), ((53, "UDP"),), (53, Transport.UDP), id="TCP leaves, UDP stays"),
    ],
)
@every_family
def test_a_port_that_leaves_does_not_take_the_address_away_k19(node: ProxyNode, before, after, kept, family):
    node.sync(Svc("two-ports", VIPS, before, ready(A1, A2)))
    with AddressLog(node.host) as addresses:
        for _ in node.syncing(Svc("two-ports", VIPS, after, ready(A1, A2))):
            assert ask(node.hosts["a3"], VIPS[family], *kept)
    assert not addresses.deleted.intersection(VIPS)


def test_an_address_that_leaves_is_noticed_by_the_test_above(node: ProxyNode):
    unused = ("10.96.0.29", "2001:db8:96::29")  # where somebody was connected the address stays for a while
    node.sync(Svc("two-ports", unused, endpoints=ready(A1)))
    with AddressLog(node.host) as addresses:
        node.sync()
    assert addresses.deleted.issuperset(unused)


@every_family
def test_a_service_that_comes_and_goes_leaves_its_neighbour_alone_k34(node: ProxyNode, family):
    """Its own address never shows a port of the node on the way (K31)."""
    other = Svc("other", OTHER_VIPS, BOTH, ready(A2))
    node.sync(WEB)
    client = node.hosts["a3"]
    with serving((node.host, "sshd", ("0.0.0.0", "::")[family], 80, Transport.TCP)):
        for services in ((WEB, other), (WEB,)):
            for _ in node.syncing(*services):
                assert ask(client, VIPS[family], 80).server in {"a1", "a2", "b1"}
                with contextlib.suppress(OSError), Conversation(client, OTHER_VIPS[family], 80, timeout_s=1) as talk:
                    assert talk.ask().server == "a2"  # OSError: not yet, or no longer
