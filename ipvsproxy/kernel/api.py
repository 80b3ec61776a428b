"""What the rest of the program may ask of the kernel.

Every subsystem takes a batch of operations of its own kinds and answers with one error number each, in order, 0 for
success: an operation that the kernel refuses never hides the others' results. Numbers are errnos, except ipset's own
from 4096 up. Answers that were lost (ENOBUFS, time-out) are reported as that errno for every operation concerned: the
caller reads again. `read` returns what is there under our names as a part of a `State`; it raises KernelError and never
returns half a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ipvsproxy.model.enums import Family
from ipvsproxy.model.flows import TableUsage, UdpFlow
from ipvsproxy.model.kernel_objects import Kind, Operation, State, VirtualServerKey
from ipvsproxy.model.observed import IpvsTable, ObservedVirtualServer, SurveyedServer
from ipvsproxy.plan.flows import Answerers


class Subsystem(Protocol):
    """One part of the kernel that is programmed by operations."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of objects this subsystem programs."""

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Carry them out in order; one error number each, 0 for success. Raises nothing for a refused operation."""

    def read(self) -> State:
        """What is there now, only this subsystem's kinds. Raises KernelError."""

    def fingerprint(self) -> bytes:
        """A value that is another one after anything of it was changed by anybody; cheaper than `read`.

        Raises KernelError.
        """


class Ipvs(Subsystem, Protocol):
    """Virtual servers and real servers, over generic netlink. `read` leaves firewall-mark services out."""

    def dump(self) -> IpvsTable:
        """Everything, foreign and firewall-mark services included, in kernel order. Raises KernelError."""

    def virtual_servers(self, *, with_statistics: bool = False) -> list[ObservedVirtualServer]:
        """All of them in kernel order, without their real servers: one dump. Raises KernelError."""

    def survey(self) -> dict[VirtualServerKey, SurveyedServer]:
        """What `read` tells, in short and cheap: enough to see whether anything differs. Raises KernelError."""

    def connections(self, keys: Iterable[VirtualServerKey]) -> dict[VirtualServerKey, Mapping[bytes, int]]:
        """How many connections, active and inactive, each real server of these virtual servers has now.

        By identity (model/real_servers.py); a virtual server that is not there has no real servers. Persistence
        templates are no connections. One message a virtual server. Raises KernelError.
        """

    def set_timeouts(self, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:
        """Set connection time-outs in seconds; 0 leaves the kernel's value. Returns the error number."""

    def timeouts(self) -> tuple[int, int, int]:
        """The time-outs in force, in seconds: TCP, TCP after a FIN, UDP. Raises KernelError."""


class Addresses(Subsystem, Protocol):
    """The link kube-ipvs0 (kind LINK: settings "dummy") and the addresses on it (kind ADDRESS).

    The link is made down and left as found after that. Adding ADDRESS without the link answers ENODEV.
    `read` raises KernelError where a link of our name is not a dummy.
    """


class IPSets(Subsystem, Protocol):
    """Our ipsets (kind SET) and their entries. Adding an entry that is there or deleting one that is not succeeds."""


class Rules(Subsystem, Protocol):
    """Our part of the iptables tables (kind RULES).

    ADD and EDIT both make the table's part equal to the layer, in one commit: our chains rewritten, each jump present
    once and first in its built-in chain in the layer's order. DELETE removes jumps and chains. Foreign chains and rules
    are untouched. A busy xtables lock answers EAGAIN at once. `read` returns the layer for a table whose part equals
    what was asked for by its last write, or that parses to the same; anything else that is ours there comes back as a
    different layer.
    """

    @property
    def families(self) -> frozenset[Family]:
        """Families whose iptables tables work on this host."""

    def glance(self) -> bytes:
        """A value that is another one after rules were lost or added, ours or not; cheap enough for every second.

        What puts one rule in the place of another may leave it as it is. Raises KernelError.
        """


class Sysctls(Subsystem, Protocol):
    """Kernel settings (kind SYSCTL: key "net.ipv4.ip_forward", settings the text). `read` returns those that exist."""


class Conntrack(Protocol):
    """Connection tracking's entries of UDP in the zone 0. Packets make them; nobody wants or plans any."""

    def usage(self) -> TableUsage | None:
        """How full the table is; None where the kernel does not say. Raises nothing."""

    def stale(self, answerers: Answerers) -> list[UdpFlow]:
        """The stale flows (plan/flows.py) to these frontends, which are of one family; one of them may come twice.

        One dump, and none where there are no frontends. Raises KernelError.
        """

    def delete(self, flows: Sequence[UdpFlow]) -> list[int]:
        """One error number each; ENOENT where an entry is gone, though a newer one of the same ends may be there."""


class HostFiles(Protocol):
    """Files below /proc and /sys that hold a whole number and are set once, at start. Paths are relative to /."""

    def read(self, path: str) -> int | None:
        """The number; None where there is none to be read."""

    def write(self, path: str, value: int) -> int:
        """Write it; the error number, 0 for success. A file that is not there is not made: ENOENT."""

    def online_cpus(self) -> int:
        """The host's online CPUs, at least 1, whatever share of them a container has."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """All parts together; `daemon.py` picks the real ones, tests the fake."""

    ipvs: Ipvs
    addresses: Addresses
    ipsets: IPSets
    rules: Rules
    sysctls: Sysctls
    conntrack: Conntrack

    @property
    def subsystems(self) -> tuple[Subsystem, ...]:
        """Every subsystem that is programmed, in no meaningful order."""
        return (self.sysctls, self.ipsets, self.rules, self.addresses, self.ipvs)

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out operations of one kind; one error number each."""
        if not operations:
            return []
        kind = operations[0].kind
        return next(s for s in self.subsystems if kind in s.kinds).apply(operations)
