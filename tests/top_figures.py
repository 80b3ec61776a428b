"""Figures of a few virtual servers, as two looks two seconds apart would give them: for tests, and for the README."""

from __future__ import annotations

from ipvsproxy.model.figures import Undone
from ipvsproxy.model.flows import TableUsage, TrackingErrors
from ipvsproxy.model.observed import Statistics
from ipvsproxy.top.figures import Sample, ServerSample, figures

_NAMES = ("10.102.199.132:80/TCP", "10.96.0.10:53/UDP", "[2001:db8:96::20]:443/TCP", "192.0.2.11:30080/TCP")
_SERVICES = ("shop/web:http", "kube-system/dns:53", "shop/cart:https")  # the last one is not ours


def _counted(connections: int, packets: int, count: int) -> Statistics:
    return Statistics(connections, packets, packets, count, 3 * count)


BEFORE = Sample(
    10.0, tuple(ServerSample(name, Statistics()) for name in _NAMES), TableUsage(12011, 262144), TrackingErrors(3, 0)
)
NOW = Sample(
    12.0,
    (
        ServerSample(_NAMES[0], _counted(84, 12000, 8_400_000), 3, 2, 1, 120, 33, _SERVICES[0]),
        ServerSample(_NAMES[1], _counted(4000, 8000, 640_000), 2, 2, 0, 0, 801, _SERVICES[1]),
        ServerSample(_NAMES[2], _counted(1, 20, 9000), 1, 1, 0, 1, 0, _SERVICES[2]),
        ServerSample(_NAMES[3], Statistics()),
    ),
    TableUsage(12034, 262144),
    TrackingErrors(3, 0),
    Undone(),
)
FIGURES = figures(NOW, BEFORE)
