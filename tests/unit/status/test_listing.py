"""What the lines of `-L -n` and `-S -n` say where the fixtures of the real ipvsadm (test_fixtures.py) do not reach."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator

import pytest

from ipvsproxy.model.addr import PackedAddr, parse_addr
from ipvsproxy.model.enums import Family, ForwardingMethod, Protocol, TunnelFlags, TunnelType, VirtualServerFlags
from ipvsproxy.model.observed import IpvsTable, ObservedRealServer, ObservedVirtualServer, full_netmask
from ipvsproxy.status.endpoints import by_name, numeric
from ipvsproxy.status.listing import list_all
from ipvsproxy.status.requests import Columns, Table
from ipvsproxy.status.rules import save, save_lines
from ipvsproxy.status.source import TableSource


def _virtual_server(address: str = "10.96.0.10", *real_servers: ObservedRealServer, **fields) -> ObservedVirtualServer:
    packed = parse_addr(address)
    family = Family.IPV4 if len(packed) == 4 else Family.IPV6
    defaults = {
        "family": family,
        "protocol": Protocol.TCP,
        "address": packed,
        "port": 80,
        "fwmark": 0,
        "scheduler": "rr",
        "flags": VirtualServerFlags.HASHED,
        "timeout_s": 0,
        "netmask": full_netmask(family),
    }
    return ObservedVirtualServer(**{**defaults, **fields}, real_servers=real_servers)


def _real_server(address: str = "10.44.0.1", **fields) -> ObservedRealServer:
    return ObservedRealServer(address=parse_addr(address), port=8080, **fields)


def _table_lines(table: IpvsTable, columns: Columns = Columns.PLAIN) -> Iterator[str]:
    source = TableSource(table)
    return list_all(source, source.info(), Table(columns=columns), numeric)


def _listed(server: ObservedVirtualServer, columns: Columns = Columns.PLAIN) -> list[str]:
    """Its lines in the table, below the version and the titles."""
    return list(_table_lines(IpvsTable(0x10201, 4096, (server,)), columns))[3:]


def test_an_empty_table_still_has_its_three_title_lines():
    assert list(_table_lines(IpvsTable(0x10203, 1 << 20))) == [
        "IP Virtual Server version 1.2.3 (size=1048576)",
        "Prot LocalAddress:Port Scheduler Flags",
        "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn",
    ]


def test_an_empty_table_saves_as_nothing():
    assert list(save(TableSource(IpvsTable(0x10201, 4096)), numeric)) == []


@pytest.mark.parametrize(
    "fields,listed,saved",
    [
        pytest.param(
            {"fwmark": 0xFFFF_FFFF},
            "FWM  -1 rr",
            "-A -f -1 -s rr",
            id="a mark above 2^31 - 1 shows as a negative number",
        ),
        pytest.param(
            {"fwmark": 7, "family": Family.IPV6, "netmask": full_netmask(Family.IPV6)},
            "FWM  7 IPv6 rr",
            "-A -f 7 -6 -s rr",
            id="a mark of IPv6 says so",
        ),
        pytest.param(
            {"protocol": 99},
            "?    10.96.0.10:80 rr",
            "-A --xxx-service 10.96.0.10:80 -s rr",
            id="an unknown protocol is a question mark, and an option that does not exist",
        ),
        pytest.param(
            {"scheduler": "sh", "flags": 0x20},
            "TCP  10.96.0.10:80 sh ()",
            "-A -t 10.96.0.10:80 -s sh -b ",
            id="a third scheduler flag of sh has no name",
        ),
        pytest.param(
            {"pe_name": "sip"},
            "TCP  10.96.0.10:80 rr",
            "-A -t 10.96.0.10:80 -s rr --pe sip",
            id="an engine without persistence is saved but not listed",
        ),
        pytest.param(
            {"flags": 0x3F, "timeout_s": 360, "netmask": b"\xff\xff\xff\0", "pe_name": "sip"},
            "TCP  10.96.0.10:80 rr (flag-1,flag-2,flag-3) persistent 360 mask 255.255.255.0 pe sip ops",
            "-A -t 10.96.0.10:80 -s rr -p 360 -M 255.255.255.0 --pe sip -o -b flag-1,flag-2,flag-3",
            id="everything at once keeps ipvsadm's two orders",
        ),
        pytest.param(
            {"netmask": b"\xff\xff\xff\0"},
            "TCP  10.96.0.10:80 rr",
            "-A -t 10.96.0.10:80 -s rr",
            id="a mask without persistence is shown nowhere",
        ),
    ],
)
def test_a_virtual_server_shows_its(fields, listed, saved):
    server = _virtual_server(**fields)
    assert _listed(server) == [listed]
    assert list(save_lines([server])) == [saved]


def test_an_ipv6_mask_is_a_prefix_length():
    server = _virtual_server("fd00::10", flags=1, timeout_s=60, netmask=struct.pack("=I", 64))
    assert _listed(server) == ["TCP  [fd00::10]:80 rr persistent 60 mask 64"]
    assert list(save_lines([server])) == ["-A -t [fd00::10]:80 -s rr -p 60 -M 64"]


def test_an_ipv6_mask_from_2_to_the_31st_on_is_negative_as_ipvsadm_prints_it():
    server = _virtual_server("fd00::10", flags=1, timeout_s=60, netmask=struct.pack("=I", 2**32 - 1))
    assert _listed(server) == ["TCP  [fd00::10]:80 rr persistent 60 mask -1"]
    assert list(save_lines([server])) == ["-A -t [fd00::10]:80 -s rr -p 60 -M -1"]


class _Bookshop:
    """A resolver that knows each address by one name, as SystemResolver gives it."""

    name = ("ü" * 40).encode().decode("ascii", "surrogateescape")

    def host_name(self, _: PackedAddr) -> str:
        return self.name

    def host_address(self, _: str) -> None:
        return None

    def service_name(self, _: int, __: Protocol) -> None:
        return None

    def service_port(self, _: str, __: Protocol) -> None:
        return None


def test_names_are_cut_and_filled_up_by_bytes_as_c_does_it():
    """As the real ipvsadm printed it of a name of 40 letters ü: 14 of them, or 29 and a half."""
    server = _virtual_server("10.96.0.10", _real_server())
    source = TableSource(IpvsTable(0x10201, 4096, (server,)))
    lines = [*list_all(source, source.info(), Table(), by_name(_Bookshop()))][3:]
    shown = "ü" * 14
    assert [line.encode(errors="surrogateescape").decode() for line in lines] == [
        f"TCP  {shown} rr",
        f"  -> {shown} Masq    1      0          0         ",
    ]
    saved = next(save(source, by_name(_Bookshop())))
    assert saved.encode(errors="surrogateescape") == b"-A -t " + ("ü" * 40).encode()[:59] + b" -s rr"


def test_a_connection_table_from_2_to_the_31st_on_is_negative_as_ipvsadm_prints_it():
    assert next(_table_lines(IpvsTable(0x10201, 2**31))) == "IP Virtual Server version 1.2.1 (size=-2147483648)"


@pytest.mark.parametrize("method", ForwardingMethod, ids=lambda method: method.name.lower())
def test_the_forwarding_word_counts_in_its_low_three_bits_only(method):
    plain, marked = (_virtual_server("10.96.0.10", _real_server(conn_flags=raw)) for raw in (method, method | 0x2100))
    assert _listed(marked) == _listed(plain)
    assert list(save_lines([marked])) == list(save_lines([plain]))


def test_a_weight_beyond_31_bits_is_negative():
    server = _virtual_server("10.96.0.10", _real_server(weight=0xFFFF_FFFF))
    assert _listed(server)[1] == "  -> 10.44.0.1:8080               Masq    -1     0          0         "
    assert list(save_lines([server]))[1] == "-a -t 10.96.0.10:80 -r 10.44.0.1:8080 -m -w -1"


def test_a_method_without_a_name_is_what_c_prints_for_a_missing_word():
    server = _virtual_server("10.96.0.10", _real_server(conn_flags=4))
    assert _listed(server)[1] == "  -> 10.44.0.1:8080               (null)  1      0          0         "
    assert list(save_lines([server]))[1] == "-a -t 10.96.0.10:80 -r 10.44.0.1:8080 (null) -w 1"


@pytest.mark.parametrize(
    "fields,options",
    [
        pytest.param({"tun_type": TunnelType.IPIP, "tun_flags": 1, "tun_port": 9}, " --tun-type ipip", id="ipip alone"),
        pytest.param(
            {"tun_type": TunnelType.GUE, "tun_port": 6080},
            " --tun-type gue --tun-port 6080 --tun-nocsum",
            id="gue with its port, no checksum",
        ),
        pytest.param(
            {"tun_type": TunnelType.GRE, "tun_flags": TunnelFlags.CHECKSUM},
            " --tun-type gre --tun-csum",
            id="gre with a checksum",
        ),
        pytest.param(
            {"tun_type": TunnelType.GRE, "tun_flags": TunnelFlags.REMOTE_CHECKSUM},
            " --tun-type gre --tun-remcsum",
            id="gre with remote checksums",
        ),
        pytest.param(
            {"tun_type": TunnelType.GRE, "tun_flags": 3},
            " --tun-type gre --tun-remcsum",
            id="the higher of two flags, on which ipvsadm crashes",
        ),
        pytest.param({"tun_type": 3}, "", id="nothing for a type nobody knows"),
    ],
)
def test_a_saved_tunnel_server_says(fields, options):
    server = _virtual_server("10.96.0.10", _real_server(conn_flags=ForwardingMethod.TUNNEL, **fields))
    assert list(save_lines([server]))[1] == "-a -t 10.96.0.10:80 -r 10.44.0.1:8080 -i -w 1" + options


def test_tunnel_settings_of_a_server_that_is_no_tunnel_are_not_saved():
    server = _virtual_server("10.96.0.10", _real_server(conn_flags=ForwardingMethod.ROUTE, tun_type=TunnelType.GRE))
    assert list(save_lines([server]))[1] == "-a -t 10.96.0.10:80 -r 10.44.0.1:8080 -g -w 1"


def test_a_long_ipv6_real_server_pushes_the_columns_and_loses_nothing():
    address = "2001:db8:1111:2222:3333:4444:5555:6666"
    lines = _listed(_virtual_server("fd00::10", _real_server(address)))
    assert lines[1] == f"  -> [{address}]:8080 Masq    1      0          0         "


@pytest.mark.parametrize(
    "tun_type,tun_flags,told",
    [
        pytest.param(TunnelType.GRE, 3, "gre:r+c", id="the higher of two flags"),
        pytest.param(3, 0, "n/a", id="nothing of a type nobody knows"),
    ],
)
def test_a_tunnels_column_tells(tun_type, tun_flags, told):
    real_server = _real_server(conn_flags=ForwardingMethod.TUNNEL, tun_type=tun_type, tun_flags=tun_flags)
    assert _listed(_virtual_server("10.96.0.10", real_server), Columns.TUNNELS)[1].split()[3] == told


def test_a_large_table_is_listed_in_a_fraction_of_the_memory_of_its_text():
    table = IpvsTable(0x10201, 4096, tuple(_with_many_real_servers(number) for number in range(1000)))
    tracemalloc.start()
    try:
        text_size = sum(len(line) for line in _table_lines(table))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < text_size / 2


def _with_many_real_servers(number: int) -> ObservedVirtualServer:
    real_servers = (ObservedRealServer(PackedAddr(struct.pack("!I", 0x0A2C0000 + i)), 8080) for i in range(20))
    return _virtual_server(f"10.96.{number // 256}.{number % 256}", *real_servers)
