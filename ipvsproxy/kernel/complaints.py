"""The reasons of refusals, told once: an operation that is refused is tried again and again, for the same reason.

Who applies operations counts the refusals; only the edge knows the reason in words.
"""

from __future__ import annotations

import structlog

log = structlog.get_logger()


class Complaints:
    """One kind of event. A reason that is new for its object is a warning, its repetition a debug line."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._told: dict[str, str] = {}

    def tell(self, about: str, reason: str, **details: object) -> None:
        """Log `reason` and `details`; `about` names the object."""
        is_known = self._told.get(about) == reason
        self._told[about] = reason
        (log.debug if is_known else log.warning)(self._event, reason=reason, **details)

    def settle(self, about: str) -> None:
        """It works: the next complaint about this object is news again."""
        self._told.pop(about, None)
