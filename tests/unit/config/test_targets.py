"""What `explain` may be asked about, and as whom."""

from __future__ import annotations

import pytest

from ipvsproxy.config.targets import Client, FrontendTarget, parse_client, parse_target
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.names import ServiceName
from tests.builders import addr


@pytest.mark.parametrize(
    "text,target",
    [
        pytest.param("shop/web", ServiceName("shop", "web"), id="a Service"),
        pytest.param("10.96.0.20:80", FrontendTarget(addr("10.96.0.20"), 80), id="an address"),
        pytest.param("10.96.0.20:53/udp", FrontendTarget(addr("10.96.0.20"), 53, Protocol.UDP), id="a protocol"),
        pytest.param("[2001:db8::20]:80", FrontendTarget(addr("2001:db8::20"), 80), id="IPv6"),
    ],
)
def test_a_target_is(text, target):
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["web", "10.96.0.20", "10.96.0.20:0", "10.96.0.20:70000", "10.96.0.20:80/icmp", "a/b/c", "/web", "1.2.3:80"]
)
def test_a_target_is_not(text):
    with pytest.raises(ConfigError, match="explain"):
        parse_target(text)


@pytest.mark.parametrize(
    "text,client",
    [
        pytest.param("node", Client(None), id="the node"),
        pytest.param("10.0.0.1", Client(addr("10.0.0.1")), id="an address"),
        pytest.param("10.0.0.1%cni0", Client(addr("10.0.0.1"), "cni0"), id="an address and an interface"),
    ],
)
def test_a_client_is(text, client):
    assert parse_client(text) == client


@pytest.mark.parametrize("text", ["", "nobody", "10.0.0.1%", "10.0.0.0/8"])
def test_a_client_is_not(text):
    with pytest.raises(ValueError, match="address"):
        parse_client(text)
