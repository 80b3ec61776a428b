"""Which node this is. Source: kubernetes v1.37.2 pkg/util/node GetHostname."""

from __future__ import annotations

import socket

from ipvsproxy.config.types import ProxyConfig
from ipvsproxy.errors import ConfigError


def node_name(config: ProxyConfig) -> str:
    """The name of our Node object: --hostname-override, or the host's own name in lower case. Raises ConfigError."""
    name = config.hostname_override or socket.gethostname().strip().lower()
    if not name:
        raise ConfigError("node name", "the host has no name", "Give --hostname-override")
    return name
