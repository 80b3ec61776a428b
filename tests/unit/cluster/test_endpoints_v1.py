"""core/v1 Endpoints as slices."""

from __future__ import annotations

import msgspec

from ipvsproxy.cluster.endpoints_v1 import mirror_endpoints
from ipvsproxy.cluster.slices import EndpointFlags, compact_slice
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.api_objects import Endpoints
from ipvsproxy.model.names import LABEL_HEADLESS, ServiceName


def endpoints(*subsets, labels=None) -> Endpoints:
    value = {"metadata": {"name": "web", "namespace": "default", "labels": labels}, "subsets": list(subsets)}
    return msgspec.convert(value, Endpoints)


def told(*subsets) -> list[tuple[str, int, list[tuple[str, EndpointFlags]]]]:
    pieces = []
    for piece in mirror_endpoints(endpoints(*subsets)):
        compact, notes = compact_slice(piece, "n1")
        assert compact is not None
        assert not notes
        assert compact.service == ServiceName("default", "web")
        records = [(format_addr(addr), flags) for addr, flags in compact.records()]
        pieces.append((compact.family.label, compact.ports[0].port, records))
    return pieces


def test_addresses_are_ready_and_others_are_not():
    subset = {
        "addresses": [{"ip": "10.0.0.1", "nodeName": "n1"}],
        "notReadyAddresses": [{"ip": "10.0.0.2"}],
        "ports": [{"port": 80}],
    }
    ready = EndpointFlags.READY | EndpointFlags.SERVING | EndpointFlags.LOCAL
    assert told(subset) == [("IPv4", 80, [("10.0.0.1", ready), ("10.0.0.2", EndpointFlags.SERVING)])]


def test_each_subset_and_family_is_a_slice_of_its_own():
    first = {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}
    second = {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 81}]}
    assert [(family, port) for family, port, _ in told(first, second)] == [("IPv4", 80), ("IPv6", 80), ("IPv4", 81)]


def test_an_ipv4_mapped_address_is_ipv4():
    assert [family for family, _, _ in told({"addresses": [{"ip": "::ffff:10.0.0.1"}], "ports": [{"port": 80}]})] == [
        "IPv4"
    ]


def test_the_names_differ_and_cannot_be_those_of_real_slices():
    subset = {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}
    names = [piece.metadata.name for piece in mirror_endpoints(endpoints(subset, subset))]
    assert names == ["web:0:IPv4", "web:0:IPv6", "web:1:IPv4", "web:1:IPv6"]


def test_the_headless_label_is_handed_on():
    (piece,) = mirror_endpoints(endpoints({"addresses": [{"ip": "10.0.0.1"}]}, labels={LABEL_HEADLESS: ""}))
    assert compact_slice(piece, "n1") == (None, ())


def test_a_bad_address_is_told_by_its_slice():
    (piece,) = mirror_endpoints(endpoints({"addresses": [{"ip": "web"}]}))
    _, notes = compact_slice(piece, "n1")
    assert '"web" is not an IPv4 address' in notes[0].reason


def test_no_subsets_are_no_slices():
    assert mirror_endpoints(endpoints()) == ()
    assert mirror_endpoints(msgspec.structs.replace(endpoints(), subsets=None)) == ()
