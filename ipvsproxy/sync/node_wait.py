"""How long the first plan waits for our Node object.

Planned without it, the node's own entry in source ranges would go and topology hints count for nothing, for a moment
after each start (K14, K36): Services and endpoints come by other watches, which may be faster. That there is no such
Node, or that we may not ask, is an answer, too. Where pods are told by its networks, or node ports served at its
addresses, the wait is for these: a Node that joins is told without, or not at all yet, and its pods would count as
outsiders. But who waits for ever serves nothing, so it ends: what the Node says later is put in force then.
Source: kubernetes v1.37.2 pkg/proxy/node.go NewNodeManager.
differs: upstream waits up to 30 s for addresses in every mode, up to five minutes for pod networks, and ends the
program then; the same when Node addresses or pod networks change, or the Node is deleted.
"""

from __future__ import annotations

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.modes.base import Mode

log = structlog.get_logger()

WAIT_S = 30.0


class NodeWait:
    """Begins when it is asked for the first time, and never again once it is over."""

    def __init__(self, mode: Mode, clock: Clock) -> None:
        self._mode = mode
        self._clock = clock
        self._until: float | None = None
        self._is_over = False

    @property
    def next_due(self) -> float | None:
        """When it ends at the latest (monotonic seconds); None before its begin and after its end."""
        return None if self._is_over else self._until

    def is_over(self, tracker: Tracker) -> bool:
        """Whether plans may be made, given what is known of our Node."""
        if not self._is_over:
            self._look(tracker)
        return self._is_over

    def _look(self, tracker: Tracker) -> None:
        now = self._clock.monotonic()
        lacks = self._mode.lacks(tracker.node) if tracker.has_heard_of_node else "any word of it"
        if not lacks:
            self._is_over = True
        elif self._until is None:
            self._until = now + WAIT_S
            log.info("waiting_for_node", node=tracker.node.name, lacks=lacks, at_most_s=WAIT_S)
        elif now >= self._until:
            self._is_over = True
            log.warning(
                "node_not_known",
                node=tracker.node.name,
                lacks=lacks,
                effect="what depends on it waits: no pod is local by it, no address primary, no zone preferred",
                hint="Is there a Node of this name, and may it be read? If not, give --hostname-override",
            )
