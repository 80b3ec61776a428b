"""How the sync thread is doing, family by family: what probes, load balancers and metrics are told.

Time since the last pass says nothing, for an idle cluster needs none. What counts is whether something that was asked
for has waited too long: because the thread is behind, or because its passes leave the family where it was.
Source: kubernetes v1.37.2 pkg/proxy/healthcheck/proxy_health.go.
differs: a family is not healthy before its first full pass, since nothing is served before (K52); a pass that is slow
but goes on does not make us look dead; a pass that most of the family's objects refuse counts as none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ipvsproxy.model.enums import Family


class FamilyVitals(msgspec.Struct, frozen=True):
    """One family. `updated_at`: when a pass last brought it to what was asked, in Unix seconds; None before the first.

    `asked_at`: since when something waits (monotonic seconds), None where nothing does. `is_failing`: the last pass
    left the family where it was.
    """

    updated_at: float | None = None
    asked_at: float | None = None
    is_failing: bool = False


class Vitals(msgspec.Struct, frozen=True):
    """All of it at one moment. `limit_s`: for how long something may wait; `progressed_at`: the last sign of work."""

    families: Mapping[Family, FamilyVitals]
    limit_s: float
    progressed_at: float
    node_is_eligible: bool = False

    def is_healthy(self, family: Family, now: float) -> bool:
        """Whether this family is served as asked for; `now` in monotonic seconds."""
        vitals = self.families[family]
        return vitals.updated_at is not None and not self._is_late(vitals, now)

    def is_alive(self, family: Family, now: float) -> bool:
        """Whether starting anew would not help this family: nothing waits too long, or it is being worked on."""
        vitals = self.families[family]
        return not self._is_late(vitals, now) or not (vitals.is_failing or now - self.progressed_at >= self.limit_s)

    def all_healthy(self, now: float) -> bool:
        """Whether every family is."""
        return all(self.is_healthy(family, now) for family in self.families)

    def _is_late(self, vitals: FamilyVitals, now: float) -> bool:
        return vitals.asked_at is not None and now - vitals.asked_at >= self.limit_s


class Moment(msgspec.Struct, frozen=True):
    """Now, on both clocks: monotonic seconds and Unix seconds."""

    monotonic: float
    unix: float


class Heard(msgspec.Struct, frozen=True):
    """Of one watch of the API server: whether it is connected, and when it last told something (Unix seconds)."""

    is_connected: bool
    at: float | None = None
