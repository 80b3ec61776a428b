"""The texts of kernel objects: what ipset, ipvsadm and a log line call them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ipvsproxy.model.addr import PackedAddr, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import (
    Kind,
    Operation,
    RealServer,
    RuleTable,
    SetEntry,
    SetSpec,
    Verb,
    VirtualServerKey,
    empty_state,
    format_key,
)
from ipvsproxy.model.names import ServiceName, set_name

_TCP, _UDP, _SCTP = Protocol.TCP, Protocol.UDP, Protocol.SCTP
_ADDRESSES = (st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)).map(PackedAddr)
_MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:a.b.c.d reads back as a.b.c.d, so no text of ours holds one
_UNMAPPED = _ADDRESSES.filter(lambda addr: not addr.startswith(_MAPPED))


def _addr(text: str) -> PackedAddr:
    return parse_addr(text)


@pytest.mark.parametrize(
    "entry,member",
    [
        pytest.param(SetEntry("S", _addr("10.20.30.41")), "10.20.30.41", id="hash:ip"),
        pytest.param(SetEntry("S", _addr("fd00::1")), "fd00::1", id="hash:ip of IPv6, compressed and without brackets"),
        pytest.param(SetEntry("S", _addr("10.20.30.41"), _TCP, 80), "10.20.30.41,tcp:80", id="hash:ip,port"),
        pytest.param(SetEntry("S", _addr("fd00::1"), _UDP, 53), "fd00::1,udp:53", id="hash:ip,port of IPv6"),
        pytest.param(SetEntry("S", _addr("10.0.0.1"), _SCTP, 36412), "10.0.0.1,sctp:36412", id="hash:ip,port of SCTP"),
        pytest.param(
            SetEntry("S", _addr("10.0.1.1"), _TCP, 80, _addr("10.0.1.1")),
            "10.0.1.1,tcp:80,10.0.1.1",
            id="hash:ip,port,ip",
        ),
        pytest.param(
            SetEntry("S", _addr("fd00::1"), _TCP, 80, _addr("fd00::1")), "fd00::1,tcp:80,fd00::1", id="the same of IPv6"
        ),
        pytest.param(
            SetEntry("S", _addr("1.2.3.4"), _TCP, 80, _addr("10.0.0.0"), 8),
            "1.2.3.4,tcp:80,10.0.0.0/8",
            id="hash:ip,port,net",
        ),
        pytest.param(
            SetEntry("S", _addr("1.2.3.4"), _TCP, 80, _addr("10.0.0.1"), 32),
            "1.2.3.4,tcp:80,10.0.0.1",
            id="hash:ip,port,net: ipset prints a full network without its prefix",
        ),
        pytest.param(
            SetEntry("S", _addr("fd00::1"), _TCP, 80, _addr("fd01::1"), 128),
            "fd00::1,tcp:80,fd01::1",
            id="the same of IPv6, at 128",
        ),
        pytest.param(
            SetEntry("S", _addr("fd00::1"), _TCP, 80, _addr("fd01::"), 32),
            "fd00::1,tcp:80,fd01::/32",
            id="32 bits are no full network of IPv6",
        ),
        pytest.param(SetEntry("S", port=3001), "3001", id="bitmap:port"),
        pytest.param(SetEntry("S", port=0), "0", id="bitmap:port of port 0"),
    ],
)
def test_a_set_member_reads_as_ipset_prints_it(entry, member):
    assert entry.member == member
    assert str(entry) == f"S {member}"


@given(_UNMAPPED, st.sampled_from(Protocol), st.integers(0, 0xFFFF), _UNMAPPED, st.data())
def test_a_set_member_says_all_of_its_entry(address, protocol, port, second, data):
    bits = len(second) * 8
    prefix_len = data.draw(st.integers(1, bits))
    network = PackedAddr((int.from_bytes(second) >> (bits - prefix_len) << (bits - prefix_len)).to_bytes(bits // 8))
    assume(not network.startswith(_MAPPED))
    text = SetEntry("S", address, protocol, port, network, prefix_len).member
    address_text, port_text, network_text = text.split(",")
    assert parse_addr(address_text) == address
    assert port_text == f"{protocol.name.lower()}:{port}"
    cidr = parse_cidr(network_text if "/" in network_text else f"{network_text}/{bits}")
    assert (cidr.network, cidr.prefix_len) == (network, prefix_len)


@pytest.mark.parametrize(
    "key,text",
    [
        pytest.param(VirtualServerKey(_TCP, _addr("10.20.30.41"), 80), "10.20.30.41:80/TCP", id="IPv4"),
        pytest.param(VirtualServerKey(_UDP, _addr("fd00::a"), 53), "[fd00::a]:53/UDP", id="IPv6 in brackets"),
        pytest.param(VirtualServerKey(_SCTP, _addr("10.0.0.1"), 36412), "10.0.0.1:36412/SCTP", id="SCTP"),
    ],
)
def test_a_virtual_server_key_reads_as_endpoint_and_protocol(key, text):
    assert str(key) == text


@given(st.sampled_from(Protocol), _UNMAPPED, st.integers(0, 0xFFFF))
def test_a_virtual_server_key_says_all_of_itself(protocol, address, port):
    endpoint, _, word = str(VirtualServerKey(protocol, address, port)).rpartition("/")
    address_text, _, port_text = endpoint.rpartition(":")
    read = VirtualServerKey(Protocol[word], parse_addr(address_text.strip("[]")), int(port_text))
    assert read == VirtualServerKey(protocol, address, port)


def test_a_real_server_reads_as_its_endpoint():
    assert str(RealServer(_addr("fd00::1"), 8080, weight=3)) == "[fd00::1]:8080"


@pytest.mark.parametrize(
    "base,ipv6_name",
    [
        pytest.param("KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK", id="short names get the 6"),
        pytest.param("KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS", id="and keep the rest"),
        pytest.param("KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP", id="30 bytes fit"),
        pytest.param("KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT", id="29 bytes fit"),
        pytest.param("KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID", id="SOURCE-CIDR is cut"),
        pytest.param("KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", id="LOCAL-SCTP-HASH is cut"),
    ],
)
def test_an_ipv6_set_is_named_as_the_kernel_can_store_it(base, ipv6_name):
    assert set_name(base, Family.IPV6) == ipv6_name
    assert set_name(base, Family.IPV4) == base


@pytest.mark.parametrize(
    "spec,options",
    [
        pytest.param(SetSpec("hash:ip", Family.IPV4), "hash:ip family inet hashsize 1024 maxelem 65536", id="IPv4"),
        pytest.param(
            SetSpec("hash:ip,port,net", Family.IPV6),
            "hash:ip,port,net family inet6 hashsize 1024 maxelem 65536",
            id="IPv6",
        ),
        pytest.param(SetSpec("bitmap:port", None), "bitmap:port range 0-65535", id="a bitmap has no family"),
    ],
)
def test_a_set_is_created_with_upstreams_options(spec, options):
    assert spec.create_options == options


def test_a_service_reads_as_kubernetes_writes_it():
    assert str(ServiceName("default", "web")) == "default/web"


_VIRTUAL_SERVER = VirtualServerKey(_TCP, _addr("10.0.0.1"), 80)
_ENTRY = SetEntry("KUBE-CLUSTER-IP", _addr("10.0.0.1"), _TCP, 80)
_KEY_TEXTS = {
    Kind.SYSCTL: ("net.ipv4.ip_forward", "net.ipv4.ip_forward"),
    Kind.SET: ("KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP"),
    Kind.RULES: (RuleTable("nat", Family.IPV6), "IPv6 nat rules"),
    Kind.LINK: ("kube-ipvs0", "kube-ipvs0"),
    Kind.SUPPORT_ENTRY: (_ENTRY, "KUBE-CLUSTER-IP 10.0.0.1,tcp:80"),
    Kind.GUARD_ENTRY: (_ENTRY, "KUBE-CLUSTER-IP 10.0.0.1,tcp:80"),
    Kind.ACCEPT_ENTRY: (_ENTRY, "KUBE-CLUSTER-IP 10.0.0.1,tcp:80"),
    Kind.BOUND_ENTRY: (SetEntry("KUBE-IPVS-IPS", _addr("10.0.0.1")), "KUBE-IPVS-IPS 10.0.0.1"),
    Kind.VIRTUAL_SERVER: (_VIRTUAL_SERVER, "10.0.0.1:80/TCP"),
    Kind.REAL_SERVER: (_VIRTUAL_SERVER, "10.0.0.1:80/TCP"),
    Kind.ADDRESS: (_addr("fd00::1"), "fd00::1/128"),
}


@pytest.mark.parametrize("kind", Kind)
def test_a_key_of_every_kind_has_its_words(kind):
    key, text = _KEY_TEXTS[kind]
    assert format_key(kind, key) == text


@pytest.mark.parametrize("verb", Verb)
def test_an_operation_reads_as_verb_kind_and_key(verb):
    assert str(Operation(verb, Kind.ADDRESS, _addr("10.0.0.1"))) == f"{verb.value} address 10.0.0.1/32"


def test_an_empty_state_has_every_kind_and_no_object():
    assert empty_state() == {kind: {} for kind in Kind}


def test_two_empty_states_share_nothing():
    first, second = empty_state(), empty_state()
    first[Kind.SET]["KUBE-CLUSTER-IP"] = SetSpec("hash:ip,port", Family.IPV4)
    assert second[Kind.SET] == {}
