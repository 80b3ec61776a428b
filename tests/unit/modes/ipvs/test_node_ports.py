"""Which of the node's addresses serve node ports. The node of K23: oddly named interfaces, bridges, VIPs, loopback."""

from __future__ import annotations

import pytest

from ipvsproxy.model.addr import format_addr, parse_cidr
from ipvsproxy.modes.ipvs.node_ports import NodePortAddresses, may_serve
from tests.builders import addr

INTERFACES = {
    "lo": ("127.0.0.1", "::1", "127.0.0.53"),
    "eno1": ("192.0.2.11", "2001:db8:1::11", "fe80::11"),
    "bond0.20": ("198.51.100.11", "2001:db8:2::11"),
    "br-lan": ("10.0.0.1", "fe80::21"),
    "docker0": ("172.17.0.1", "169.254.17.1"),  # the second is what a node without DHCP gives itself (RFC 3927)
}  # without kube-ipvs0: whoever reads the host leaves it out
HOST = frozenset(addr(text) for texts in INTERFACES.values() for text in texts)
PRIMARY = ("192.0.2.11", "2001:db8:1::11")
ALL_FOUR = {"192.0.2.11", "198.51.100.11", "10.0.0.1", "172.17.0.1"}
ALL_SIX = {"2001:db8:1::11", "2001:db8:2::11"}


def option(*cidrs: str, primary: bool = False) -> NodePortAddresses:
    return NodePortAddresses(tuple(cidr for text in cidrs if (cidr := parse_cidr(text))), primary)


def selected(given: NodePortAddresses, primary=PRIMARY, host=HOST) -> set[str]:
    return {format_addr(found) for found in given.select(host, tuple(map(addr, primary)))}


@pytest.mark.parametrize(
    "given,serving",
    [
        pytest.param(option(), ALL_FOUR | ALL_SIX, id="nothing said: all of every interface"),
        pytest.param(option("192.0.2.0/24", "2001:db8:1::/64"), {"192.0.2.11", "2001:db8:1::11"}, id="a network each"),
        pytest.param(option("192.0.2.0/24"), {"192.0.2.11"} | ALL_SIX, id="a network of IPv4: all of IPv6"),
        pytest.param(option("2001:db8:2::/64"), {"2001:db8:2::11"} | ALL_FOUR, id="a network of IPv6: all of IPv4"),
        pytest.param(
            option("192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"),
            {"192.0.2.11", "198.51.100.11"} | ALL_SIX,
            id="two networks of a family",
        ),
        pytest.param(option("192.0.2.11/32", "2001:db8:2::11/128"), {"192.0.2.11", "2001:db8:2::11"}, id="hosts"),
        pytest.param(option("203.0.113.0/24", "fd00::/8"), set(), id="networks that the node has no address in"),
        pytest.param(option("0.0.0.0/0", "::/0"), ALL_FOUR | ALL_SIX, id="length 0: all"),
        pytest.param(option("192.0.2.0/24", "0.0.0.0/0", "fd00::/8"), ALL_FOUR, id="length 0 beside a network: all"),
        pytest.param(option(primary=True), set(PRIMARY), id="primary"),
        pytest.param(option("198.51.100.0/24", primary=True), {*PRIMARY, "198.51.100.11"}, id="primary and a network"),
        pytest.param(option("0.0.0.0/0", primary=True), ALL_FOUR | {"2001:db8:1::11"}, id="primary and length 0"),
        pytest.param(option("127.0.0.0/8", "::1/128"), set(), id="localhost"),
        pytest.param(option("127.0.0.0/8", "192.0.2.0/24", "::1/128"), {"192.0.2.11"}, id="localhost and a network"),
        pytest.param(option("fe80::/10", "192.0.2.0/24"), {"192.0.2.11"}, id="the link-local network"),
        pytest.param(option("169.254.0.0/16", "fe80::/10"), set(), id="the link-local networks"),
        pytest.param(option("169.254.17.1/32", "2001:db8:2::/64"), {"2001:db8:2::11"}, id="a link-local address"),
    ],
)
def test_k23_node_ports_are_served_on(given, serving):
    assert selected(given) == serving


@pytest.mark.parametrize(
    "primary,serving",
    [
        pytest.param(("192.0.2.11",), {"192.0.2.11"} | ALL_SIX, id="of one family: all of the other, as upstream"),
        pytest.param(("127.0.0.1", "2001:db8:1::11"), ALL_FOUR | {"2001:db8:1::11"}, id="loopback: as if not known"),
        pytest.param(("192.0.2.99", "2001:db8:1::99"), set(), id="addresses that no interface has: none"),
        pytest.param((), set(), id="not known yet: none"),
    ],
)
def test_k23_primary_depends_on_the_node(primary, serving):
    assert selected(option(primary=True), primary) == serving


ANY = {"0.0.0.0", "::"}


@pytest.mark.parametrize(
    "given,listening",
    [
        pytest.param(option(), ANY, id="nothing said: all"),
        pytest.param(option("0.0.0.0/0", "::/0"), ANY, id="length 0: all"),
        pytest.param(option("192.0.2.0/24", "0.0.0.0/0", "::/0"), ANY, id="length 0 beside a network: all"),
        pytest.param(option("192.0.2.0/24"), {"192.0.2.11", "::"}, id="a network of IPv4: all of IPv6"),
        pytest.param(option("2001:db8:2::/64"), {"0.0.0.0", "2001:db8:2::11"}, id="a network of IPv6: all of IPv4"),
        pytest.param(
            option("127.0.0.0/8", "::1/128"), {"127.0.0.1", "127.0.0.53", "::1"}, id="localhost: loopback alone"
        ),
        pytest.param(option(primary=True), set(PRIMARY), id="primary"),
        pytest.param(
            option("127.0.0.0/8", primary=True), {*PRIMARY, "127.0.0.1", "127.0.0.53"}, id="primary and localhost"
        ),
        pytest.param(option("fe80::/10"), {"0.0.0.0"}, id="the link-local network: it would need an interface"),
        pytest.param(option("169.254.0.0/16"), {"169.254.17.1", "::"}, id="that of IPv4: it needs none"),
        pytest.param(option("203.0.113.0/24", "fd00::/8"), set(), id="networks that the node has no address in"),
    ],
)
def test_k29_health_check_node_ports_are_answered_on(given, listening):
    found = given.health_addresses(HOST, tuple(map(addr, PRIMARY)))
    assert {format_addr(address) for address in found} == listening


@pytest.mark.parametrize(
    "primary,listening",
    [
        pytest.param((), set(), id="not known yet: none"),
        pytest.param(("192.0.2.11",), {"192.0.2.11", "::"}, id="of one family: all of the other"),
    ],
)
def test_k29_health_check_node_ports_on_primary_depend_on_the_node(primary, listening):
    found = option(primary=True).health_addresses(HOST, tuple(map(addr, primary)))
    assert {format_addr(address) for address in found} == listening


def test_k23_an_address_that_comes_and_goes_is_selected_while_it_is_there():
    given = option("192.0.2.0/24")
    with_vip = HOST | {addr("192.0.2.50")}
    assert selected(given, host=with_vip) - selected(given) == {"192.0.2.50"}
    assert selected(option(primary=True), host=with_vip) == set(PRIMARY)


@pytest.mark.parametrize("given", [option(), option("0.0.0.0/0", "::/0"), option("127.0.0.0/8"), option(primary=True)])
def test_k22_loopback_and_link_local_addresses_never_serve(given):
    never = {"127.0.0.1", "127.0.0.53", "::1", "169.254.17.1", "fe80::11", "fe80::21"}
    for primary in (("127.0.0.1", "fe80::11"), ("169.254.17.1", "::1")):
        assert not never & selected(given, primary)


@pytest.mark.parametrize(
    "text,serves",
    [
        ("127.0.0.1", False), ("127.255.255.254", False), ("::1", False), ("fe80::1", False), ("febf::1", False),
        ("fec0::1", True), ("169.254.0.1", False), ("169.254.255.254", False), ("169.253.1.1", True),
        ("192.0.2.11", True), ("2001:db8::1", True), ("fd00::1", True),
    ],
)  # fmt: skip
def test_k22_an_address_may_serve_if_packets_from_elsewhere_can_come_to_it(text, serves):
    assert may_serve(addr(text)) is serves


@pytest.mark.parametrize(
    "given,asked",
    [
        pytest.param(option("127.0.0.0/8"), True, id="the IPv4 network"),
        pytest.param(option("192.0.2.0/24", "::1/128"), True, id="the IPv6 address"),
        pytest.param(option("127.0.0.1/32"), True, id="one address"),
        pytest.param(option(), False, id="nothing said"),
        pytest.param(option("0.0.0.0/0", "::/0"), False, id="all: loopback is not meant"),
        pytest.param(option(primary=True), False, id="primary"),
    ],
)
def test_k22_asking_for_loopback_can_be_told(given, asked):
    assert given.has_loopback is asked


def test_the_order_of_the_hosts_addresses_does_not_matter():
    assert option().select(sorted(HOST), ()) == option().select(sorted(HOST, reverse=True), ())
