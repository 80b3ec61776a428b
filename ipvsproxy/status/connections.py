"""Connections as `ipvsadm -L -c` lists them, from the lines of /proc/net/ip_vs_conn in their order.

    Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
    TCP 0A02020A D3A2 0A600014 0050 0AF40105 1F90 ESTABLISHED     899

Addresses are eight hexadecimal digits or IPv6 text, ports four digits, the rest as it is printed; the last two columns
are there for a persistence engine's entries only. Source: ipvsadm 1.31, ipvsadm.c list_conn, print_conn;
net/netfilter/ipvs/ip_vs_conn.c.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

from ipvsproxy.model.enums import Protocol
from ipvsproxy.status.endpoints import Endpoint

_PROTOCOLS: dict[str, int] = {protocol.name: protocol for protocol in Protocol}
_ENGINE_WORDS = 11


def connection_lines(rows: Iterable[str], endpoint: Endpoint, *, with_engines: bool) -> Iterator[str]:
    """The list of the rows below the file's title line, one by one: there may be millions."""
    yield "IPVS connection entries"
    engine_titles = f"{'destination':<18} {'pe name':<16} pe_data" if with_engines else "destination"
    yield f"pro expire {'state':<11} {'source':<18} {'virtual':<18} {engine_titles}"
    for row in rows:
        yield _connection_line(row.split(), endpoint, with_engines=with_engines)


def _connection_line(words: list[str], endpoint: Endpoint, *, with_engines: bool) -> str:
    protocol, state, seconds = words[0], words[7], int(words[8])
    number = _PROTOCOLS.get(protocol, 0)
    client, virtual, destination = (endpoint(_address(words[at]), int(words[at + 1], 16), number) for at in (1, 3, 5))
    expiry = f"{seconds // 60:02}:{seconds % 60:02}"
    start = f"{protocol:<3} {expiry:<6} {state:<11} {client:<18} {virtual:<18}"
    if with_engines and len(words) >= _ENGINE_WORDS:
        # The columns of name and data have each other's width, in ipvsadm too.
        return f"{start} {destination:<16} {words[9]:<18} {words[10]}"
    return f"{start} {destination}"


def _address(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text) if ":" in text else bytes.fromhex(text)
