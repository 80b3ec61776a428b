"""The one warning that every node answers ARP for load-balancer IPs (K26)."""

from __future__ import annotations

import errno

import pytest
from structlog.testing import capture_logs

from ipvsproxy.kernel.fake import FakeKernel
from ipvsproxy.model.kernel_objects import Kind, Verb
from tests.clusters import Node, Svc, cluster

ARP_IGNORE = "net.ipv4.conf.all.arp_ignore"
BALANCED = Svc("a", ingress=(("203.0.113.10", "VIP"),))


def warnings_of(node: Node, *services: Svc) -> list[dict]:
    with capture_logs() as logs:
        node.sync(cluster(*services))
    return [event for event in logs if event["event"] == "arp_answered_for_load_balancer_ips"]


def test_k26_a_load_balancer_ip_that_neighbours_are_answered_for_is_said():
    (warning,) = warnings_of(Node(), BALANCED)
    assert (warning["log_level"], warning["vip"], warning["service"]) == ("warning", "203.0.113.10", "default/a")
    assert "--ipvs-strict-arp" in warning["hint"]


def test_k26_it_is_said_once_whatever_load_balancers_follow():
    node = Node()
    assert len(warnings_of(node, BALANCED)) == 1
    assert warnings_of(node, BALANCED, Svc("b", ips=("10.96.0.21",), ingress=(("203.0.113.11", "VIP"),))) == []


def test_k26_a_load_balancer_that_comes_later_is_said_too():
    node = Node()
    assert warnings_of(node, Svc("a")) == []
    assert len(warnings_of(node, BALANCED)) == 1


def test_k26_where_arp_is_strict_nothing_is_said_whoever_has_set_it():
    node = Node()
    node.fake.state[Kind.SYSCTL][ARP_IGNORE] = "1"
    node.reconciler.start()
    assert warnings_of(node, BALANCED) == []


def test_k26_with_strict_arp_nothing_is_said_unless_it_could_not_be_set():
    assert warnings_of(Node(strict_arp=True), BALANCED) == []
    refusing = FakeKernel()
    refusing.faults[Verb.EDIT, Kind.SYSCTL, ARP_IGNORE] = errno.EROFS
    assert len(warnings_of(Node(refusing, strict_arp=True), BALANCED)) == 1


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(Svc("a", ingress=(("203.0.113.10", "Proxy"),)), id="an address that is the load balancer's alone"),
        pytest.param(Svc("a", ips=("2001:db8:96::20",), ingress=(("2001:db8:113::10", "VIP"),)), id="IPv6"),
        pytest.param(Svc("a", ingress=(("192.0.2.11", "VIP"),)), id="an address of the node's own"),
        pytest.param(Svc("a", external_ips=("203.0.113.10",), node_ports=(30080,)), id="no load balancer"),
    ],
)
def test_k26_nothing_is_said_where_no_load_balancer_ip_is_bound(service):
    assert warnings_of(Node(host=("192.0.2.11",)), service) == []
