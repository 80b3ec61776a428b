"""Ends the UDP flows that a sync has left stale (plan/flows.py): looks for them once it is done, and deletes them.

What to look for comes from what was carried out, not from what changed in the cluster; so a sync that redirects nobody
reads nothing, and one that does reads the table of connection tracking once a family. The first full sync looks for all
frontends: what a killed run has missed is found then.

A frontend stays suspect until its flows were looked at and each deletion was answered. Reading costs what the table is
large (docs/performance.md), so it is not done more often than once a second, however fast endpoints come and go: those
of the meantime share the next look.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import KernelError, describe_errno
from ipvsproxy.kernel.api import Conntrack
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.kernel_objects import Kind, VirtualServerKey
from ipvsproxy.plan.desired import Desired
from ipvsproxy.plan.flows import answerers, frontend
from ipvsproxy.sync.mirror import Mirror
from ipvsproxy.sync.retries import Retries
from ipvsproxy.sync.tally import Tally

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
_TOLD = 5  # examples in a log line


class StaleFlows:
    """Frontends whose clients' flows may be stale. Times are the clock's monotonic seconds."""

    def __init__(self, conntrack: Conntrack, mirror: Mirror, desired: Desired, clock: Clock, tally: Tally) -> None:
        self._conntrack = conntrack
        self._mirror = mirror
        self._desired = desired
        self._clock = clock
        self._tally = tally
        self._suspects: dict[Family, dict[VirtualServerKey, None]] = {family: {} for family in Family}
        self._failing: Retries[Family] = Retries(clock)
        self._not_before = dict.fromkeys(Family, -math.inf)

    def suspect(self, keys: Iterable[VirtualServerKey]) -> None:
        """What the clients of these get may have changed."""
        for key in keys:
            self._suspects[family_of(key.address)][key] = None

    def suspect_all(self) -> None:
        """Nobody knows what was left behind: suspect every UDP frontend that is wanted."""
        wanted = (key for kind, key in self._desired if kind is Kind.VIRTUAL_SERVER)
        self.suspect(key for key in wanted if isinstance(key, VirtualServerKey) and key.protocol is Protocol.UDP)

    @property
    def next_due(self) -> float | None:
        """When to look again; None where nothing is suspect."""
        due = [self._due(family) for family, keys in self._suspects.items() if keys]
        return min(due, default=None)

    def remove(self) -> None:
        """Look for the flows of all that is suspect, as far as it is time, and delete those that are stale."""
        for family, keys in self._suspects.items():
            if keys and self._due(family) <= self._clock.monotonic():
                self._remove(family)

    def _due(self, family: Family) -> float:
        return max(self._not_before[family], self._failing.due_at(family))

    def _remove(self, family: Family) -> None:
        began = self._clock.monotonic()
        self._look(family)
        self._tally.looks.append((family, self._clock.monotonic() - began))

    def _look(self, family: Family) -> None:
        applied, keys = self._mirror.applied[Kind.VIRTUAL_SERVER], self._suspects[family]
        wanted = {
            frontend(key): answerers(key, self._desired.get((Kind.REAL_SERVER, key)), stands=key in applied)
            for key in keys
        }
        self._not_before[family] = self._clock.monotonic() + LOOK_EVERY_S
        try:
            stale = self._conntrack.stale(wanted)
        except KernelError as error:
            self._failed(family, str(error))
            return
        numbers = self._conntrack.delete(stale)
        self._tally.flows_deleted[family] += numbers.count(0)
        refused = set(numbers) - {0, errno.ENOENT}
        if refused:
            self._failed(family, ", ".join(map(describe_errno, sorted(refused))))
            return
        self._failing.succeeded(family)
        keys.clear()
        if stale:
            log.info(
                "stale_flows_removed",
                family=family.label,
                count=numbers.count(0),
                some=[str(flow) for flow in stale[:_TOLD]],
            )

    def _failed(self, family: Family, reason: str) -> None:
        """All of it is tried again: what was deleted already is not found once more."""
        tries = self._failing.failed(family)
        self._tally.flow_failures[family] += 1
        (log.error if tries == 1 else log.debug)(
            "stale_flows_kept",
            family=family.label,
            reason=reason,
            effect="UDP clients may go on sending to endpoints that have left",
            tries=tries,
        )
