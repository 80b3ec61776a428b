"""What nobody wants any more but may not go yet: connections are still there, or clients that should hear of its end.

    real server of TCP   leaves a virtual server that stays:  weight 0 → no connections, or its time is up → deleted
    virtual server       loses its Service on kube-ipvs0:     accept entry out → any connections? none → deleted
                         TCP:  weight 0 everywhere → no connections, or its time is up → deleted
    address              of connections that were cut:        bound and closed for a grace time → deleted

`get` says what is wanted *for now*: what is desired or, while something lingers, what stands for it. The differ works
on that, so whatever drains is no drift and needs no case anywhere else; and what lingers and somebody deletes is not
made again. UDP and SCTP do not drain: to IPVS a UDP client has no end, and a server that has left would keep a steady
sender for ever. Frontends on the node's own addresses do not linger: their port may be somebody else's the next moment,
and the node itself answers a late packet with a reset. Nor do addresses that a Service gives up while it lives on,
unless they were its cluster IP, or stay anyway: who moves a load balancer's address wants it gone (K27).

Weight 0 is the only mark in the kernel. A start finds it, or servers nobody wants, and begins to drain anew (K13).
Connections are asked for only while something lingers, and only of the virtual servers concerned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.known import Drain
from ipvsproxy.cluster.node import HostView
from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.api import Ipvs
from ipvsproxy.model import real_servers
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, ObjectId, SetEntry, Settings, VirtualServerKey
from ipvsproxy.model.names import ServiceName
from ipvsproxy.plan.desired import Desired
from ipvsproxy.plan.order import accepted_by, bound_entry
from ipvsproxy.plan.ownership import is_cluster_ip
from ipvsproxy.sync.mirror import Mirror

log = structlog.get_logger()

CHECK_S = 5.0  # a closed connection counts as inactive for two minutes (ip_vs_proto_tcp.c): sooner tells nothing
GRACE_S = 60.0  # the reset must meet who sends once in a while; there is nobody left who could be served

_Counts = Mapping[VirtualServerKey, Mapping[bytes, int]]


class Lingering:
    """What lingers, and until when at the latest (monotonic seconds). Owned by the sync thread."""

    def __init__(self, ipvs: Ipvs, mirror: Mirror, desired: Desired, clock: Clock, drain_s: float) -> None:
        self._ipvs = ipvs
        self._mirror = mirror
        self._desired = desired
        self._clock = clock
        self._drain_s = drain_s
        self._leaving: dict[VirtualServerKey, dict[bytes, float]] = {}  # real servers, by identity: their time is up
        self._unasked: dict[VirtualServerKey, None] = {}  # among those: not known yet whether anything is connected
        self._unwanted: dict[PackedAddr, set[VirtualServerKey]] = {}  # virtual servers that stay for those, by address
        self._entries: dict[VirtualServerKey, set[ObjectId]] = {}  # … and the set entries that stay with them
        self.host = HostView()  # no address of a host, be it this one or another, is kept bound
        self._grace: dict[PackedAddr, float] = {}
        self._due = math.inf
        self._is_unreadable = False

    @property
    def draining(self) -> int:
        """How many virtual servers have something that drains."""
        return len(self._leaving)

    @property
    def drains(self) -> tuple[Drain, ...]:
        """Every real server that leaves, and how long it may still take."""
        now = self._clock.monotonic()
        return tuple(
            Drain(key, identity, max(0.0, until - now))
            for key, leaving in self._leaving.items()
            for identity, until in leaving.items()
        )

    @property
    def next_due(self) -> float | None:
        """When to `check` again (monotonic seconds); None while nothing lingers."""
        return self._due if self._leaving or self._grace else None

    def get(self, ref: ObjectId) -> Settings | None:
        """The settings that an object shall have for now; None where it may go."""
        want = self._desired.get(ref)
        if not self._leaving and not self._grace:
            return want
        kind, key = ref
        if kind is Kind.REAL_SERVER and isinstance(key, VirtualServerKey) and key in self._leaving:
            return self._real_servers(key, want)
        if want is None and self._stays(ref):
            # Whoever takes a closing entry away opens the ports of the host: this one is put back.
            return True if kind is Kind.BOUND_ENTRY else self._applied(ref)
        return want

    def holders(self, ref: ObjectId) -> tuple[ServiceName, ...]:
        """The Services that want this object; none for what lingers."""
        return self._desired.holders(ref)

    def take_up(
        self, refs: Collection[ObjectId], drain_s: float | None = None, *, service_lives: bool = False
    ) -> list[ObjectId]:
        """`refs` have another plan, or were found other than believed: what leaves with it begins to linger.

        `drain_s` None: what the Service says that has the virtual server by now, or the default. The objects that need
        not linger any more, which are due now too.
        """
        keys = dict.fromkeys(key for kind, key in refs if kind in {Kind.VIRTUAL_SERVER, Kind.REAL_SERVER})
        due: list[ObjectId] = []
        for key in keys:
            if isinstance(key, VirtualServerKey):
                due += self._take_up(key, self._drain_time(key, drain_s), service_lives=service_lives)
        if self._entries:
            self._hold_entries(refs)
        if self._grace and service_lives:
            self._end_graces_of_given_up(refs)
        return due

    @property
    def addresses(self) -> frozenset[PackedAddr]:
        """The addresses that stay bound for what lingers."""
        return frozenset((*self._grace, *self._unwanted))

    def let_go(self) -> list[ObjectId]:
        """What lingers on an address that by now is the node's own (K32) or somebody else's (K33); it is due now."""
        taken = [address for address in self.addresses if self._is_taken(address)]
        due: list[ObjectId] = []
        for address in taken:
            self._grace.pop(address, None)
            for key in self._unwanted.pop(address, ()):
                due += self._forget(key)
            due += _address(address)
        return due

    def check(self) -> list[ObjectId]:
        """Ask for the connections of what has just begun, and from time to time of all that lingers; what is due."""
        now = self._clock.monotonic()
        is_round = now >= self._due
        keys = tuple(self._leaving if is_round else self._unasked)
        if is_round:
            self._due = math.inf
        counts = self._count(keys)
        due: list[ObjectId] = []
        for key in keys:
            due += self._settle(key, None if counts is None else counts.get(key, {}), now)
        self._unasked.clear()
        if is_round:
            due += self._end_graces(now)
        return due

    def clear(self) -> None:
        """Nothing lingers: clean-up."""
        self._leaving.clear()
        self._unasked.clear()
        self._unwanted.clear()
        self._entries.clear()
        self._grace.clear()
        self._due = math.inf

    # What lingers, as an object

    def _stays(self, ref: ObjectId) -> bool:
        """Whether an object that nobody wants may not go yet."""
        match ref:
            case Kind.VIRTUAL_SERVER, VirtualServerKey() as key:
                return key in self._leaving
            case Kind.ADDRESS, bytes() as address:
                return self._keeps(PackedAddr(address))
            case Kind.BOUND_ENTRY, SetEntry(address=address):
                return self._is_bound(PackedAddr(address)) and self._keeps(PackedAddr(address))
            case ((Kind.SUPPORT_ENTRY | Kind.GUARD_ENTRY), SetEntry() as entry):
                return ref in self._entries.get(accepted_by(entry), ())
            case _:
                return False

    def _real_servers(self, key: VirtualServerKey, want: Settings | None) -> Settings | None:
        have = self._applied((Kind.REAL_SERVER, key))
        if key in self._unasked and self._is_unwanted(key):
            return have  # whatever they are asked now tells whether a message for each is worth it
        leaving = self._leaving[key].keys() - _identities(key, want)
        kept = (record for record in _split(key, have) if real_servers.identity(record) in leaving)
        return real_servers.join((*_split(key, want), *map(real_servers.drained, kept)))

    def _applied(self, ref: ObjectId) -> Settings | None:
        return self._mirror.applied[ref[0]].get(ref[1])

    def _is_bound(self, address: PackedAddr) -> bool:
        return address in self._mirror.applied[Kind.ADDRESS]

    def _is_taken(self, address: PackedAddr) -> bool:
        return address in self.host.addresses or address in self.host.elsewhere

    def _keeps(self, address: PackedAddr) -> bool:
        return address in self._grace or address in self._unwanted

    def _is_unwanted(self, key: VirtualServerKey) -> bool:
        return key in self._unwanted.get(key.address, ())

    # How it begins

    def _drain_time(self, key: VirtualServerKey, given: float | None) -> float:
        said = self._desired.drain_s_at(key) if given is None else given
        return self._drain_s if said is None else said

    def _take_up(self, key: VirtualServerKey, drain_s: float, *, service_lives: bool) -> list[ObjectId]:
        have, want = self._applied((Kind.REAL_SERVER, key)), self._desired.get((Kind.REAL_SERVER, key))
        before = self._leaving.get(key)
        if before is None and (have == want or not have):
            return []
        is_wanted = self._desired.get((Kind.VIRTUAL_SERVER, key)) is not None
        drain_s = drain_s if key.protocol is Protocol.TCP else 0.0
        # Without a time to drain, a virtual server lingers until it is known whether anybody hears of its end.
        may_linger = drain_s > 0 if is_wanted else self._may_linger(key, service_lives=service_lives)
        gone = _identities(key, have) - _identities(key, want) if may_linger else frozenset()
        is_unasked = key in self._unasked or not gone <= (before or {}).keys()
        entries = self._entries.get(key, set())
        due = self._forget(key) if before is not None else []
        if gone:
            until = self._clock.monotonic() + drain_s
            self._leaving[key] = {identity: (before or {}).get(identity, until) for identity in gone}
            if is_unasked:
                self._unasked[key] = None
            if not is_wanted:
                self._unwanted.setdefault(key.address, set()).add(key)
                self._entries[key] = entries
        return due

    def _hold_entries(self, refs: Iterable[ObjectId]) -> None:
        """The source ranges of a virtual server that stays must stay as well: its streams pass by them (K36)."""
        for ref in refs:
            kind, entry = ref
            if kind in {Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY} and isinstance(entry, SetEntry):
                held = self._entries.get(accepted_by(entry))
                if held is not None:
                    held.add(ref)

    def _end_graces_of_given_up(self, refs: Iterable[ObjectId]) -> None:
        """Who lives on and gives an address up wants it gone, whoever was cut there before (K27)."""
        for ref in refs:
            kind, key = ref
            if kind is Kind.ADDRESS and isinstance(key, bytes) and self._desired.get(ref) is None:
                address = PackedAddr(key)
                if address not in self._unwanted:
                    self._grace.pop(address, None)

    def _may_linger(self, key: VirtualServerKey, *, service_lives: bool) -> bool:
        """Whether a virtual server that nobody wants may stay, and with it its address."""
        address = key.address
        if not self._is_bound(address) or self._is_taken(address):
            return False
        stays_for_others = bool(self._unwanted.get(address, set()) - {key})
        is_given_up = service_lives and not stays_for_others and self._desired.get((Kind.ADDRESS, address)) is None
        return not is_given_up or is_cluster_ip(key, self._mirror.applied)

    # How it ends

    def _count(self, keys: tuple[VirtualServerKey, ...]) -> _Counts | None:
        """Connections; None where they cannot be read: then time alone ends what drains."""
        if not keys:
            return {}
        try:
            counts = self._ipvs.connections(keys)
        except KernelError as error:
            (log.debug if self._is_unreadable else log.warning)("connections_not_read", reason=str(error))
            self._is_unreadable = True
            return None
        self._is_unreadable = False
        return counts

    def _settle(self, key: VirtualServerKey, counts: Mapping[bytes, int] | None, now: float) -> Iterator[ObjectId]:
        """Keep of a virtual server's leaving real servers those that are connected and have time left."""
        leaving = self._leaving[key]
        connected = {identity for identity in leaving if counts is None or counts.get(identity)}
        stay = {identity: until for identity, until in leaving.items() if identity in connected and until > now}
        if len(stay) < len(connected):
            log.info("connections_cut", virtual_server=str(key), real_servers=len(connected) - len(stay))
            self._begin_grace(key.address, now)
        if key in self._unasked or len(stay) < len(leaving):
            yield Kind.REAL_SERVER, key
        if stay:
            self._leaving[key] = stay
            self._due = min(self._due, now + CHECK_S, *stay.values())
        else:
            yield from self._forget(key)

    def _forget(self, key: VirtualServerKey) -> list[ObjectId]:
        """It does not linger any more; the objects that may be without a reason to stay."""
        self._leaving.pop(key, None)
        self._unasked.pop(key, None)
        keys = self._unwanted.get(key.address, set())
        keys.discard(key)
        if not keys:
            self._unwanted.pop(key.address, None)
        entries = self._entries.pop(key, ())
        return [(Kind.VIRTUAL_SERVER, key), (Kind.REAL_SERVER, key), *_address(key.address), *entries]

    def _begin_grace(self, address: PackedAddr, now: float) -> None:
        if self._is_bound(address) and not self._is_taken(address):
            self._grace[address] = now + GRACE_S
            self._due = min(self._due, self._grace[address])

    def _end_graces(self, now: float) -> Iterator[ObjectId]:
        for address, until in [*self._grace.items()]:
            if until > now:
                self._due = min(self._due, until)
            else:
                del self._grace[address]
                yield from _address(address)


def _address(address: PackedAddr) -> tuple[ObjectId, ...]:
    """An address on kube-ipvs0 and what closes its ports."""
    return (Kind.ADDRESS, address), bound_entry(address)


def _split(key: VirtualServerKey, settings: Settings | None) -> list[bytes]:
    return real_servers.split(settings, len(key.address)) if isinstance(settings, bytes) else []


def _identities(key: VirtualServerKey, settings: Settings | None) -> frozenset[bytes]:
    return frozenset(map(real_servers.identity, _split(key, settings)))
