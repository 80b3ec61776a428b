"""Who is behind what the kernel has."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.known import Known, KnownDrain, KnownEndpoint, KnownHead, KnownPort, KnownService
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer, full_netmask
from ipvsproxy.status.names import Names, Owner
from tests.builders import addr

WEB = KnownService(
    "shop", "web", "2026-01-01T00:00:00Z", ("10.96.0.20", "fd00::20", "192.0.2.7"),
    (KnownPort("TCP", 80, "http", 30080), KnownPort("UDP", 53)),
    (KnownEndpoint("10.244.1.5", "ready", "web-abc", "n1", "a"),),
)  # fmt: skip
WEB_HTTP = Owner("shop", "web", "http", 80)


def virtual(address: str, port: int, protocol: int = 6, fwmark: int = 0) -> ObservedVirtualServer:
    packed = addr(address)
    family = Family.IPV4 if len(packed) == 4 else Family.IPV6
    return ObservedVirtualServer(family, protocol, packed, port, fwmark, "rr", 2, 0, full_netmask(family))


def names(*services: KnownService, **head) -> Names:
    return Names(Known(KnownHead(1, **head), services))


@pytest.mark.parametrize("address", ["10.96.0.20", "fd00::20", "192.0.2.7"])
def test_k53_a_virtual_server_at_any_address_of_a_service_is_its(address):
    assert names(WEB).owner(virtual(address, 80)) == WEB_HTTP


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(virtual("10.96.0.21", 80), id="another address"),
        pytest.param(virtual("10.96.0.20", 81), id="another port"),
        pytest.param(virtual("10.96.0.20", 80, 17), id="another protocol"),
        pytest.param(virtual("10.96.0.20", 80, 6, fwmark=7), id="a firewall mark"),
    ],
)
def test_other_virtual_servers_are_not(server):
    assert names(WEB).owner(server) is None
    assert not names(WEB).is_ours(server)


def test_a_port_is_called_by_its_name_or_its_number():
    assert str(names(WEB).owner(virtual("10.96.0.20", 80))) == "shop/web:http"
    assert str(names(WEB).owner(virtual("10.96.0.20", 53, 17))) == "shop/web:53"


@pytest.mark.parametrize("address", ["198.51.100.9", "2001:db8::9"])
def test_a_node_port_is_its_services_at_every_address_where_nobody_says_which_serve_them(address):
    assert names(WEB).owner(virtual(address, 30080)) == WEB_HTTP


def test_a_node_port_is_its_services_at_those_addresses_that_the_daemon_serves_it_at():
    found = names(WEB, node_port_addresses=("198.51.100.9",))
    assert found.owner(virtual("198.51.100.9", 30080)) == WEB_HTTP
    assert found.owner(virtual("198.51.100.10", 30080)) is None


def test_a_node_port_is_not_of_a_family_that_its_service_does_not_have():
    only_ipv4 = KnownService("shop", "old", "", ("10.96.0.30",), (KnownPort("TCP", 80, "", 30081),))
    assert names(only_ipv4).owner(virtual("2001:db8::9", 30081)) is None


def test_of_two_services_that_want_one_frontend_the_first_has_it():
    late = KnownService("shop", "late", "2026-02-01T00:00:00Z", ("192.0.2.7",), (KnownPort("TCP", 80),))
    assert names(WEB, late).owner(virtual("192.0.2.7", 80)) == WEB_HTTP


def test_k53_endpoints_are_found_by_their_address():
    endpoints = names(WEB).endpoints(virtual("10.96.0.20", 80))
    assert {address: endpoint.pod for address, endpoint in endpoints.items()} == {addr("10.244.1.5"): "web-abc"}
    assert names(WEB).endpoints(virtual("10.96.0.99", 80)) is None


def test_what_connections_keep_for_a_service_that_is_gone_is_ours():
    drain = KnownDrain("TCP", "10.96.0.99", 80, "10.244.1.5", 8080, 42.0)
    server, real = virtual("10.96.0.99", 80), ObservedRealServer(addr("10.244.1.5"), 8080, weight=0)
    found = names(drains=(drain,))
    assert found.is_ours(server)
    assert found.owner(server) is None
    assert found.left_s(server, real) == 42.0


def test_only_the_real_server_that_drains_has_time_left():
    drain = KnownDrain("TCP", "10.96.0.20", 80, "10.244.1.5", 8080, 42.0)
    found = names(WEB, drains=(drain,))
    assert found.left_s(virtual("10.96.0.20", 80), ObservedRealServer(addr("10.244.1.6"), 8080)) is None
    assert found.left_s(virtual("192.0.2.7", 80), ObservedRealServer(addr("10.244.1.5"), 8080)) is None


def test_a_protocol_that_only_a_later_daemon_knows_is_passed_over():
    later = msgspec.structs.replace(WEB, ports=(KnownPort("QUIC", 443, "h3"), *WEB.ports))
    found = names(later, drains=(KnownDrain("QUIC", "10.96.0.20", 443, "10.244.1.5", 8443, 1.0),))
    assert found.owner(virtual("10.96.0.20", 80)) == WEB_HTTP
    assert found.owner(virtual("10.96.0.20", 443)) is None
