"""Names that the system has in any encoding, as the bytes that they are."""

from __future__ import annotations

import socket

import pytest

from ipvsproxy.model.addr import parse_addr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.resolver import SystemResolver

ADDRESS = parse_addr("192.0.2.1")


def finds(name: bytes):
    """What Python makes of a name that the C library has found."""

    def find(*_: object) -> str:
        return name.decode()

    return find


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"n1.example", id="in ASCII"),
        pytest.param("bücher.example".encode(), id="in UTF-8"),
        pytest.param(b"b\xfccher.example", id="in Latin-1, which Python cannot decode"),
    ],
)
def test_a_name_has_a_character_a_byte_whatever_its_encoding(name, monkeypatch):
    monkeypatch.setattr(socket, "gethostbyaddr", lambda _: (finds(name)(), [], []))
    monkeypatch.setattr(socket, "getservbyport", finds(name))
    for found in (SystemResolver().host_name(ADDRESS), SystemResolver().service_name(80, Protocol.TCP)):
        assert len(found) == len(name)
        assert found.encode(errors="surrogateescape") == name


def test_a_host_is_looked_up_by_the_bytes_it_was_given_by(monkeypatch):
    hosts = {b"b\xfccher": "192.0.2.1", "bücher".encode(): "192.0.2.2"}
    monkeypatch.setattr(socket, "gethostbyname", hosts.__getitem__)
    assert SystemResolver().host_address("b\udcfccher") == ADDRESS
    assert SystemResolver().host_address("bücher") == parse_addr("192.0.2.2")
