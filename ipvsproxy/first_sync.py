"""What a start of the daemon would do to this kernel now: its own first sync, rehearsed on a kernel that is only read.

`diff` prints it and `explain` looks into it. Sync, adoption, ownership and draining are the daemon's own code, so the
two cannot come to disagree. One thing differs: the other Nodes and our own are known beforehand, so nothing waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kernel.rehearsal import Rehearsal
from ipvsproxy.model.addr import Cidr, PackedAddr
from ipvsproxy.model.flows import UdpFlow
from ipvsproxy.model.kernel_objects import Operation, State
from ipvsproxy.modes.base import Mode
from ipvsproxy.plan.desired import Desired
from ipvsproxy.sync.node_wait import WAIT_S
from ipvsproxy.sync.reconciler import Reconciler


@dataclass(frozen=True, slots=True)
class FirstSync:
    """What would be done, in order, to what was observed, and what is wanted.

    `flows`: UDP flows that would be ended. `remaining`: what of the kernel would be ours afterwards. `draining` and
    `foreign`: how many virtual servers drain, or are not ours.
    """

    operations: tuple[Operation, ...]
    flows: tuple[UdpFlow, ...]
    observed: State
    desired: Desired
    remaining: State
    draining: int
    foreign: int

    @property
    def is_needed(self) -> bool:
        """Whether anything would change."""
        return bool(self.operations or self.flows)


def rehearse(
    kernel: Kernel, tracker: Tracker, mode: Mode, host: Collection[PackedAddr], exclude: Sequence[Cidr] = ()
) -> FirstSync:
    """The first sync on `kernel`, which it only reads. `tracker` has been told everything; raises KernelError.

    `host`: the addresses of the node's interfaces but kube-ipvs0.
    """
    rehearsal, clock = Rehearsal(kernel), _HeldClock()
    reconciler = Reconciler(rehearsal.kernel, tracker, mode, clock, exclude=exclude)
    reconciler.host_changed(frozenset(host))
    reconciler.start()
    result = reconciler.sync()
    if not result.is_full:  # our Node is not there: the daemon would plan without it when its time is up
        clock.now += WAIT_S
        result = reconciler.sync()
    while result.waiting and result.operations:
        result = reconciler.sync()
    return FirstSync(
        tuple(rehearsal.operations),
        tuple(rehearsal.flows),
        rehearsal.observed,
        reconciler.desired,
        reconciler.applied,
        result.draining,
        reconciler.figures.foreign,
    )


class _HeldClock:
    """Time that passes when it is told to: a rehearsal waits for nothing."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now
