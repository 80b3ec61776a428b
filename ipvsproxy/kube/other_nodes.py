"""The addresses of the Nodes that are not ours, followed only while somebody wants them.

A kubelet writes its Node anew every few minutes though nothing of interest has changed: with 5,000 Nodes that is an
event in each 60 ms. So the addresses are taken out of the object here, in the watch's own thread, and compared with
those told before: what is equal ends here, and wakes nobody. When nobody wants them any more, watch and memory go.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.events import OTHER_NODE, Changed, ClusterEvent, Forgotten, NodeAddresses, Removed
from ipvsproxy.cluster.node import addresses_of
from ipvsproxy.kube.recovery import Timing
from ipvsproxy.kube.resources import other_nodes
from ipvsproxy.kube.watch import Deliver, Server, Watch
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.api_objects import OtherNode


class KnownAddresses:
    """What one watch has told of each Node's addresses: its events come in, news of addresses go out."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[PackedAddr, ...]] = {}

    def hand_on(self, deliver: Deliver, events: Sequence[ClusterEvent]) -> None:
        """Call `deliver` with what is news in `events`, if anything is."""
        news = [told for event in events if (told := self._news(event)) is not None]
        if news:
            deliver(news)

    def _news(self, event: ClusterEvent) -> ClusterEvent | None:
        match event:
            case Changed(ref=ref, object=OtherNode() as node):
                return self._tell(ref.name, addresses_of(node))
            case Removed(ref=ref):
                return self._tell(ref.name, ())
            case _:
                return event

    def _tell(self, name: str, addresses: tuple[PackedAddr, ...]) -> NodeAddresses | None:
        if self._told.get(name, ()) == addresses:
            return None
        if addresses:
            self._told[name] = addresses
        else:
            del self._told[name]
        return NodeAddresses(name, addresses)


class OtherNodesWatch:
    """A watch that comes and goes. `run` belongs to one thread; `follow` and `stop` are for any, and do not wait."""

    def __init__(self, server: Server, own_name: str, clock: Clock, *, timing: Timing = Timing()) -> None:  # noqa: B008 - frozen
        self._server = server
        self._resource = other_nodes(own_name)
        self._clock = clock
        self._timing = timing
        self._changed = threading.Condition()
        self._is_wanted = False
        self._is_stopped = False
        self._watch: Watch | None = None

    def follow(self, *, wanted: bool) -> None:
        """From now on tell of the other Nodes, or end it and tell Forgotten."""
        with self._changed:
            self._is_wanted = wanted
            self._changed.notify()
            if not wanted and self._watch is not None:
                self._watch.stop()

    def stop(self) -> None:
        """Make `run` return, as soon as a watch does."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
            if self._watch is not None:
                self._watch.stop()

    def run(self, deliver: Deliver) -> None:
        """Follow whenever it is wanted, until stopped. Raises what `deliver` raises."""
        while (watch := self._next()) is not None:
            watch.run(partial(KnownAddresses().hand_on, deliver))
            deliver((Forgotten(OTHER_NODE),))

    def _next(self) -> Watch | None:
        """A new watch once it is wanted; None when it is time to end."""
        with self._changed:
            self._watch = None
            self._changed.wait_for(lambda: self._is_wanted or self._is_stopped)
            if not self._is_stopped:
                self._watch = Watch(self._server, self._resource, self._clock, timing=self._timing)
            return self._watch
