"""A kernel that is read and not written: what a sync would do to it is noted instead, as if all of it had succeeded.

Whoever works on it behaves as on the real one, so `diff` needs no second opinion of what a sync does: it runs one.
Whatever is asked goes to the real kernel, whose state so shows everything but what was noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ipvsproxy.kernel.api import Conntrack, Ipvs, Kernel, Rules, Subsystem
from ipvsproxy.model.enums import Family
from ipvsproxy.model.flows import TableUsage, UdpFlow
from ipvsproxy.model.kernel_objects import Kind, Operation, State, VirtualServerKey, empty_state
from ipvsproxy.model.observed import IpvsTable, ObservedVirtualServer, SurveyedServer
from ipvsproxy.plan.flows import Answerers


class Rehearsal:
    """`kernel` reads the given one; `operations` and `flows` would have changed it, in this order.

    `observed` is what was read last of each kind.
    """

    def __init__(self, real: Kernel) -> None:
        self.operations: list[Operation] = []
        self.flows: list[UdpFlow] = []
        self.observed: State = empty_state()
        self.kernel = Kernel(
            ipvs=_Ipvs(self, real.ipvs),
            addresses=_Part(self, real.addresses),
            ipsets=_Part(self, real.ipsets),
            rules=_Rules(self, real.rules),
            sysctls=_Part(self, real.sysctls),
            conntrack=_Conntrack(self, real.conntrack),
        )


class _Part:
    def __init__(self, rehearsal: Rehearsal, real: Subsystem) -> None:
        self._rehearsal = rehearsal
        self._real = real

    @property
    def kinds(self) -> frozenset[Kind]:
        return self._real.kinds

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        self._rehearsal.operations.extend(operations)
        return [0] * len(operations)

    def read(self) -> State:
        found = self._real.read()
        self._rehearsal.observed.update({kind: dict(objects) for kind, objects in found.items()})
        return found

    def fingerprint(self) -> bytes:
        return self._real.fingerprint()


class _Ipvs(_Part):
    _real: Ipvs

    def __init__(self, rehearsal: Rehearsal, real: Ipvs) -> None:
        super().__init__(rehearsal, real)

    def dump(self) -> IpvsTable:
        return self._real.dump()

    def virtual_servers(self, *, with_statistics: bool = False) -> list[ObservedVirtualServer]:
        return self._real.virtual_servers(with_statistics=with_statistics)

    def survey(self) -> dict[VirtualServerKey, SurveyedServer]:
        return self._real.survey()

    def connections(self, keys: Iterable[VirtualServerKey]) -> dict[VirtualServerKey, Mapping[bytes, int]]:
        return self._real.connections(keys)

    def set_timeouts(self, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:  # noqa: ARG002  # they are no objects
        return 0

    def timeouts(self) -> tuple[int, int, int]:
        return self._real.timeouts()


class _Rules(_Part):
    _real: Rules

    def __init__(self, rehearsal: Rehearsal, real: Rules) -> None:
        super().__init__(rehearsal, real)

    @property
    def families(self) -> frozenset[Family]:
        return self._real.families

    def glance(self) -> bytes:
        return self._real.glance()


class _Conntrack:
    def __init__(self, rehearsal: Rehearsal, real: Conntrack) -> None:
        self._rehearsal = rehearsal
        self._real = real

    def usage(self) -> TableUsage | None:
        return self._real.usage()

    def stale(self, answerers: Answerers) -> list[UdpFlow]:
        return self._real.stale(answerers)

    def delete(self, flows: Sequence[UdpFlow]) -> list[int]:
        self._rehearsal.flows.extend(flows)
        return [0] * len(flows)
