"""Where the endpoints of the VM tests are, and what a test of packets is repeated for. Addresses are IPv4, IPv6."""

from __future__ import annotations

import pytest

from tests.lab.traffic import Transport

A1 = ("10.244.1.5", "2001:db8:244:1::5")
A2 = ("10.244.1.6", "2001:db8:244:1::6")
A3 = ("10.244.1.7", "2001:db8:244:1::7")
B1 = ("10.244.2.5", "2001:db8:244:2::5")
BRIDGE = ("10.244.1.254", "2001:db8:244:1:ffff:ffff:ffff:fffe")
"""The node's own address among its pods, which it masquerades with towards them."""

every_family = pytest.mark.parametrize("family", [pytest.param(0, id="IPv4"), pytest.param(1, id="IPv6")])
every_transport = pytest.mark.parametrize(
    "transport", [pytest.param(Transport.TCP, id="TCP"), pytest.param(Transport.UDP, id="UDP")]
)


def ready(*pods: tuple[str, str]) -> tuple[tuple[str, bool], ...]:
    """Endpoints that are ready, as Svc takes them."""
    return tuple((address, True) for pod in pods for address in pod)
