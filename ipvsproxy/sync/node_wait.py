"""How long the first plan waits for our Node object, where plans depend on it.

A Node that joins is told without pod networks first, or not at all yet. Planned then, its pods would count as outsiders
for a moment. But who waits for ever serves nothing, so this ends: what the Node says later is put in force then.
Source: kubernetes v1.37.2 pkg/proxy/node.go NewNodeManager.
differs: upstream waits for every mode, up to five minutes for pod networks, and ends the program then; the same when
Node addresses or pod networks change, or the Node is deleted.
"""

from __future__ import annotations

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.node import NodeView
from ipvsproxy.modes.base import Mode

log = structlog.get_logger()

WAIT_S = 30.0


class NodeWait:
    """Begins when it is asked for the first time, and never again once it is over."""

    def __init__(self, mode: Mode, clock: Clock) -> None:
        self._mode = mode
        self._clock = clock
        self._until: float | None = None
        self._is_over = not mode.depends_on_node

    @property
    def next_due(self) -> float | None:
        """When it ends at the latest (monotonic seconds); None before its begin and after its end."""
        return None if self._is_over else self._until

    def is_over(self, node: NodeView) -> bool:
        """Whether plans may be made, given what is known of our Node."""
        if not self._is_over:
            self._look(node)
        return self._is_over

    def _look(self, node: NodeView) -> None:
        now = self._clock.monotonic()
        if self._mode.knows_enough(node):
            self._is_over = True
        elif self._until is None:
            self._until = now + WAIT_S
            log.info("waiting_for_node", node=node.name, at_most_s=WAIT_S)
        elif now >= self._until:
            self._is_over = True
            log.warning(
                "node_not_known",
                node=node.name,
                lacks="addresses" if not node.addresses else "pod networks",
                effect="no pod counts as local and no address as primary, until the Node says so",
                hint="Is there a Node of this name? If not, give --hostname-override",
            )
