"""K26: who on the node's own network hears that a load balancer's address is here.

Every node has the address, so every node that answers for it takes traffic away from the one that announces it. Frames
are written by hand: a kernel that asks would wait for seconds before it takes silence for an answer.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, REMOTE_ADDRESSES, Cluster, Namespace
from tests.vm.nodes import FLAGS, bound, proxy_on
from tests.vm.places import B1, ready

VIPS = ("203.0.113.10", "2001:db8:113::10")
LOAD_BALANCER = Svc(
    "lb", ("10.96.0.20", "2001:db8:96::20"), endpoints=ready(B1), ingress=tuple((ip, "VIP") for ip in VIPS)
)

ARP, IPV6 = 0x0806, 0x86DD  # include/uapi/linux/if_ether.h
ARP_REPLY = b"\x00\x02"
SOLICITATION, ADVERTISEMENT = 135, 136  # RFC 4861 §4.3, §4.4
ALL_HOSTS, SOLICITED = (socket.inet_pton(socket.AF_INET6, group) for group in ("ff02::1", "ff02::1:ff00:0"))


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    with Cluster() as hosts:
        hosts.add_remote(*B1)
        yield hosts


@pytest.fixture(scope="module", params=[False, True], ids=["not strict", "strict ARP"])
def strict(request: pytest.FixtureRequest, place: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bool]:
    """Whether the proxy that runs on the node was started with --ipvs-strict-arp."""
    flags = (*FLAGS, *(["--ipvs-strict-arp"] if request.param else []))
    for name in ("arp_ignore", "arp_announce"):
        place.node.set_sysctl(f"net/ipv4/conf/all/{name}", "0")
    with proxy_on(place.node, tmp_path_factory.mktemp("proxy"), LOAD_BALANCER, flags=flags) as proxy:
        proxy.wait_for_services()
        yield request.param
        assert proxy.stop() == ExitCode.OK


def test_k26_strict_arp_sets_what_keeps_the_node_silent_and_nothing_else_touches_it(place, strict):
    found = [place.node.sysctl(f"net/ipv4/conf/all/{name}") for name in ("arp_ignore", "arp_announce")]
    assert found == (["1", "2"] if strict else ["0", "0"])


def test_k26_who_has_a_load_balancers_address_is_answered_unless_arp_is_strict(place, strict):
    assert f"{VIPS[0]}/32" in bound(place.node)
    asked = (VIPS[0], NODE_ADDRESSES[0])
    assert answered_by_arp(place["remote"], *asked) == set(asked[1:] if strict else asked)


@pytest.mark.usefixtures("strict")
def test_k26_a_neighbour_solicitation_for_a_load_balancers_address_is_never_answered(place):
    """The kernel looks at the addresses of the device that it comes in at only: IPv6 needs a route or an announcer."""
    assert f"{VIPS[1]}/128" in bound(place.node)
    asked = (VIPS[1], NODE_ADDRESSES[1])
    assert answered_by_ndp(place["remote"], *asked) == {NODE_ADDRESSES[1]}


@pytest.mark.usefixtures("strict")
def test_k26_the_device_of_the_vips_is_down_and_does_no_arp(place):
    shown = place.node.run("ip", "-o", "link", "show", "dev", "kube-ipvs0")
    assert "NOARP" in shown
    assert "state DOWN" in shown


def answered_by_arp(host: Namespace, *addresses: str) -> set[str]:
    """For which of these addresses somebody on the wire answers.

    The last one must be answered: what is decided before it, in order, is known when its answer is there.
    """
    with on_the_wire(host, ARP) as wire:
        mac = wire.getsockname()[4]
        for address in addresses:
            wire.send(frame(b"\xff" * 6, mac, ARP, arp_request(mac, REMOTE_ADDRESSES[0], address)))
        answered: set[str] = set()
        while addresses[-1] not in answered:
            received = wire.recv(1500)[14:]
            if received[6:8] == ARP_REPLY:
                answered.add(socket.inet_ntoa(received[14:18]))
    return answered


def answered_by_ndp(host: Namespace, *addresses: str) -> set[str]:
    """The same for IPv6. Asked in the group that a host with the address is in, and in the one of all hosts."""
    with on_the_wire(host, IPV6) as wire:
        mac = wire.getsockname()[4]
        for address in addresses:
            target = socket.inet_pton(socket.AF_INET6, address)
            for group in (ALL_HOSTS, SOLICITED[:13] + target[13:]):
                wire.send(frame(b"\x33\x33" + group[12:], mac, IPV6, solicitation(mac, group, target)))
        answered: set[str] = set()
        while addresses[-1] not in answered:
            received = wire.recv(1500)[14:]
            if received[6] == socket.IPPROTO_ICMPV6 and received[40] == ADVERTISEMENT:
                answered.add(socket.inet_ntop(socket.AF_INET6, received[48:64]))
    return answered


def on_the_wire(host: Namespace, kind: int) -> socket.socket:
    """Frames of this kind at eth0 of `host`."""
    opened = host.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
    opened.bind(("eth0", kind))
    return opened


def frame(destination: bytes, source: bytes, kind: int, content: bytes) -> bytes:
    return destination + source + kind.to_bytes(2, "big") + content


def arp_request(mac: bytes, own: str, wanted: str) -> bytes:
    """RFC 826: Ethernet, IPv4, request."""
    addresses = (mac, socket.inet_aton(own), bytes(6), socket.inet_aton(wanted))
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, *addresses)


def solicitation(mac: bytes, group: bytes, target: bytes) -> bytes:
    """A neighbour solicitation with the asker's link-layer address, in its IPv6 packet (RFC 4861 §4.3)."""
    source = socket.inet_pton(socket.AF_INET6, REMOTE_ADDRESSES[1])
    body = bytes(4) + target + b"\x01\x01" + mac
    length = len(body) + 4
    pseudo_header = source + group + struct.pack("!II", length, socket.IPPROTO_ICMPV6)
    checked = checksum(pseudo_header + struct.pack("!BBH", SOLICITATION, 0, 0) + body)
    header = struct.pack("!IHBB", 6 << 28, length, socket.IPPROTO_ICMPV6, 255) + source + group
    return header + struct.pack("!BBH", SOLICITATION, 0, checked) + body


def checksum(data: bytes) -> int:
    """RFC 1071; the length is even."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
