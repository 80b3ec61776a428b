"""A client behind a hop that takes only small packets: what that hop answers to the VIP reaches the endpoint's stream.

     far 198.51.100.9 ── 1300 bytes ── outside, a router ── node

The endpoint sends segments of 1500 bytes that nobody may fragment. The router answers them by an ICMP error
(fragmentation needed, packet too big) to where they came from: the VIP. It is about the stream, so IPVS hands it on,
translated, to the endpoint, whose host then sends smaller ones. Otherwise the transfer stands still for good.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.clusters import Svc
from tests.lab.hosts import OUTSIDE_ADDRESSES, Namespace, version_of
from tests.lab.traffic import TIMEOUT_S, Conversation, family_of
from tests.vm.foreign import VERSIONS, foreign_rules
from tests.vm.nodes import ProxyNode
from tests.vm.places import A1, B1, every_family, ready

SMALL, WHOLE = 1300, 1500
FAR = ("198.51.100.9", "2001:db8:51::9")
GATEWAYS = ("169.254.1.1/32", "fe80::1/64")
"""The router's addresses on the far link."""
VIP = ("203.0.113.10", "2001:db8:113::10")
PORT, TARGET = 90, 8090
CONTENT = bytes(50_000)
SILENCE_S = 5.0
"""How long a client listens where nothing should come."""

MTU_OPTIONS = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
"""IP_MTU and IPV6_MTU of include/uapi/linux/in.h and in6.h: what a connected socket knows of its path."""

ERRORS = {
    4: "-p icmp -m icmp --icmp-type fragmentation-needed -j DROP",
    6: "-p ipv6-icmp -m icmp6 --icmpv6-type packet-too-big -j DROP",
}
SERVICES = {
    "a pod of this node": ("a1", A1, "Cluster"),
    "a pod of another node": ("b1", B1, "Cluster"),
    "a pod that sees the client itself": ("a1", A1, "Local"),
}
every_service = pytest.mark.parametrize("service", SERVICES)


@pytest.fixture(scope="module")
def far(node: ProxyNode) -> Iterator[Namespace]:
    """The client. The router's end of its link is narrow, its own is not: only the router knows."""
    router = node.hosts["outside"]
    forwarding = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    before = [router.sysctl(name) for name in forwarding]
    routes = [f"{far} via {gateway} dev eth0" for far, gateway in zip(FAR, OUTSIDE_ADDRESSES, strict=True)]
    with Namespace("far") as client:
        router.ip(
            f"link add far0 type veth peer name eth0 netns {client.path}",
            "link set far0 up",
            f"link set far0 mtu {SMALL}",
            *(f"addr add {gateway} dev far0 nodad" for gateway in GATEWAYS),
            *(f"route add {address} dev far0" for address in FAR),
        )
        for name in forwarding:
            router.set_sysctl(name, "1")
        client.ip(
            "link set eth0 up",
            f"addr add {FAR[0]}/32 dev eth0",
            f"addr add {FAR[1]}/128 dev eth0 nodad",
            *(f"route add default via {gateway.split('/')[0]} dev eth0 onlink" for gateway in GATEWAYS),
        )
        node.host.ip(*(f"route add {route}" for route in routes))
        yield client
        node.host.ip(*(f"route del {route}" for route in routes))
        for name, value in zip(forwarding, before, strict=True):
            router.set_sysctl(name, value)
        router.ip("link del far0")


@contextlib.contextmanager
def stream(
    node: ProxyNode, far: Namespace, service: str, family: int, timeout_s: float = TIMEOUT_S
) -> Iterator[tuple[Conversation, socket.socket]]:
    """A connection through the VIP: the client's end and the endpoint's, whose host knows of no small hop yet."""
    name, addresses, policy = SERVICES[service]
    pod, address = node.hosts[name], addresses[family]
    node.sync(
        Svc(
            "bulk",
            ("10.96.0.40", "2001:db8:96::40"),
            ((PORT, "TCP"),),
            ready(addresses),
            ingress=tuple((vip, "VIP") for vip in VIP),
            external_policy=policy,
        )
    )
    pod.run("ip", f"-{version_of(address)}", "route", "flush", "cache")
    with pod.socket(family_of(address), socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(CONTENT))
        listening.bind((address, TARGET))
        listening.listen()
        with Conversation(far, VIP[family], PORT, timeout_s=timeout_s, aborts=True) as talk:
            endpoint, (seen, *_) = listening.accept()
            with endpoint:
                assert (seen == FAR[family]) is (policy == "Local")
                assert path_mtu(endpoint) == WHOLE
                yield talk, endpoint


def path_mtu(connected: socket.socket) -> int:
    return connected.getsockopt(*MTU_OPTIONS[connected.family])


def receive_all(talk: Conversation) -> bytes:
    received = b""
    while len(received) < len(CONTENT):
        received += talk.receive()
    return received


@every_family
@every_service
def test_what_a_small_hop_answers_to_the_vip_reaches_the_stream_of_the_endpoint(node, far, service, family):
    with stream(node, far, service, family) as (talk, endpoint):
        endpoint.sendall(CONTENT)
        assert receive_all(talk) == CONTENT
        assert path_mtu(endpoint) == SMALL


@every_family
def test_k28_so_it_does_where_the_host_drops_such_answers_behind_our_rules(node, far, family):
    version = VERSIONS[family]
    drops = [f"filter {chain} {ERRORS[version]}" for chain in ("INPUT", "FORWARD")]
    with stream(node, far, "a pod of this node", family) as (talk, endpoint), foreign_rules(node.host, version, *drops):
        endpoint.sendall(CONTENT)
        assert receive_all(talk) == CONTENT


@every_family
def test_without_them_the_transfer_stands_still(node, far, family):
    """So the tests above can fail."""
    version = VERSIONS[family]
    drop = f"mangle PREROUTING {ERRORS[version]}"
    with (
        stream(node, far, "a pod of this node", family, SILENCE_S) as (talk, endpoint),
        foreign_rules(node.host, version, drop),
    ):
        endpoint.sendall(CONTENT)
        with pytest.raises(TimeoutError):
            receive_all(talk)
        assert path_mtu(endpoint) == WHOLE
