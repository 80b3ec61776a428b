"""What the cluster has told since the last pass, counted, and how long ago it was.

Two clocks: our own tells when news arrived here; the cluster's, in an annotation of the EndpointSlice, when the change
was made that it tells of. Those of before we started say how long we were away, not how fast we are.
Source: kubernetes v1.37.2 pkg/proxy/endpointschangetracker.go (lastChangeTriggerTimes).
differs: a slice that is removed takes along its own times alone, not those of all slices of its Service.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from ipvsproxy.cluster.events import Changed, ClusterEvent, ObjectRef, Removed
from ipvsproxy.model.api_objects import EndpointSlice
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Asked

_OF_OBJECTS = (Changed, Removed)  # a union would be made anew for each event
_FAMILIES = {family.label: family for family in Family}


class News:
    """Counts and times. `started_at`: Unix seconds. Owned by the sync thread; `asked` is for any."""

    def __init__(self, started_at: float) -> None:
        self.asked = Asked()
        self._started_at = started_at
        self._arrivals: list[float] = []
        self._made: dict[ObjectRef, list[tuple[Family, float]]] = {}

    def note(self, events: tuple[ClusterEvent, ...]) -> None:
        """Count them."""
        services = slices = 0
        for event in events:
            if isinstance(event, _OF_OBJECTS):
                services += event.ref.kind == "Service"
                slices += event.ref.kind == "EndpointSlice"
                self._note_time(event)
        asked = self.asked
        self.asked = Asked(
            asked.services + services,
            asked.slices + slices,
            asked.services_pending + services,
            asked.slices_pending + slices,
            asked.at,
        )

    def ask(self, arrived_at: float, now: float) -> None:
        """What was noted last asks for a sync; it arrived at `arrived_at` (monotonic), now is in Unix seconds."""
        self._arrivals.append(arrived_at)
        self.asked = msgspec.structs.replace(self.asked, at=now)

    def take_latencies(self, now: float) -> tuple[float, ...]:
        """How long ago what has asked since the last call came; `now` in monotonic seconds. Nothing is pending then."""
        taken, self._arrivals = tuple(now - arrived_at for arrived_at in self._arrivals), []
        asked = self.asked
        self.asked = Asked(asked.services, asked.slices, at=asked.at)
        return taken

    def take_programming(self, now: float) -> tuple[tuple[Family, float], ...]:
        """How long ago what was told since the last call was done, as far as that is known; `now` in Unix seconds."""
        if not self._made:
            return ()
        taken, self._made = self._made, {}
        return tuple((family, now - at) for times in taken.values() for family, at in times)

    def _note_time(self, event: Changed | Removed) -> None:
        if isinstance(event, Removed):
            self._made.pop(event.ref, None)
        elif isinstance(event.object, EndpointSlice):
            annotations = event.object.metadata.annotations
            family = _FAMILIES.get(event.object.address_type)
            at = _unix_time(annotations.last_change) if annotations and annotations.last_change else None
            if family is not None and at is not None and at > self._started_at:
                self._made.setdefault(event.ref, []).append((family, at))


def _unix_time(text: str) -> float | None:
    """RFC 3339 as Unix seconds; None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()
