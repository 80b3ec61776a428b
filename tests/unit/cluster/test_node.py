"""Our node."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.node import NodeView, read_node
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.api_objects import Node


def node(addresses=(), spec=None) -> Node:
    status = {"addresses": [{"type": kind, "address": address} for kind, address in addresses]}
    return msgspec.convert({"metadata": {"name": "n1"}, "spec": spec, "status": status}, Node)


def test_internal_addresses_stand_before_external_ones_in_the_status_order():
    view, notes = read_node(
        node([("ExternalIP", "192.0.2.1"), ("InternalIP", "10.0.0.2"), ("Hostname", "n1"), ("InternalIP", "fd00::2")])
    )
    assert [format_addr(addr) for addr in view.addresses] == ["10.0.0.2", "fd00::2", "192.0.2.1"]
    assert not notes


def test_the_node_ip_of_a_family_is_its_first_address():
    view, _ = read_node(node([("InternalIP", "fd00::2"), ("InternalIP", "10.0.0.2"), ("InternalIP", "10.0.0.3")]))
    assert [format_addr(addr) for addr in view.primary_ips] == ["10.0.0.2", "fd00::2"]
    assert NodeView("n1").primary_ips == ()


@pytest.mark.parametrize(
    "spec, expected",
    [
        pytest.param({"podCIDRs": ["10.244.1.0/24", "fd01::/64"]}, ["10.244.1.0/24", "fd01::/64"], id="list"),
        pytest.param({"podCIDR": "10.244.1.0/24"}, ["10.244.1.0/24"], id="only the old field"),
        pytest.param({"podCIDR": "10.0.0.0/8", "podCIDRs": ["10.244.1.0/24"]}, ["10.244.1.0/24"], id="the list counts"),
        pytest.param({}, [], id="none"),
        pytest.param(None, [], id="no spec"),
    ],
)
def test_pod_networks_come_from_the_list_or_the_old_field(spec, expected):
    view, notes = read_node(node(spec=spec))
    assert [str(cidr) for cidr in view.pod_cidrs] == expected
    assert not notes


def test_all_that_is_bad_is_left_out_with_one_note():
    view, notes = read_node(node([("InternalIP", "x"), ("InternalIP", "10.0.0.2")], {"podCIDRs": ["y"]}))
    assert [format_addr(addr) for addr in view.addresses] == ["10.0.0.2"]
    assert view.pod_cidrs == ()
    assert [note.subject for note in notes] == ["Node n1"]
