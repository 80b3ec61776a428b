"""What we believe the kernel has of ours: `applied`. Kernel → mirror happens here, mirror → kernel in applier.py.

The kernel is read at start and where the mirror cannot be trusted: an answer was lost, the device changed under us.
What another run, or kube-proxy, has left under our names is taken over; what is not ours (plan/ownership.py) never
gets in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.api import Kernel, Subsystem
from ipvsproxy.model.addr import Cidr, PackedAddr
from ipvsproxy.model.kernel_objects import Kind, ObjectId, State, empty_state
from ipvsproxy.plan import ownership
from ipvsproxy.plan.desired import Desired
from ipvsproxy.sync.retries import Retries

log = structlog.get_logger()


class Mirror:
    """The applied state, and which parts of it are in doubt."""

    def __init__(self, kernel: Kernel, clock: Clock, exclude: Sequence[Cidr]) -> None:
        self.applied: State = empty_state()
        self.unread: Retries[frozenset[Kind]] = Retries(clock)  # subsystems that could not be read when they had to be
        self._kernel = kernel
        self._exclude = exclude
        self._found: State = empty_state()  # what stood in the kernel at start, until all wants are known
        self._stale: set[Kind] = set()

    def read(self) -> None:
        """Read everything, anew. Raises KernelError."""
        self._found = empty_state()
        # IPVS first: asking for its netlink family makes the kernel load the module, and its sysctls come with it.
        for subsystem in reversed(self._kernel.subsystems):
            self._found.update(subsystem.read())
        self.applied = ownership.ours(self._found, self._exclude)
        self._stale.clear()

    def adopt(self, refs: Iterable[ObjectId]) -> None:
        """Take over what was found at start and is wanted: ours from now on, and not touched where it is right."""
        for kind, key in refs:
            settings = self._found[kind].pop(key, None)
            if settings is not None:
                self.applied[kind].setdefault(key, settings)

    def forget_found(self) -> None:
        """All wants are known: nothing that was found at start can become ours any more."""
        self._found = empty_state()

    def distrust(self, kinds: Iterable[Kind]) -> None:
        """These kinds may be wrong: the next `reread` reads their subsystem."""
        self._stale.update(kinds)

    def lose_address(self, address: PackedAddr) -> bool:
        """The kernel says that an address is gone; whether that is news: what we delete ourselves is gone here too."""
        return self.applied[Kind.ADDRESS].pop(address, None) is not None

    def reread(self, desired: Desired) -> list[ObjectId]:
        """Read what is in doubt; the objects that are other than believed. What cannot be read stays in doubt."""
        drift: list[ObjectId] = []
        for subsystem in self._kernel.subsystems:
            if not self._stale.isdisjoint(subsystem.kinds):
                drift += self._reread_one(subsystem, desired)
        return drift

    def _reread_one(self, subsystem: Subsystem, desired: Desired) -> list[ObjectId]:
        kinds = subsystem.kinds
        try:
            observed = subsystem.read()
        except KernelError as error:
            is_first = self.unread.failed(kinds) == 1
            (log.error if is_first else log.debug)("kernel_not_read", kinds=sorted(kinds), reason=str(error))
            return []
        self.unread.succeeded(kinds)
        self._stale -= kinds
        owned = ownership.ours({**self.applied, **observed}, self._exclude)
        for kind, key in desired:
            if kind in kinds and key in observed[kind]:
                owned[kind].setdefault(key, observed[kind][key])
        return [ref for kind in kinds for ref in self._replace(kind, owned)]

    def _replace(self, kind: Kind, owned: State) -> list[ObjectId]:
        before, now = self.applied[kind], owned[kind]
        self.applied[kind] = now
        return [(kind, key) for key in {**before, **now} if before.get(key) != now.get(key)]
