"""Addresses with a port, as Go's net package reads them.

Source: Go 1.26 net.SplitHostPort; kubernetes v1.37.2 pkg/proxy/util AppendPortIfNeeded,
pkg/proxy/apis/config/validation validateHostPort.
"""

from __future__ import annotations

import re

from ipvsproxy.config.check import Check
from ipvsproxy.config.types import Listener
from ipvsproxy.model.addr import family_of, parse_addr
from ipvsproxy.model.enums import Family

_HOST_PORT = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*)):([^:\[\]]*)")
_PORT = re.compile(r"\+?[0-9]{1,5}", re.ASCII)
_PORTS = range(1, 65536)


def with_port(text: str, port: int) -> str:
    """`text` with a port, where it is an address alone; anything else as it is."""
    address = parse_addr(text)
    if address is None:
        return text
    return f"{text}:{port}" if family_of(address) is Family.IPV4 else f"[{text}]:{port}"


def listener(check: Check, field: str, path: str, text: str) -> Listener | None:
    """Where to listen, or None after a refusal."""
    found = _HOST_PORT.fullmatch(text)
    if not found:
        check.refuse(field, path, text, "must be IP:port")
        return None
    host, port = found[1] if found[1] is not None else found[2], found[3]
    address = parse_addr(host)
    if address is None:
        check.refuse(field, path, host, "must be a valid IP")
    if not _PORT.fullmatch(port) or int(port) not in _PORTS:
        check.refuse(field, path, port, "must be a valid port")
        return None
    return None if address is None else Listener(address, int(port))
