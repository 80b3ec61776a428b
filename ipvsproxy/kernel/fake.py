"""An in-memory kernel with the real one's error numbers: what builds on the edge is tested without root.

It passes the same contract tests as the real edge (tests/contract). It counts messages as the real edge would send them
and calls `after_message` behind each, so that a test can look at every state that traffic could meet.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.model import real_servers
from ipvsproxy.model.enums import Family, VirtualServerFlags
from ipvsproxy.model.flows import TableUsage, UdpFlow
from ipvsproxy.model.kernel_objects import (
    Kind,
    ObjectId,
    Operation,
    RuleLayer,
    SetEntry,
    SetSpec,
    State,
    Verb,
    VirtualServer,
    VirtualServerKey,
    empty_state,
)
from ipvsproxy.model.names import DUMMY_DEVICE
from ipvsproxy.model.observed import (
    NO_STATISTICS,
    IpvsTable,
    ObservedVirtualServer,
    Statistics,
    SurveyedServer,
    as_observed,
)
from ipvsproxy.plan.flows import Answerers, is_stale

SCHEDULERS = frozenset({"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"})
_IPVS_VERSION = 0x010201
_CONN_TAB_SIZE = 4096
_ENTRY_KINDS = frozenset({Kind.SUPPORT_ENTRY, Kind.GUARD_ENTRY, Kind.ACCEPT_ENTRY, Kind.BOUND_ENTRY})


class FakeKernel:
    """The state of one network namespace, and the edge to it (`kernel`).

    `faults` answers an operation with an error number instead of carrying it out, by (verb, kind, key); `messages`
    counts. `connections` is how many a real server has, by its virtual server's key and its identity. `flows` is what
    connection tracking knows of UDP, for the test to fill, `flow_dumps` how often it was asked for, and the flow faults
    are error numbers to answer with.
    """

    def __init__(self, families: frozenset[Family] = frozenset(Family)) -> None:
        self.state: State = empty_state()
        self.state[Kind.SYSCTL] = dict.fromkeys(_BOOT_SYSCTLS, "0")
        self.foreign_services: list[ObservedVirtualServer] = []
        self.connections: Counter[tuple[VirtualServerKey, bytes]] = Counter()
        self.statistics: dict[tuple[int, bytes, int], Statistics] = {}  # by protocol, address and port
        self.timeouts = (900, 120, 300)
        self.messages = 0
        self.faults: dict[tuple[Verb, Kind, object], int] = {}
        self.flows: list[UdpFlow] = []
        self.flow_dumps = 0
        self.flow_limit = 65536
        self.flow_dump_fault = self.flow_delete_fault = 0
        self.after_message: Callable[[], None] = lambda: None
        self.kernel = Kernel(
            ipvs=_FakeIpvs(self),
            addresses=_FakeAddresses(self),
            ipsets=_FakeIPSets(self),
            rules=_FakeRules(self, families),
            sysctls=_FakeSysctls(self),
            conntrack=_FakeConntrack(self),
        )

    def message(self) -> None:
        """One message has been handled."""
        self.messages += 1
        self.after_message()

    def fault(self, operation: Operation) -> int:
        """The error number that a test has put in the way of this operation, or 0."""
        return self.faults.get((operation.verb, operation.kind, operation.key), 0)


_BOOT_SYSCTLS = (
    "net.ipv4.vs.conntrack",
    "net.ipv4.vs.conn_reuse_mode",
    "net.ipv4.vs.expire_nodest_conn",
    "net.ipv4.vs.expire_quiescent_template",
    "net.ipv4.ip_forward",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
)


class _FakeSubsystem:
    """One operation, one message; subclasses say what each verb answers."""

    kinds: frozenset[Kind]

    def __init__(self, fake: FakeKernel) -> None:
        self._fake = fake

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out one after the other."""
        results = []
        for operation in operations:
            results.append(self._fake.fault(operation) or self._one(operation))
            self._fake.message()
        return results

    def read(self) -> State:
        """A copy of what is there."""
        return {kind: dict(self._fake.state[kind]) for kind in self.kinds}

    def fingerprint(self) -> bytes:
        """The state itself, as text."""
        return repr([self._fake.state[kind] for kind in sorted(self.kinds)]).encode()

    def _one(self, operation: Operation) -> int:
        raise TypeError(operation)

    def _put(self, operation: Operation) -> int:
        self._fake.state[operation.kind][operation.key] = operation.settings
        return 0

    def _drop(self, operation: Operation, missing: int) -> int:
        return 0 if self._fake.state[operation.kind].pop(operation.key, None) is not None else missing

    def _has(self, ref: ObjectId) -> bool:
        return ref[1] in self._fake.state[ref[0]]


class _FakeIpvs(_FakeSubsystem):
    """Errors as in net/netfilter/ipvs/ip_vs_ctl.c."""

    kinds = frozenset({Kind.VIRTUAL_SERVER, Kind.REAL_SERVER})

    def _one(self, operation: Operation) -> int:
        if operation.kind is Kind.REAL_SERVER:
            return self._real_server(operation)
        exists = self._has((Kind.VIRTUAL_SERVER, operation.key))
        if operation.verb is Verb.DELETE:
            self._fake.state[Kind.REAL_SERVER].pop(operation.key, None)
            return self._drop(operation, errno.ESRCH)
        if operation.verb is Verb.ADD and exists:
            return errno.EEXIST
        if operation.verb is Verb.EDIT and not exists:
            return errno.ESRCH
        if isinstance(operation.settings, VirtualServer) and operation.settings.scheduler not in SCHEDULERS:
            return errno.ENOENT
        self._fake.state[Kind.REAL_SERVER].setdefault(operation.key, b"")
        return self._put(operation)

    def _real_server(self, operation: Operation) -> int:
        key, record = operation.key, operation.settings
        if not isinstance(key, VirtualServerKey) or not isinstance(record, bytes):
            raise TypeError(operation)
        if not self._has((Kind.VIRTUAL_SERVER, key)):
            return errno.ESRCH
        blob = self._fake.state[Kind.REAL_SERVER][key]
        records = {real_servers.identity(r): r for r in real_servers.split(bytes(blob), len(key.address))}  # type: ignore[arg-type]
        same = real_servers.identity(record)
        if (same in records) == (operation.verb is Verb.ADD):
            return errno.EEXIST if operation.verb is Verb.ADD else errno.ENOENT
        records.pop(same, None)
        if operation.verb is not Verb.DELETE:
            records[same] = record
        self._fake.state[Kind.REAL_SERVER][key] = real_servers.join(records.values())
        return 0

    def dump(self) -> IpvsTable:
        """Ordinary services first, then the foreign ones that the test has put there."""
        state = self._fake.state
        ordinary = (
            _observed(key, settings, state[Kind.REAL_SERVER].get(key, b""))
            for key, settings in state[Kind.VIRTUAL_SERVER].items()
        )
        return IpvsTable(_IPVS_VERSION, _CONN_TAB_SIZE, (*ordinary, *self._fake.foreign_services))

    def virtual_servers(self, *, with_statistics: bool = False) -> list[ObservedVirtualServer]:
        """Those of the dump, with what the test says that they have counted."""
        self._fake.message()
        statistics = self._fake.statistics if with_statistics else {}
        return [
            msgspec.structs.replace(
                server, real_servers=(), statistics=statistics.get(_identity(server), NO_STATISTICS)
            )
            for server in self.dump().virtual_servers
        ]

    def survey(self) -> dict[VirtualServerKey, SurveyedServer]:
        """The ordinary services."""
        servers = self._fake.state[Kind.REAL_SERVER]
        return {
            key: SurveyedServer(
                settings.scheduler,
                bool(settings.flags & VirtualServerFlags.PERSISTENT),
                bytes(servers[key]),  # type: ignore[arg-type]
            )
            for key, settings in self._fake.state[Kind.VIRTUAL_SERVER].items()
            if isinstance(key, VirtualServerKey) and isinstance(settings, VirtualServer)
        }

    def connections(self, keys: Iterable[VirtualServerKey]) -> dict[VirtualServerKey, Mapping[bytes, int]]:
        """What the test has said, for the real servers that are there."""
        found: dict[VirtualServerKey, Mapping[bytes, int]] = {}
        for key in keys:
            blob = self._fake.state[Kind.REAL_SERVER].get(key, b"")
            identities = map(real_servers.identity, real_servers.split(bytes(blob), len(key.address)))  # type: ignore[arg-type]
            found[key] = {identity: self._fake.connections[key, identity] for identity in identities}
            self._fake.message()
        return found

    def set_timeouts(self, tcp_s: int, tcp_fin_s: int, udp_s: int) -> int:
        """0 keeps what is there."""
        asked = (tcp_s, tcp_fin_s, udp_s)
        self._fake.timeouts = tuple(new or old for new, old in zip(asked, self._fake.timeouts, strict=True))  # type: ignore[assignment]
        self._fake.message()
        return 0

    def timeouts(self) -> tuple[int, int, int]:
        """What was set last."""
        return self._fake.timeouts


def _identity(server: ObservedVirtualServer) -> tuple[int, bytes, int]:
    return server.protocol, server.address, server.port


def _observed(key: object, settings: object, servers: object) -> ObservedVirtualServer:
    if (
        not isinstance(key, VirtualServerKey)
        or not isinstance(settings, VirtualServer)
        or not isinstance(servers, bytes)
    ):
        raise TypeError(key)
    observed = as_observed(key, settings, servers)
    return msgspec.structs.replace(observed, flags=observed.flags | VirtualServerFlags.HASHED)


class _FakeAddresses(_FakeSubsystem):
    """Errors as in net/ipv4/devinet.c and net/ipv6/addrconf.c."""

    kinds = frozenset({Kind.LINK, Kind.ADDRESS})

    def _one(self, operation: Operation) -> int:
        if operation.kind is Kind.LINK:
            return self._link(operation)
        if not self._has((Kind.LINK, DUMMY_DEVICE)):
            return errno.ENODEV
        if operation.verb is Verb.DELETE:
            return self._drop(operation, errno.EADDRNOTAVAIL)
        return errno.EEXIST if self._has((Kind.ADDRESS, operation.key)) else self._put(operation)

    def _link(self, operation: Operation) -> int:
        if operation.verb is Verb.DELETE:
            self._fake.state[Kind.ADDRESS].clear()
            return self._drop(operation, errno.ENODEV)
        return errno.EEXIST if self._has((Kind.LINK, operation.key)) else self._put(operation)


class _FakeIPSets(_FakeSubsystem):
    """Entries of one set and verb travel in one message; both verbs are idempotent. Errors as in ip_set_core.c."""

    kinds = frozenset({Kind.SET}) | _ENTRY_KINDS

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """One message for each run of entries of one set and verb."""
        results: list[int] = []
        for _, run in groupby(operations, key=self._message_of):
            results.extend(self._fake.fault(operation) or self._one(operation) for operation in run)
            self._fake.message()
        return results

    @staticmethod
    def _message_of(operation: Operation) -> tuple[object, Verb]:
        return operation.key.set_name if isinstance(operation.key, SetEntry) else operation.key, operation.verb

    def _one(self, operation: Operation) -> int:
        if isinstance(operation.key, SetEntry):
            if not self._has((Kind.SET, operation.key.set_name)):
                return errno.ENOENT
            if operation.verb is Verb.DELETE:
                self._drop(operation, 0)
                return 0
            return self._put(operation)
        existing = self._fake.state[Kind.SET].get(operation.key)
        if operation.verb is Verb.DELETE:
            self._empty(operation.key)
            return self._drop(operation, errno.ENOENT)
        if isinstance(existing, SetSpec) and existing != operation.settings:
            if operation.verb is Verb.ADD:
                return errno.EEXIST
            self._empty(operation.key)
        return self._put(operation)

    def _empty(self, name: object) -> None:
        for kind in _ENTRY_KINDS:
            for entry in [entry for entry in self._entries(kind) if entry.set_name == name]:
                del self._fake.state[kind][entry]

    def _entries(self, kind: Kind) -> Iterator[SetEntry]:
        return (key for key in self._fake.state[kind] if isinstance(key, SetEntry))


class _FakeRules(_FakeSubsystem):
    """One commit an operation."""

    kinds = frozenset({Kind.RULES})

    def __init__(self, fake: FakeKernel, families: frozenset[Family]) -> None:
        super().__init__(fake)
        self.families = families

    def glance(self) -> bytes:
        """How many rules there are in each table."""
        layers = self._fake.state[Kind.RULES].values()
        return repr([len(layer.jumps) + len(layer.rules) for layer in layers if isinstance(layer, RuleLayer)]).encode()

    def _one(self, operation: Operation) -> int:
        if operation.verb is Verb.DELETE:
            self._drop(operation, 0)
            return 0
        return self._put(operation)


class _FakeSysctls(_FakeSubsystem):
    """Writes to what exists."""

    kinds = frozenset({Kind.SYSCTL})

    def _one(self, operation: Operation) -> int:
        return self._put(operation) if self._has((Kind.SYSCTL, operation.key)) else errno.ENOENT


class _FakeConntrack:
    """Errors as in net/netfilter/nf_conntrack_netlink.c."""

    def __init__(self, fake: FakeKernel) -> None:
        self._fake = fake

    def usage(self) -> TableUsage:
        """Every flow is an entry."""
        return TableUsage(len(self._fake.flows), self._fake.flow_limit)

    def stale(self, answerers: Answerers) -> list[UdpFlow]:
        """Every flow is looked at."""
        if not answerers:
            return []
        self._fake.flow_dumps += 1
        if self._fake.flow_dump_fault:
            raise KernelError("cannot read the connection tracking table", self._fake.flow_dump_fault)
        return [flow for flow in self._fake.flows if is_stale(answerers, flow.destination, flow.server)]

    def delete(self, flows: Sequence[UdpFlow]) -> list[int]:
        """One message each."""
        return [self._delete(flow) for flow in flows]

    def _delete(self, flow: UdpFlow) -> int:
        self._fake.message()
        if self._fake.flow_delete_fault:
            return self._fake.flow_delete_fault
        if flow not in self._fake.flows:
            return errno.ENOENT
        self._fake.flows.remove(flow)
        return 0


class FakeHostFiles:
    """Files by path; those in `read_only` answer EROFS. There are as many CPUs as the test says."""

    def __init__(self, files: Mapping[str, int], cpus: int = 2, read_only: Iterable[str] = ()) -> None:
        self.files = dict(files)
        self.cpus = cpus
        self.read_only = frozenset(read_only)
        self.written: list[str] = []

    def read(self, path: str) -> int | None:
        """What is there."""
        return self.files.get(path)

    def write(self, path: str, value: int) -> int:
        """Put it there, where there is such a file."""
        if path not in self.files:
            return errno.ENOENT
        if path in self.read_only:
            return errno.EROFS
        self.files[path] = value
        self.written.append(path)
        return 0

    def online_cpus(self) -> int:
        """As the test says."""
        return self.cpus
