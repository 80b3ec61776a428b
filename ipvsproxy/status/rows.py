"""The one table behind every view of ours: a row for each virtual server with its real servers, and who is behind them.

    observed virtual servers, names → rows → those that were selected → table, wide, JSON or YAML

Rows come one by one, in ipvsadm's order, so a view costs the memory of the sorted servers and one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from ipvsproxy.cluster.known import KnownEndpoint
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer
from ipvsproxy.status.names import Names, Owner
from ipvsproxy.status.order import sort_real_servers, sort_virtual_servers

DRAINING = "draining"
UNKNOWN = "unknown"


class RealRow(NamedTuple):
    """A real server. `state`: "draining" at weight 0; else the endpoint's, "unknown" where its Service has none such.

    Empty where nothing tells. `left_s`: for how long it may still drain, where a daemon says so.
    """

    server: ObservedRealServer
    state: str = ""
    endpoint: KnownEndpoint | None = None
    left_s: float | None = None


class VirtualRow(NamedTuple):
    """A virtual server. `is_ours` is None where nobody was asked for names."""

    server: ObservedVirtualServer
    real_rows: tuple[RealRow, ...]
    owner: Owner | None = None
    is_ours: bool | None = None


def rows(
    servers: Iterable[ObservedVirtualServer],
    names: Names | None = None,
    real_servers_of: Callable[[ObservedVirtualServer], Sequence[ObservedRealServer]] = attrgetter("real_servers"),
    is_wanted: Callable[[VirtualRow], bool] = lambda _: True,
) -> Iterator[VirtualRow]:
    """The rows of everything that `is_wanted`, which sees them without real servers; with what `names` knows of them.

    `real_servers_of` is asked for each of these when its turn comes: to the kernel that is a question each.
    """
    for server in sort_virtual_servers(tuple(servers)):
        row = VirtualRow(server, (), names.owner(server), names.is_ours(server)) if names else VirtualRow(server, ())
        if is_wanted(row):
            endpoints = names.endpoints(server) if names else None
            real_servers = sort_real_servers(real_servers_of(server))
            yield row._replace(real_rows=tuple(_real_row(server, real, names, endpoints) for real in real_servers))


def _real_row(
    server: ObservedVirtualServer,
    real: ObservedRealServer,
    names: Names | None,
    endpoints: Mapping[PackedAddr, KnownEndpoint] | None,
) -> RealRow:
    endpoint = endpoints.get(real.address) if endpoints else None
    if real.weight == 0:
        return RealRow(real, DRAINING, endpoint, names.left_s(server, real) if names else None)
    state = endpoint.state if endpoint else "" if endpoints is None else UNKNOWN
    return RealRow(real, state, endpoint)
