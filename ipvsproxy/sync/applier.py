"""Wanted minus applied, sent in order, with what each answer means. Mirror → kernel.

The mirror learns what the kernel has acknowledged and nothing else, so whatever was refused stays a difference. A
refused object waits for its retry; what may not be sent before it (plan/order.py) waits with it; all else goes on.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterable, Sequence

import msgspec
import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.errors import describe_errno
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.model.addr import PackedAddr, family_of, format_host_prefix
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    Operation,
    SetEntry,
    Verb,
    VirtualServerKey,
    format_key,
)
from ipvsproxy.model.real_servers import describe, drained
from ipvsproxy.modes.base import Mode
from ipvsproxy.plan.desired import FIXED
from ipvsproxy.plan.diff import acknowledge, diff
from ipvsproxy.plan.flows import redirected
from ipvsproxy.plan.masquerading import Failing, relies_on_closing, unmasks
from ipvsproxy.plan.order import (
    accepted_by,
    is_open,
    leaves,
    must_be_gone,
    must_stand,
    ordered,
    serving,
    still_guards,
    still_opens,
)
from ipvsproxy.plan.ownership import tells, told_by
from ipvsproxy.plan.snat import EXCEPTIONS
from ipvsproxy.sync.lingering import Lingering
from ipvsproxy.sync.mirror import Mirror
from ipvsproxy.sync.outcomes import Outcome, hint, judge
from ipvsproxy.sync.retries import Retries
from ipvsproxy.sync.tally import Tally

log = structlog.get_logger()


class Applier:
    """Carries differences out, and knows which objects are refused or wait."""

    def __init__(self, kernel: Kernel, mirror: Mirror, wanted: Lingering, mode: Mode, clock: Clock) -> None:
        """`wanted`: what is wanted for now, which is more than what is desired while something lingers."""
        self.refused: Retries[ObjectId] = Retries(clock)
        self.waiting: dict[ObjectId, None] = {}
        self.carried_out = 0
        self.progressed_at = clock.monotonic()  # when the kernel last answered
        self.redirected: dict[VirtualServerKey, None] = {}  # for sync/flows.py, which empties it
        self.may_delete = False  # not before all wants are known: what seems unwanted may only not have been told yet
        self._clock = clock
        self.tally = Tally()
        self._kernel = kernel
        self._mirror = mirror
        self._wanted = wanted
        self._guard_sets = mode.guard_sets
        self._refused_now: set[ObjectId] = set()
        self._has_eased = False  # something that others may wait for has been taken, or has left, since they were tried

    @property
    def next_due(self) -> float | None:
        """When `due` has something (monotonic seconds); None where nothing fails."""
        return self._clock.monotonic() if self.waiting and self._has_eased else self.refused.next_due

    def apply(self, refs: Iterable[ObjectId]) -> None:
        """Make the kernel's objects `refs` what is wanted."""
        refs = dict.fromkeys(refs)
        failed = [ref for ref in refs if self._fails(ref)]
        for ref in refs:
            self.waiting.pop(ref, None)
        self._refused_now = set()
        operations = diff(refs, self._wanted.get, self._mirror.applied)
        if self.may_delete:
            operations += diff(self._unseen(refs, operations), self._wanted.get, self._mirror.applied)
        else:
            operations = [operation for operation in operations if operation.verb is not Verb.DELETE]
        for phase in ordered(operations, self._mirror.applied, self._is_bound, self._wanted.host.addresses):
            self._quiesce(phase)
            self._send(phase)
            self._close(phase)
        for ref in refs:
            if ref in self.refused and ref not in self._refused_now and ref not in self.waiting:
                tries = self.refused.succeeded(ref)
                log.info("operation_recovered", object=f"{ref[0]} {format_key(*ref)}", tries=tries)
        self._has_eased |= not all(map(self._fails, failed))

    def due(self) -> list[ObjectId]:
        """What is to be tried again now, with all that waits for something."""
        self._has_eased = False
        return [*self.refused.due(), *self.waiting]

    def _send(self, phase: Sequence[Operation]) -> None:
        """One phase: what may go goes in one batch; what exists or is gone already follows once as the other verb."""
        # One answer for all real servers of a virtual server.
        left_over = self._refused_to_go() if phase[0].verb is Verb.DELETE and self.refused else ()
        ready = {
            key: self._may_go(operation, left_over) for key, operation in {each.key: each for each in phase}.items()
        }
        if phase[0].kind is Kind.ADDRESS and phase[0].verb is Verb.ADD:
            for address in self._shown_ports():
                if address in ready:
                    ready[address] = False
                    self._hold((Kind.ADDRESS, address))
        again = self._send_batch([operation for operation in phase if ready[operation.key]])
        for operation in self._send_batch(again):
            self._refuse(operation, errno.EAGAIN)

    def _unseen(self, refs: Iterable[ObjectId], operations: Iterable[Operation]) -> list[ObjectId]:
        """Virtual servers that we do not see, and that a plan gave up or whose traces go: a dump may have missed them.

        They go too, or would count as somebody else's for good; where they are not there, that is no harm.
        """
        traces = (op.key for op in operations if op.verb is Verb.DELETE and isinstance(op.key, SetEntry))
        told = (key for entry in traces for key in told_by(entry, self._wanted.host.node_port_addresses))
        given_up = (key for kind, key in refs if kind is Kind.VIRTUAL_SERVER and isinstance(key, VirtualServerKey))
        keys = {
            key
            for key in (*told, *given_up)
            if key not in self._mirror.applied[Kind.VIRTUAL_SERVER]
            if self._wanted.get((Kind.VIRTUAL_SERVER, key)) is None
        }
        self._mirror.suspect(keys)
        return [(Kind.VIRTUAL_SERVER, key) for key in sorted(keys)]

    def _shown_ports(self) -> set[PackedAddr]:
        """The addresses where a port is let through without a virtual server, since something there is refused.

        An interface had them: bound, they would show the host's own port (K31).
        """
        keys = {
            accepted_by(key) if isinstance(key, SetEntry) else key
            for kind, key in (*self.refused, *self.waiting)
            if kind in {Kind.VIRTUAL_SERVER, Kind.ACCEPT_ENTRY}
        }
        return {
            key.address
            for key in keys
            if isinstance(key, VirtualServerKey) and not self._mirror.has_seen(key)
            if is_open(key, self._mirror.applied)
        }

    def _quiesce(self, phase: Sequence[Operation]) -> None:
        """Where this phase opens an address, for an interface has it, let no client in who would come unmasqueraded.

        Why what would masquerade him is not there does not matter: after a restart nothing is known to be refused.
        """
        if phase[0].kind is not Kind.BOUND_ENTRY or phase[0].verb is not Verb.DELETE:
            return
        closed = {operation.key.address for operation in phase if isinstance(operation.key, SetEntry)}
        opened = closed & self._wanted.host.addresses
        if not opened:
            return
        failing = self._failing()
        for key, settings in [*self._mirror.applied[Kind.REAL_SERVER].items()]:
            if not isinstance(key, VirtualServerKey) or key.address not in opened:
                continue
            if serving(key, settings) and relies_on_closing(key, failing):
                self._take_weight_away(key)

    def _close(self, phase: Sequence[Operation]) -> None:
        """Where an entry that closes something was refused in this phase, take back what it leaves open."""
        kind, verb = phase[0].kind, phase[0].verb
        if kind is Kind.BOUND_ENTRY and verb is Verb.ADD:
            if left_open := self._left_open(phase):
                self._unbind(left_open)
        elif kind is Kind.GUARD_ENTRY and verb is Verb.ADD:
            for key in self._unguarded(phase):
                self._take_weight_away(key)

    def _left_open(self, phase: Sequence[Operation]) -> list[PackedAddr]:
        """The bound addresses of these closing entries that do not stand now."""
        applied = self._mirror.applied
        return [
            PackedAddr(entry.address)
            for operation in phase
            if isinstance(entry := operation.key, SetEntry) and entry not in applied[Kind.BOUND_ENTRY]
            if entry.address in applied[Kind.ADDRESS]
        ]

    def _unbind(self, addresses: Sequence[PackedAddr]) -> None:
        """Take addresses off until their other ports can be closed: the host's own would show there (K31).

        It is not for lack of a wish, so `may_delete` does not matter. Bound again as soon as the entry is taken.
        """
        self._send([Operation(Verb.DELETE, Kind.ADDRESS, address) for address in addresses])
        for address in addresses:
            self.waiting[Kind.ADDRESS, address] = None
            log.warning(
                "address_unbound",
                vip=format_host_prefix(address),
                reason="its entry in KUBE-IPVS-IPS is refused, without which its other ports are open",
                effect="its Services are not served here until the entry is taken",
            )

    def _unguarded(self, phase: Sequence[Operation]) -> list[VirtualServerKey]:
        """The virtual servers that serve and are guarded by those of these entries that do not stand now."""
        applied = self._mirror.applied
        return [
            key
            for operation in phase
            if isinstance(entry := operation.key, SetEntry) and entry not in applied[Kind.GUARD_ENTRY]
            if serving(key := accepted_by(entry), applied[Kind.REAL_SERVER].get(key))
        ]

    def _take_weight_away(self, key: VirtualServerKey) -> None:
        """Let nobody new in until what is refused is there; who is connected stays. Weights come back with it."""
        records = sorted(serving(key, self._mirror.applied[Kind.REAL_SERVER][key]))
        self._send([Operation(Verb.EDIT, Kind.REAL_SERVER, key, drained(record)) for record in records])
        self.waiting[Kind.REAL_SERVER, key] = None
        log.warning(
            "virtual_server_closed",
            virtual_server=str(key),
            reason="what the kernel refuses would keep clients out of it, or have them masqueraded",
            effect="it serves no new client until that is taken",
        )

    def _send_batch(self, operations: Sequence[Operation]) -> list[Operation]:
        """Send, and act on each answer; the operations that must follow as the other verb."""
        if not operations:
            return []
        done: list[Operation] = []
        again: list[Operation] = []
        self._mirror.expect_change(operations[0].kind)
        numbers = self._kernel.apply(operations)
        self.progressed_at = self._clock.monotonic()
        for operation, number in zip(operations, numbers, strict=True):
            match judge(operation, number):
                case Outcome.DONE:
                    done.append(operation)
                case Outcome.EDIT_INSTEAD:
                    # It came from elsewhere, so what else of it stands there is not known.
                    self._mirror.distrust((operation.kind,))
                    again.append(msgspec.structs.replace(operation, verb=Verb.EDIT))
                case Outcome.ADD_INSTEAD:
                    # A virtual server that has gone took its real servers along: they are due at once.
                    self._mirror.distrust((operation.kind,))
                    self.waiting[Kind.REAL_SERVER, operation.key] = None
                    again.append(msgspec.structs.replace(operation, verb=Verb.ADD))
                case Outcome.UNKNOWN:
                    self._mirror.distrust((operation.kind,))
                    self._note_redirected([operation])  # if it was carried out, reading again leaves nothing to do
                    self._refuse(operation, number)
                case Outcome.REFUSED:
                    self._refuse(operation, number)
        acknowledge(self._mirror.applied, done)
        # Entries may wait for a real server to leave (plan/masquerading.py), in the very sync in which it does.
        self._has_eased |= operations[0].kind is Kind.REAL_SERVER and any(map(leaves, done))
        self._note_redirected(done)
        self.carried_out += len(done)
        self.tally.batches.append(len(operations))
        self.tally.count(done, is_done=True)
        if log.is_enabled_for(logging.DEBUG):
            for operation in done:
                log.debug("operation_applied", operation=describe(operation))
        return again

    def _note_redirected(self, operations: Iterable[Operation]) -> None:
        self.redirected.update(dict.fromkeys(redirected(operations)))

    def _may_go(self, operation: Operation, left_over: Collection[VirtualServerKey]) -> bool:
        """Whether it may be sent now, else it waits. `left_over`: what is refused to go, and must be known as ours."""
        applied = self._mirror.applied
        if operation.verb is Verb.DELETE:
            stays_for = must_be_gone(operation, self._is_bound)
            ready = (
                not any(key in applied[kind] for kind, key in stays_for)
                and not still_guards(operation, self._wanted.get, applied)
                and not still_opens(operation, self._wanted.get, applied)
                and not (left_over and self._tells(operation, left_over))
            )
        else:
            ready = all(map(self._stands, must_stand(operation, self._is_bound, self._guards)))
        if not ready or self._unmasks(operation):
            self._hold((operation.kind, operation.key))
            return False
        return True

    def _hold(self, ref: ObjectId) -> None:
        self.waiting[ref] = None
        self.refused.hold(ref)

    def _refused_to_go(self) -> frozenset[VirtualServerKey]:
        """The virtual servers on addresses not on kube-ipvs0 that nobody wants and the kernel does not let go."""
        return frozenset(
            key
            for kind, key in self.refused
            if kind is Kind.VIRTUAL_SERVER and isinstance(key, VirtualServerKey)
            if key in self._mirror.applied[kind] and self._wanted.get((kind, key)) is None
            if not self._is_bound(key.address)
        )

    def _tells(self, operation: Operation, keys: Collection[VirtualServerKey]) -> bool:
        """Whether an entry goes that tells of one of these virtual servers.

        Without it that would pass for somebody else's after a restart (K48), and would not be masqueraded (K24). What
        tells nothing that the entry beside it does not may go, and what would close an address of an interface (K32).
        """
        kind, entry = operation.kind, operation.key
        if not isinstance(entry, SetEntry) or kind is Kind.GUARD_ENTRY:
            return False
        if kind is Kind.BOUND_ENTRY and entry.address in self._wanted.host.addresses:
            return False
        return tells(entry, keys) and not (kind is Kind.SUPPORT_ENTRY and entry.set_name in EXCEPTIONS)

    def _unmasks(self, operation: Operation) -> bool:
        """Whether clients would come unmasqueraded for it since something else is refused."""
        if not self.refused and not self.waiting:
            return False
        return unmasks(operation, self._failing(), self._wanted.host.node_port_addresses)

    def _failing(self) -> Failing:
        return Failing(self._wanted.get, self._mirror.applied, self._fails)

    def _fails(self, ref: ObjectId) -> bool:
        return ref in self.refused or ref in self.waiting

    def _is_bound(self, address: bytes) -> bool:
        """Whether an address is on kube-ipvs0, or shall be."""
        ref = (Kind.ADDRESS, PackedAddr(address))
        return address in self._mirror.applied[Kind.ADDRESS] or self._wanted.get(ref) is not None

    def _guards(self, key: VirtualServerKey) -> tuple[ObjectId, ...]:
        """The guard entries that are wanted for a virtual server."""
        refs = (
            (Kind.GUARD_ENTRY, SetEntry(name, key.address, key.protocol, key.port))
            for name in self._guard_sets[family_of(key.address)]
        )
        return tuple(ref for ref in refs if self._wanted.get(ref) is not None)

    def _stands(self, ref: ObjectId) -> bool:
        """Whether it is there; rules and sets only count in the form wanted now."""
        kind, key = ref
        found = self._mirror.applied[kind].get(key)
        return found is not None and (kind not in {Kind.RULES, Kind.SET} or found == self._wanted.get(ref))

    def _refuse(self, operation: Operation, number: int) -> None:
        """Put the object on the retry list; said once, then counted."""
        ref = (operation.kind, operation.key)
        is_first = ref not in self._refused_now  # several real servers of one virtual server are one attempt
        tries = self.refused.failed(ref) if is_first else self.refused.tries(ref)
        self._refused_now.add(ref)
        self.tally.count((operation,), is_done=False)
        if tries > 1:
            tell = log.debug
        elif number == errno.EAGAIN:
            tell = log.warning  # somebody is in the way for a moment
        else:
            tell = log.error
        tell(
            "operation_refused",
            operation=describe(operation),
            services=sorted(str(owner) for owner in self._wanted.holders(ref) if owner != FIXED),
            errno=describe_errno(number),
            hint=hint(operation, number),
            tries=tries,
        )
