"""A cache on the node that answers for the DNS Service (K47): at its own address, or at the Service's cluster IP."""

from __future__ import annotations

from ipvsproxy.model.addr import format_addr, parse_cidr
from ipvsproxy.model.kernel_objects import Kind, SetEntry
from tests.builders import addr
from tests.clusters import Node, Svc, cluster

CACHE, DNS_IP = "169.254.20.10", "10.96.0.10"
DNS = Svc("dns", (DNS_IP,), ((53, "UDP"), (53, "TCP")))
WEB = Svc("web", ("10.96.0.20",), node_ports=(30080,))
ENTRIES = (Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY)


def of(node: Node, address: str) -> list[str]:
    """All virtual servers, addresses and set entries that bear an address."""
    state, packed = node.fake.state, addr(address)
    found = [str(key) for key in state[Kind.VIRTUAL_SERVER] if key.address == packed]  # type: ignore[union-attr]
    found += [format_addr(key) for key in state[Kind.ADDRESS] if key == packed]  # type: ignore[arg-type]
    entries = [entry for kind in ENTRIES for entry in state[kind] if isinstance(entry, SetEntry)]
    return found + [f"{entry.set_name} {entry.member}" for entry in entries if entry.address == packed]


def test_k47_a_cache_at_a_link_local_address_is_left_alone_whatever_it_serves():
    node = Node(host=["192.0.2.11", CACHE])
    node.sync(cluster(DNS, WEB))
    assert of(node, CACHE) == []
    assert of(node, DNS_IP)


def test_k47_a_service_that_names_the_caches_address_does_not_get_it():
    node = Node(host=["192.0.2.11", CACHE])
    node.sync(cluster(Svc("dns", (DNS_IP,), external_ips=(CACHE,), ingress=((CACHE, "VIP"),))))
    assert of(node, CACHE) == []


def test_k47_for_an_excluded_cluster_ip_nothing_is_programmed_and_all_else_serves():
    excluded = parse_cidr(f"{DNS_IP}/32")
    assert excluded is not None
    node = Node(host=["192.0.2.11", DNS_IP], exclude=(excluded,))
    node.sync(cluster(DNS, WEB))
    assert of(node, DNS_IP) == []
    assert of(node, "10.96.0.20")


def test_k47_a_cluster_ip_that_is_excluded_no_more_is_served_after_one_sync():
    excluded = parse_cidr(f"{DNS_IP}/32")
    assert excluded is not None
    before = Node(exclude=(excluded,))
    before.sync(cluster(DNS, WEB))
    after = Node(before.fake)
    after.sync(cluster(DNS, WEB))
    assert {f"{DNS_IP}:53/UDP", f"{DNS_IP}:53/TCP", DNS_IP} <= set(of(after, DNS_IP))
