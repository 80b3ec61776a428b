"""Where to listen for which Service, and what a new snapshot changes in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ipvsproxy.cluster.health_check import HealthCheck, HealthSnapshot
from ipvsproxy.model.addr import PackedAddr, family_of, format_endpoint
from ipvsproxy.model.names import ServiceName


class Place(NamedTuple):
    """An address and port that one Service is asked about at; prints as `namespace/name at address:port`."""

    service: ServiceName
    address: PackedAddr
    port: int

    def __str__(self) -> str:
        return f"{self.service} at {format_endpoint(self.address, self.port)}"


def moved(before: HealthSnapshot, after: HealthSnapshot) -> tuple[set[Place], set[Place]]:
    """The places that are no more, and those that are new; looks into the Services that changed alone."""
    if before.addresses == after.addresses:
        names = [name for name, check in after.checks.items() if before.checks.get(name) is not check]
        names += before.checks.keys() - after.checks.keys()
    else:
        names = [*dict.fromkeys((*before.checks, *after.checks))]
    old = {place for name in names for place in _places(name, before)}
    new = {place for name in names for place in _places(name, after)}
    return old - new, new - old


def _places(name: ServiceName, snapshot: HealthSnapshot) -> Iterator[Place]:
    check: HealthCheck | None = snapshot.checks.get(name)
    if check is not None:
        for address in snapshot.addresses:
            if family_of(address) in check.local_endpoints:
                yield Place(name, address, check.port)
