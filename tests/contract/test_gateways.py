"""What is heard of default routes from a real kernel; the fake has no routes. No module is needed for it."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from pyroute2 import IPRoute

from ipvsproxy.kernel.gateways import DefaultGateways, GatewayMonitor
from tests.builders import addr

LINK = "up0"


class Heard:
    """A monitor that runs in a thread, in the network namespace of the test."""

    def __init__(self) -> None:
        self.events: queue.Queue[DefaultGateways] = queue.Queue()
        self.monitor = GatewayMonitor(self.events.put)
        self.thread = threading.Thread(target=self.monitor.run)
        self.thread.start()

    def next(self) -> set[bytes]:
        return set(self.events.get(timeout=30).addresses)

    def stop(self) -> None:
        self.monitor.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.monitor.close()


@pytest.fixture
def ip(pick: Callable, real_kernel: None) -> IPRoute:  # noqa: ARG001  # the fake tells nothing
    made = pick(None, IPRoute)
    made.link("add", ifname=LINK, kind="veth", peer="up1")
    for name in (LINK, "up1"):
        made.link("set", ifname=name, state="up")
    link = made.link_lookup(ifname=LINK)[0]
    for address, prefix_len in (("192.0.2.1", 24), ("198.51.100.1", 24), ("2001:db8::1", 64)):
        made.addr("add", index=link, address=address, prefixlen=prefix_len)
    return made


@pytest.fixture
def heard(ip: IPRoute) -> Iterator[Heard]:  # noqa: ARG001  # for its effect
    made = Heard()
    yield made
    made.stop()


def route(ip: IPRoute, verb: str, gateway: str, destination: str = "default", **more: int) -> None:
    link, family = ip.link_lookup(ifname=LINK)[0], socket.AF_INET6 if ":" in gateway else socket.AF_INET
    ip.route(verb, dst=destination, gateway=gateway, oif=link, family=family, **more)


def test_k33_default_gateways_of_both_families_are_heard_as_they_come_and_go(heard, ip):
    route(ip, "add", "192.0.2.254")
    assert heard.next() == {addr("192.0.2.254")}
    route(ip, "add", "2001:db8::ff")
    assert heard.next() == {addr("192.0.2.254"), addr("2001:db8::ff")}
    route(ip, "del", "192.0.2.254")
    assert heard.next() == {addr("2001:db8::ff")}


def test_default_gateways_that_are_there_before_are_known_at_once_whatever_their_table(ip):
    route(ip, "add", "192.0.2.254")
    route(ip, "add", "198.51.100.254", table=100)
    found = Heard()
    found.stop()
    assert found.next() == {addr("192.0.2.254"), addr("198.51.100.254")}


def test_every_next_hop_of_a_default_route_is_a_gateway(heard, ip):
    link = ip.link_lookup(ifname=LINK)[0]
    hops = [{"gateway": gateway, "oif": link, "hops": 0} for gateway in ("192.0.2.254", "198.51.100.254")]
    ip.route("add", dst="default", multipath=hops, family=socket.AF_INET)
    assert heard.next() == {addr("192.0.2.254"), addr("198.51.100.254")}


def test_the_gateway_of_another_network_is_none_and_does_not_come_through_the_filter(heard, ip):
    route(ip, "add", "192.0.2.253", "203.0.113.0/24")
    for number in range(100):
        ip.addr("add", index=ip.link_lookup(ifname=LINK)[0], address=f"10.96.0.{number}", prefixlen=32)
    route(ip, "add", "192.0.2.254")
    assert heard.next() == {addr("192.0.2.254")}
    assert heard.monitor._query.counters.dumps == 2  # at its start, and for the default route: nothing else woke it
