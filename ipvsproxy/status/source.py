"""Where a listing's entries come from: the kernel (kernel/ipvs.py), or a table that a file told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Interface

import msgspec

from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import (
    IpvsTable,
    ObservedRealServer,
    ObservedVirtualServer,
    ServiceName,
    SyncDaemon,
)


class Source(Interface):
    """What listings ask for. Real servers come one virtual server at a time, so that a large table is never held."""

    def info(self) -> tuple[int, int]:
        """The version word (0x010201) and the size of the connection table."""

    def virtual_servers(self, *, with_statistics: bool = False) -> Sequence[ObservedVirtualServer]:
        """All of them, in kernel order."""

    def find(self, name: ServiceName, *, with_statistics: bool = False) -> ObservedVirtualServer | None:
        """One of them."""

    def real_servers(
        self, server: ObservedVirtualServer, *, with_statistics: bool = False
    ) -> Sequence[ObservedRealServer]:
        """Those of one virtual server, in kernel order."""

    def timeouts(self) -> tuple[int, int, int]:
        """Of connections, in seconds: TCP, TCP after a FIN, UDP."""

    def sync_daemons(self) -> Sequence[SyncDaemon]:
        """Those that run."""


class TableSource(msgspec.Struct, frozen=True):
    """A table that is there as a whole. Time-outs, daemons and connections are no part of one."""

    table: IpvsTable

    def info(self) -> tuple[int, int]:
        """As the table has it."""
        return self.table.version, self.table.conn_tab_size

    def virtual_servers(self, *, with_statistics: bool = False) -> Sequence[ObservedVirtualServer]:  # noqa: ARG002
        """All of them."""
        return self.table.virtual_servers

    def find(self, name: ServiceName, *, with_statistics: bool = False) -> ObservedVirtualServer | None:  # noqa: ARG002
        """The first that has this name."""
        return next((server for server in self.table.virtual_servers if name_of(server) == name), None)

    def real_servers(
        self,
        server: ObservedVirtualServer,
        *,
        with_statistics: bool = False,  # noqa: ARG002
    ) -> Sequence[ObservedRealServer]:
        """Those that it has."""
        return server.real_servers

    def timeouts(self) -> tuple[int, int, int]:
        """Raises IpvsproxyError: nothing tells them."""
        raise not_told("the time-outs")

    def sync_daemons(self) -> Sequence[SyncDaemon]:
        """Raises IpvsproxyError: nothing tells them."""
        raise not_told("the sync daemons")


def name_of(server: ObservedVirtualServer) -> ServiceName:
    """What names it: for a firewall mark the mark and the family alone."""
    if server.fwmark:
        return mark_name(server.fwmark, server.family)
    return ServiceName(server.family, server.protocol, server.address, server.port)


def mark_name(fwmark: int, family: Family) -> ServiceName:
    """The name of a firewall mark's virtual server."""
    return ServiceName(family, 0, PackedAddr(bytes(family.host_prefix_len // 8)), 0, fwmark)


def not_told(what: str) -> IpvsproxyError:
    """The answer to a question that a file has no answer to."""
    return IpvsproxyError(f"cannot show {what}", "the file does not tell them", "Leave --from out to ask the kernel")
