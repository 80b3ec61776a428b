"""What a load balancer asks at a health check node port."""

from __future__ import annotations

import json

from tests.lab.hosts import Namespace
from tests.lab.traffic import Conversation


def probe(host: Namespace, address: str, port: int, service: str = "web") -> tuple[int, int]:
    """Status and number of local endpoints that a load balancer at `host` is told of this Service. Raises OSError."""
    with Conversation(host, address, port) as talk:
        talk.send(f"GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        head, _, body = b"".join(iter(talk.receive, b"")).partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError("closed without an answer")
    told = json.loads(body)
    assert told["service"] == {"namespace": "default", "name": service}
    return int(head.split()[1]), told["localEndpoints"]


def refusal(host: Namespace, address: str, port: int, service: str = "web") -> type[OSError] | None:
    """How a probe fails; None if it is answered."""
    try:
        probe(host, address, port, service)
    except OSError as error:
        return type(error)
    return None
