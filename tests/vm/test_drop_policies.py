"""K28: Services work where the host's own rules drop what nobody accepts, and nothing else is opened by that.

The host is hardened in two ways: bare, by the policy of INPUT and FORWARD alone; and by a chain of somebody else's that
ends in DROP behind our jumps. As on any such host, IPv6 neighbour discovery is let in, and let pass from pod to pod,
since their bridge asks the rules too; the chain lets in the answers to the node's own connections as well, without
which none of them would work, Services or not.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster
from tests.lab.traffic import Conversation, Transport, ask, serving
from tests.vm.foreign import VERSIONS, foreign_rules, restore
from tests.vm.health import probe, refusal
from tests.vm.nodes import cleaned_up, flags_with, proxy_on, small_cluster
from tests.vm.places import A1, B1, every_family, every_transport, ready

SILENCE_S = 0.5
"""How long a client listens where nothing should come."""

NEIGHBOURS = tuple(
    f"filter -A {chain} -p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j ACCEPT"
    for chain, kinds in (("INPUT", range(133, 137)), ("FORWARD", range(135, 137)))
    for kind in kinds
)
POLICIES = ("filter :INPUT DROP [0:0]", "filter :FORWARD DROP [0:0]")
CHAIN = (
    "filter :FORWARD DROP [0:0]",
    "filter :THEIRS - [0:0]",
    "filter -A INPUT -j THEIRS",
    "filter -A THEIRS -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "filter -A THEIRS -j DROP",
)


class Hardening(NamedTuple):
    """How a host is hardened, in which flavour of iptables, and what the proxy does besides."""

    rules: tuple[str, ...]
    backend: str = "legacy"
    flags: tuple[str, ...] = ()


WEB = Svc(
    "web",
    ("10.96.0.20", "2001:db8:96::20"),
    ((80, "TCP"), (80, "UDP"), (132, "SCTP")),
    ready(A1, B1),
    node_ports=(30080, 30080, 30132),
    external_ips=("203.0.113.11", "2001:db8:113::11"),
    ingress=(("203.0.113.10", "VIP"), ("2001:db8:113::10", "VIP")),
)
PROBED = Svc(
    "probed",
    ("10.96.0.21", "2001:db8:96::21"),
    endpoints=ready(A1),
    ingress=(("203.0.113.20", "VIP"), ("2001:db8:113::20", "VIP")),
    external_policy="Local",
    health_port=32100,
)
WAYS = {
    "cluster IP": (WEB.ips, 80),
    "node port": (NODE_ADDRESSES, 30080),
    "load-balancer IP": (tuple(ip for ip, _ in WEB.ingress), 80),
    "external IP": (WEB.external_ips, 80),
}
every_way = pytest.mark.parametrize("way", WAYS)
every_client = pytest.mark.parametrize(
    "client", [pytest.param("a3", id="a pod"), pytest.param("outside", id="a client outside")]
)
by_chain = [
    pytest.param(Hardening(CHAIN), id="a foreign chain"),
    pytest.param(Hardening(CHAIN, "nft"), id="a foreign chain, nft"),
]
every_hardening = pytest.mark.parametrize(
    "hardened", [pytest.param(Hardening(POLICIES), id="policies"), *by_chain], indirect=True
)
every_chain = pytest.mark.parametrize("hardened", by_chain, indirect=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A node to harden, which listens on port 22; who is outside has a route to its pods."""
    with small_cluster() as hosts:
        routes = zip(hosts.networks.pods, NODE_ADDRESSES, strict=True)
        hosts["outside"].ip(*(f"route add {network} via {gateway}" for network, gateway in routes))
        places = [(hosts.node, "sshd", "::", 22, transport) for transport in (Transport.TCP, Transport.UDP)]
        if has_sctp():
            places += [
                (hosts[name], name, ip, 8132, Transport.SCTP) for name, pod in (("a1", A1), ("b1", B1)) for ip in pod
            ]
        with serving(*places):
            yield hosts


def has_sctp() -> bool:
    try:
        socket.socket(socket.AF_INET, *Transport.SCTP.value).close()
    except OSError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            raise
        return False
    return True


@pytest.fixture(scope="module")
def hardened(
    request: pytest.FixtureRequest, place: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The cluster whose node is hardened after a proxy has started there."""
    hardening: Hardening = request.param
    folder, flags = tmp_path_factory.mktemp("proxy"), (*flags_with(hardening.backend), *hardening.flags)
    with proxy_on(place.node, folder, WEB, PROBED, flags=flags) as proxy:
        proxy.wait_for_services()
        for address in NODE_ADDRESSES:  # the server has a thread of its own
            proxy.wait_until(lambda address=address: refusal(place.node, address, 32100, PROBED.name) is None)
        for version in VERSIONS:
            rules = (*(NEIGHBOURS if version == 6 else ()), *hardening.rules)
            restore(place.node, version, *rules, backend=hardening.backend)
        yield place
        for version in VERSIONS:  # foreign rules go by name, for ours stand beside them
            restore(place.node, version, *softened(hardening.rules, version), backend=hardening.backend)
        assert proxy.stop() == ExitCode.OK
    assert cleaned_up(place.node, folder, flags).exit_code == ExitCode.OK  # the next one may use the other flavour


def softened(rules: tuple[str, ...], version: int) -> list[str]:
    """What undoes these rules."""
    lines = ["filter :INPUT ACCEPT [0:0]", "filter :FORWARD ACCEPT [0:0]"]
    lines += [
        rule.replace(" -A ", " -D ") for rule in (*(NEIGHBOURS if version == 6 else ()), *rules) if " -A " in rule
    ]
    return lines + (["filter -X THEIRS"] if rules == CHAIN else [])


def servers_at(hosts: Cluster, client: str, way: str, family: int, transport: Transport) -> set[str]:
    """Who answers two questions."""
    addresses, port = WAYS[way]
    return {ask(hosts[client], addresses[family], port, transport).server for _ in range(2)}


def is_silent(hosts: Cluster, client: str, address: str, port: int, transport: Transport = Transport.TCP) -> bool:
    """Whether nothing comes back, not even a refusal."""
    try:
        with Conversation(hosts[client], address, port, transport, timeout_s=SILENCE_S) as talk:
            talk.ask()
    except TimeoutError:
        return True
    return False


@every_hardening
@every_way
@every_family
@every_transport
@every_client
def test_k28_every_endpoint_answers(hardened, client, way, transport, family):
    assert servers_at(hardened, client, way, family, transport) == {"a1", "b1"}


@every_chain
@every_way
@every_family
@every_transport
def test_k28_every_endpoint_answers_the_node_itself(hardened, way, transport, family):
    assert servers_at(hardened, "node", way, family, transport) == {"a1", "b1"}


@pytest.mark.skipif(not has_sctp(), reason="this kernel has no SCTP sockets")
@every_hardening
@every_family
@every_client
@pytest.mark.parametrize("way", ["cluster IP", "node port", "load-balancer IP"])
def test_k28_every_endpoint_answers_over_sctp(hardened, client, way, family):
    port = 30132 if way == "node port" else 132
    address = WAYS[way][0][family]
    assert {ask(hardened[client], address, port, Transport.SCTP).server for _ in range(2)} == {"a1", "b1"}


@every_hardening
@every_family
@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(NODE_ADDRESSES, id="node address"),
        pytest.param(tuple(ip for ip, _ in PROBED.ingress), id="load-balancer IP"),
    ],
)
def test_k28_the_health_check_node_port_answers_a_client_outside(hardened, addresses, family):
    assert probe(hardened["outside"], addresses[family], 32100, PROBED.name) == (200, 1)


@every_hardening
@every_family
@every_transport
def test_k28_a_port_of_the_node_that_is_no_services_stays_closed(hardened, transport, family):
    assert is_silent(hardened, "outside", NODE_ADDRESSES[family], 22, transport)


@every_hardening
@every_family
@pytest.mark.parametrize("way", ["cluster IP", "load-balancer IP", "external IP"])
def test_k28_a_port_of_a_vip_that_is_no_services_stays_closed_k31(hardened, way, family):
    """By our own refusal, which comes first."""
    with pytest.raises(ConnectionRefusedError):
        ask(hardened["outside"], WAYS[way][0][family], 22)


@every_hardening
@every_family
def test_k28_a_pod_that_is_asked_without_a_service_stays_closed(hardened, family):
    assert is_silent(hardened, "outside", A1[family], 8080)


@pytest.mark.parametrize(
    "hardened",
    [pytest.param(Hardening(CHAIN, flags=("--filter-verdict=return",)), id="a foreign chain, verdict return")],
    indirect=True,
)
@every_family
@every_way
@every_client
def test_k28_with_filter_verdict_return_the_foreign_chain_decides(hardened, client, way, family):
    addresses, port = WAYS[way]
    assert is_silent(hardened, client, addresses[family], port)
    allowed = f"filter THEIRS -p tcp -m tcp --dport {port} -j ACCEPT"
    with foreign_rules(hardened.node, VERSIONS[family], allowed, on_top=True):
        assert servers_at(hardened, client, way, family, Transport.TCP) == {"a1", "b1"}
