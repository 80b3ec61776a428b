"""What we believe the kernel has of ours: `applied`. Kernel → mirror happens here, mirror → kernel in applier.py.

The kernel is read at start, by audits, and where the mirror cannot be trusted: an answer was lost, the device changed.
What another run, or kube-proxy, has left under our names is taken over; what is not ours (plan/ownership.py) never
gets in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import KernelError, NotInKernel
from ipvsproxy.kernel.api import Kernel, Subsystem
from ipvsproxy.model.addr import Cidr, PackedAddr
from ipvsproxy.model.enums import VirtualServerFlags
from ipvsproxy.model.kernel_objects import (
    Key,
    Kind,
    ObjectId,
    Settings,
    State,
    VirtualServer,
    VirtualServerKey,
    empty_state,
)
from ipvsproxy.model.observed import SurveyedServer
from ipvsproxy.plan import ownership
from ipvsproxy.plan.desired import Desired
from ipvsproxy.sync.retries import Retries

log = structlog.get_logger()

_TOLD = 5  # examples in a log line
_UNSEEN = VirtualServer("")  # equals nothing that is wanted: whoever wants it asks the kernel again


class Mirror:
    """The applied state, and which parts of it are in doubt."""

    def __init__(self, kernel: Kernel, clock: Clock, exclude: Sequence[Cidr]) -> None:
        self.applied: State = empty_state()
        self.host_addresses: frozenset[PackedAddr] = frozenset()  # tell whose virtual server on a node port is
        self.unread: Retries[frozenset[Kind]] = Retries(clock)  # subsystems that could not be read when they had to be
        self._kernel = kernel
        self._clock = clock
        self._exclude = exclude
        self.foreign: frozenset[Key] = frozenset()  # virtual servers that are somebody else's
        self._marks: dict[frozenset[Kind], bytes] = {}  # fingerprints at the last audit, if we have not written since
        self._found: State = empty_state()  # what stood in the kernel at start, until all wants are known
        self._found_counts = False
        self._stale: set[Kind] = set()
        self._glance: bytes | None = None  # at our rules, if we have not written any since

    def read(self, *, only_what_is_there: bool = False) -> None:
        """Read everything, anew. Raises KernelError; `only_what_is_there`: not for a part that the kernel lacks."""
        self._found = empty_state()
        # IPVS first: asking for its netlink family makes the kernel load the module, and its sysctls come with it.
        for subsystem in reversed(self._kernel.subsystems):
            try:
                self._found.update(subsystem.read())
            except NotInKernel as error:
                if not only_what_is_there:
                    raise
                log.warning("kernel_part_missing", kinds=sorted(subsystem.kinds), reason=str(error))
        self._found_counts = True
        self.applied = ownership.ours(self._found, self._exclude, self.host_addresses)
        self._stale.clear()

    def adopt(self, refs: Iterable[ObjectId]) -> None:
        """Take over what was found at start and is wanted: ours from now on, and not touched where it is right."""
        for kind, key in refs:
            settings = self._found[kind].pop(key, None)
            if settings is not None:
                self.applied[kind].setdefault(key, settings)

    def forget_found(self) -> None:
        """All wants are known: nothing that was found at start can become ours any more."""
        self._note_foreign(self._found)
        self._found_counts = False
        self._found = empty_state()

    def suspect(self, keys: Iterable[VirtualServerKey]) -> None:
        """Traces of these virtual servers go, and none of them was seen: believe them there until they are deleted."""
        for key in keys:
            if not ownership.is_excluded(key, self._exclude):
                self.applied[Kind.VIRTUAL_SERVER].setdefault(key, _UNSEEN)
                self.applied[Kind.REAL_SERVER].setdefault(key, b"")

    def has_seen(self, key: VirtualServerKey) -> bool:
        """Whether a virtual server is there, and not only believed to be until it is deleted."""
        return self.applied[Kind.VIRTUAL_SERVER].get(key, _UNSEEN) != _UNSEEN

    def distrust(self, kinds: Iterable[Kind]) -> None:
        """These kinds may be wrong: the next `reread` reads their subsystem."""
        self._stale.update(kinds)

    @property
    def next_due(self) -> float | None:
        """When to read again what is in doubt (monotonic seconds); None where nothing is."""
        if not self._stale:
            return None
        return self.unread.next_due if len(self.unread) else self._clock.monotonic()

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

    def expect_change(self, kind: Kind) -> None:
        """We write to this kind's subsystem: what it looked like at the last audit is not how it shall look now.

        Or somebody who undoes what we wrote, or repeats the damage that we repaired, would pass for right.
        """
        for kinds in [kinds for kinds in self._marks if kind in kinds]:
            del self._marks[kinds]
        if kind is Kind.RULES:
            self._glance = None

    def glance(self, desired: Desired) -> list[ObjectId]:
        """Look by the cheapest there is whether somebody has touched our rules, and if so, which are not as believed.

        After writing rules ourselves too: what was lost before the first glance would pass for right. A kernel that
        does not answer is a matter of the audits.
        """
        try:
            seen = self._kernel.rules.glance()
        except KernelError:
            return []
        if seen == self._glance:
            return []
        drift = self._reread_one(self._kernel.rules, desired)
        # Seen before the reading: a change in between shows at the next glance, and so does all that was not read.
        self._glance = None if Kind.RULES in self._stale else seen
        return drift

    def audit(self, desired: Desired, *, in_full: bool) -> list[ObjectId]:
        """Look whether the kernel still is as believed; the objects that are not. A quick look unless `in_full`.

        A dump that was cut short or fails changes nothing: what was believed stays, and it is tried again.
        """
        drift: list[ObjectId] = []
        for subsystem in self._kernel.subsystems:
            if in_full or not self._looks_right(subsystem):
                drift += self._reread_one(subsystem, desired)
        return drift

    def _looks_right(self, subsystem: Subsystem) -> bool:
        try:
            if subsystem is self._kernel.ipvs:
                return self._agrees(self._kernel.ipvs.survey())
            mark = subsystem.fingerprint()
        except KernelError:
            return False  # reading in full says what is wrong
        # Taken before the reading that may follow: a change in between shows at the next audit.
        before, self._marks[subsystem.kinds] = self._marks.get(subsystem.kinds), mark
        return before == mark

    def _agrees(self, surveyed: dict[VirtualServerKey, SurveyedServer]) -> bool:
        """Whether our virtual servers and their real servers are as believed and no unknown ones have come."""
        virtual, real = self.applied[Kind.VIRTUAL_SERVER], self.applied[Kind.REAL_SERVER]
        for key, server in surveyed.items():
            settings = virtual.get(key)
            if not isinstance(settings, VirtualServer):
                if key not in self.foreign:
                    return False
                continue
            # Field by field: building what to compare with would cost as much again.
            if (
                server.servers != _bytes(real.get(key))
                or server.scheduler != settings.scheduler
                or server.is_persistent is not (VirtualServerFlags.PERSISTENT in settings.flags)
            ):
                return False
        return virtual.keys() <= surveyed.keys()

    def _reread_one(self, subsystem: Subsystem, desired: Desired) -> list[ObjectId]:
        kinds = subsystem.kinds
        try:
            observed = subsystem.read()
        except KernelError as error:
            self._stale |= kinds
            is_first = self.unread.failed(kinds) == 1
            (log.error if is_first else log.debug)("kernel_not_read", kinds=sorted(kinds), reason=str(error))
            return []
        self.unread.succeeded(kinds)
        self._stale -= kinds
        if self._found_counts:
            self._found.update({kind: dict(observed[kind]) for kind in kinds})
        owned = ownership.ours({**self.applied, **observed}, self._exclude, self.host_addresses)
        # What was ours stays ours: its deletion may have been lost, and with it all else that told whose it is.
        believed = ((kind, key) for kind in kinds for key in self.applied[kind])
        for kind, key in (*desired, *believed):
            if kind in kinds and key in observed[kind]:
                owned[kind].setdefault(key, observed[kind][key])
        if Kind.VIRTUAL_SERVER in kinds:
            self._keep_unseen(owned, desired)
        drift = [ref for kind in kinds for ref in self._replace(kind, owned)]
        self._note_foreign(observed)
        return drift

    def _keep_unseen(self, owned: State, desired: Desired) -> None:
        """What nobody wants is gone when the kernel says so to its deletion, and not when a dump has it no more.

        IPVS does not tell when its table changed under a dump, which then misses entries (kernel/ipvs.py).
        """
        for key in self.applied[Kind.VIRTUAL_SERVER].keys() - owned[Kind.VIRTUAL_SERVER].keys():
            if desired.get((Kind.VIRTUAL_SERVER, key)) is None:
                owned[Kind.VIRTUAL_SERVER][key] = _UNSEEN
                owned[Kind.REAL_SERVER][key] = self.applied[Kind.REAL_SERVER].get(key, b"")

    def _note_foreign(self, observed: State) -> None:
        """Remember, and say when it changes, which virtual servers are somebody else's."""
        if Kind.VIRTUAL_SERVER not in observed:
            return
        owned = self.applied[Kind.VIRTUAL_SERVER]
        foreign = frozenset(key for key in observed[Kind.VIRTUAL_SERVER] if key not in owned)
        if foreign != self.foreign:
            log.info("foreign_virtual_servers", count=len(foreign), some=sorted(map(str, foreign))[:_TOLD])
            self.foreign = foreign

    def _replace(self, kind: Kind, owned: State) -> list[ObjectId]:
        before, now = self.applied[kind], owned[kind]
        self.applied[kind] = now
        return [(kind, key) for key in {**before, **now} if before.get(key) != now.get(key)]


def _bytes(settings: Settings | None) -> bytes:
    return settings if isinstance(settings, bytes) else b""
