"""One sync: changes → plans of the touched Services → what they touch → applier.

The kernel is read (mirror.py) only where the mirror is in doubt; without news and without anything to retry a sync
sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

import msgspec
import structlog

from ipvsproxy.clock import Clock
from ipvsproxy.cluster.health_check import HealthSnapshot
from ipvsproxy.cluster.known import Snapshot
from ipvsproxy.cluster.node import HostView, NodeView
from ipvsproxy.cluster.services import ServiceView, with_cluster_ips_alone
from ipvsproxy.cluster.tracker import Changes, Tracker
from ipvsproxy.kernel.api import Kernel
from ipvsproxy.kernel.monitor import DeviceChange, DeviceChanged
from ipvsproxy.model.addr import Cidr, PackedAddr, format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Figures
from ipvsproxy.model.flows import TableUsage
from ipvsproxy.model.kernel_objects import Kind, ObjectId, State, format_key
from ipvsproxy.model.names import ServiceName
from ipvsproxy.model.notes import Note
from ipvsproxy.model.notices import Notice, service_notices
from ipvsproxy.modes.base import Mode
from ipvsproxy.plan.desired import FIXED, Desired, OwnerPlan
from ipvsproxy.sync.applier import Applier
from ipvsproxy.sync.flows import StaleFlows
from ipvsproxy.sync.lingering import Lingering
from ipvsproxy.sync.mirror import Mirror
from ipvsproxy.sync.neighbours import Neighbours
from ipvsproxy.sync.node_wait import NodeWait
from ipvsproxy.sync.retries import Retries
from ipvsproxy.sync.traffic import TrafficCounts
from ipvsproxy.sync.verdict import failed_families

log = structlog.get_logger()

_TOLD = 5  # examples in a log line
_TAKEN = "FrontendTaken"

# A node cannot do without these two: they serve before the rest is programmed (K38).
_SERVE_FIRST = (ServiceName("default", "kubernetes"), ServiceName("kube-system", "kube-dns"))


class SyncResult(msgspec.Struct, frozen=True):
    """What one sync did: operations carried out, objects refused, objects waiting for those, when to sync again.

    `draining`: virtual servers of which something still drains. `is_full`: all that the cluster wants is in it.
    `failed`: the families that it left where they were (verdict.py).
    """

    services: int
    operations: int
    refused: int
    waiting: int
    retry_at: float | None
    draining: int = 0
    is_full: bool = True
    failed: frozenset[Family] = frozenset()


class OtherNodes(Protocol):
    """Who tells of the Nodes that are not ours."""

    def follow(self, *, wanted: bool) -> None:
        """Begin, or end and say Forgotten. Does not wait."""


class Reconciler:
    """Owns desired state, mirror, retry list and what lingers; used by one thread.

    `tell` is called with what owners of objects must know, `publish_health` with what load balancers are told whenever
    that has changed; neither may wait. Each audit calls `keep_settings`. `other_nodes` is who can tell of them; None:
    all of them are told anyway.
    """

    def __init__(
        self, kernel: Kernel, tracker: Tracker, mode: Mode, clock: Clock, *, exclude: Sequence[Cidr] = ()
    ) -> None:
        self._tracker = tracker
        self._mode = mode
        self._desired = Desired()
        self._mirror = Mirror(kernel, clock, exclude)
        self._lingering = Lingering(kernel.ipvs, self._mirror, self._desired, clock, mode.drain_s)
        self._applier = Applier(kernel, self._mirror, self._lingering, mode, clock)
        self.tally = self._applier.tally
        self.tell: Callable[[Notice], None] = lambda _: None
        self.keep_settings: Callable[[], None] = lambda: None
        self.other_nodes: OtherNodes | None = None
        self._node_wait = NodeWait(mode, clock)
        self._conntrack = kernel.conntrack
        self._usage: TableUsage | None = None
        self.traffic = TrafficCounts(kernel.ipvs, self._desired, tracker)
        self._stale_flows = StaleFlows(kernel.conntrack, self._mirror, self._desired, clock, self.tally)
        self._neighbours = Neighbours()
        self.publish_health: Callable[[HealthSnapshot], None] = lambda _: None
        self._lost: list[ObjectId] = []
        self._synced_once = False
        self._host = HostView()
        self._host_changed = False
        self._depend_on_host: dict[ServiceName, None] = {}
        self._follows_nodes = False
        self._outside: frozenset[Family] = frozenset()  # the families in which our pods are told from nobody
        self._health = HealthSnapshot(self._desired.health_checks)

    @property
    def desired(self) -> Desired:
        """What is wanted; read only."""
        return self._desired

    @property
    def applied(self) -> State:
        """The mirror; read only."""
        return self._mirror.applied

    @property
    def progressed_at(self) -> float:
        """When the kernel last answered a batch, in monotonic seconds; for any thread."""
        return self._applier.progressed_at

    @property
    def figures(self) -> Figures:
        """What there is to count now; costs what fails, and not what stands."""
        counts = self._tracker.counts
        return Figures(
            in_force={kind: len(found) for kind, found in self._mirror.applied.items()},
            refused=_count(self._applier.refused),
            waiting=_count(self._applier.waiting),
            drift=dict(self.tally.drift),
            sent=dict(self.tally.sent),
            flows_deleted=dict(self.tally.flows_deleted),
            flow_failures=dict(self.tally.flow_failures),
            lacking=dict(self._desired.lacking),
            usage=self._usage,
            traffic=self.traffic.found,
            draining=self._lingering.draining,
            foreign=len(self._mirror.foreign),
            unread=len(self._mirror.unread),
            services=counts.services,
            slices=counts.slices,
            rejected=counts.noted,
        )

    @property
    def snapshot(self) -> Snapshot:
        """What is known now, for other threads to read; costs a reference for each object of the cluster."""
        tracker = self._tracker
        addresses = self._host.node_port_addresses
        return Snapshot(tracker.node.name, tracker.snapshot, addresses, self._lingering.drains)

    def start(self) -> SyncResult:
        """Read the kernel once, take over what is ours, and put the fixed layer in place. Raises KernelError.

        Nothing is deleted here: what Services want is not known before they are listed.
        """
        self._mirror.read()
        if not self._mode.depends_on_node:  # otherwise its rules wait until the Node is known
            self._applier.apply(self._plan_fixed())
        return self._result(0)

    def device_changed(self, event: DeviceChanged) -> bool:
        """Note what somebody did to kube-ipvs0; whether a sync may have to put something right."""
        if event.change is DeviceChange.LINK_UP:
            return False
        if event.change is DeviceChange.ADDRESS_LOST and event.address is not None:
            if not self._mirror.lose_address(event.address):
                return False
            self.tally.found_changed(Kind.ADDRESS, event.address)
            self._lost.append((Kind.ADDRESS, event.address))
            return True
        if event.change is DeviceChange.LINK_APPEARED and self._mirror.applied[Kind.LINK]:
            return False  # our own doing
        log.debug("device_changed", change=event.change)
        self.distrust((Kind.LINK, Kind.ADDRESS))
        return True

    def host_changed(self, addresses: frozenset[PackedAddr]) -> bool:
        """The node's interfaces but kube-ipvs0 have these addresses now; whether that is of interest to a sync."""
        self._mirror.host_addresses = addresses
        self._tracker.claims.put_own(addresses)
        view = self._mode.host_view(addresses, self._tracker.node)
        host = msgspec.structs.replace(view, elsewhere=self._host.elsewhere)
        changed, self._host = host != self._host, host
        self._lingering.host = host
        self._host_changed |= changed
        return changed

    def gateways_changed(self, addresses: frozenset[PackedAddr]) -> bool:
        """The node's default routes have these gateways now; whether a sync has something to do for it."""
        return self._tracker.claims.put_gateways(addresses)

    def distrust(self, kinds: Iterable[Kind]) -> None:
        """The mirror may be wrong about these kinds: the next sync reads their subsystem first."""
        self._mirror.distrust(kinds)

    def sync(self) -> SyncResult:
        """Bring the kernel to what the tracker says now, and try again what is due."""
        self._applier.carried_out = 0
        touched = [*self._with_what_lingers(self._mirror.reread(self._desired)), *self._take_lost()]
        may_plan = self._tracker.ready and self._node_wait.is_over(self._tracker)
        changes = self._take() if may_plan else Changes()
        _log(changes.notes)
        for notice in changes.notices:
            self.tell(notice)
        if changes.node_changed:
            _log_node(self._tracker.node)
            self.host_changed(self._host.addresses)
        if changes.node_changed or (self._host_changed and self._synced_once):
            touched += self._plan_fixed()
        # One set: whether what one Service gives up may linger depends on what all the others want by then.
        names = dict.fromkeys((*self._depend_on_host, *changes.services) if self._host_changed else changes.services)
        self._host_changed = False
        touched += self._lingering.let_go()
        touched += self._first_plan(names) if may_plan and not self._synced_once else self._plan(names)
        for key, holder, other in self._desired.take_lost():
            log.warning("frontend_taken", service=str(other), vip=str(key), by=str(holder), hint="The older one has it")
            self.tell(self._taken(other, str(key), holder))
        self._applier.apply([*touched, *self._applier.due()])
        self._applier.apply(self._lingering.check())
        self._tracker.claims.put_lingering(self._lingering.addresses)
        self._ask_for_nodes()
        self._end_stale_flows()
        self._tell_health()
        self._neighbours.warn(self._mirror.applied)
        return self._result(len(changes.services))

    def audit(self, *, in_full: bool) -> SyncResult:
        """Compare the kernel with the mirror and put right what somebody else has changed of ours."""
        self._applier.carried_out = 0
        drift = self._mirror.audit(self._desired, in_full=in_full)
        self.keep_settings()  # after IPVS was asked, which loads its module where somebody has unloaded it
        self._usage = self._conntrack.usage()
        self.traffic.read()
        self._put_right(drift)
        self._applier.apply(self._lingering.check())
        self._end_stale_flows()
        return self._result(0)

    def _take_lost(self) -> list[ObjectId]:
        """What somebody took off kube-ipvs0, told in one line: a flush takes a thousand addresses at once."""
        lost, self._lost = self._lost, []
        if lost:
            some = sorted(format_key(kind, key) for kind, key in lost)[:_TOLD]
            log.warning("address_lost", count=len(lost), some=some)
        return lost

    def glance(self) -> SyncResult | None:
        """Put right what somebody has just taken out of our rules; None where nothing is seen of that (K36)."""
        drift = self._mirror.glance(self._desired)
        if not drift:
            return None
        self._applier.carried_out = 0
        self._put_right(drift)
        return self._result(0)

    def _put_right(self, drift: list[ObjectId]) -> None:
        """Say what is not as believed, count it, and make it so."""
        for kind, key in drift:
            self.tally.found_changed(kind, key)
        for kind in dict.fromkeys(kind for kind, _ in drift):
            keys = [format_key(kind, key) for other, key in drift if other is kind]
            log.warning("drift_found", kind=kind, count=len(keys), some=sorted(keys)[:_TOLD])
        self._applier.apply(self._with_what_lingers(drift))

    def remove_all(self) -> SyncResult:
        """Delete everything that is ours but the sysctls, outside first: clean-up. Raises KernelError."""
        self._mirror.read(only_what_is_there=True)
        self._desired.clear()
        self._lingering.clear()
        self._applier.may_delete = True
        self._applier.carried_out = 0
        self._applier.apply(self._everything())
        self._end_stale_flows()
        return self._result(0)

    def _say(self, service: ServiceView, plan: OwnerPlan) -> None:
        """Log what the plan of a Service had to leave out, and tell its owner that and what else is news to him."""
        notes = plan.notes if plan.notes != self._desired.notes(service.name) else ()
        remarks = plan.remarks if plan.remarks != self._desired.remarks(service.name) else ()
        _log(notes)
        for note in remarks:
            log.info("object_remarked", object=note.subject, remark=note.reason, hint=note.hint)
        for notice in service_notices(service.name, service.uid, (*notes, *remarks)):
            self.tell(notice)

    def _taken(self, service: ServiceName, vip: str, holder: ServiceName) -> Notice:
        view, _ = self._tracker.view(service)
        uid = view.uid if view else ""
        text = f"{vip} is served for Service {holder}, which is older; give this Service another address or port"
        return Notice("Service", *service, uid, _TAKEN, "Program", text)

    def _end_stale_flows(self) -> None:
        """Last of all, when what clients send next goes where it should."""
        self._stale_flows.suspect(self._applier.redirected)
        self._applier.redirected.clear()
        self._stale_flows.remove()

    def _result(self, services: int) -> SyncResult:
        applier = self._applier
        waiting = (self._mirror, self._stale_flows, self._lingering, self._node_wait)
        times = (each.next_due for each in (applier, *waiting))
        retry_at = min((at for at in times if at is not None), default=None)
        return SyncResult(
            services,
            applier.carried_out,
            len(applier.refused),
            len(applier.waiting),
            retry_at,
            draining=self._lingering.draining,
            is_full=self._synced_once,
            failed=self._failed(),
        )

    def _failed(self) -> frozenset[Family]:
        if len(self._mirror.unread):
            return frozenset(Family)
        failing = (*self._applier.refused, *self._applier.waiting)
        return failed_families(failing, self._mirror.applied) if failing else frozenset()

    def _take(self) -> Changes:
        """What has changed. Other Nodes are followed while some Service names an address that could be theirs."""
        changes = self._tracker.take(self._mirror.applied[Kind.ADDRESS])
        elsewhere = self._tracker.claims.elsewhere
        if elsewhere != self._host.elsewhere:  # not `_host_changed`: the tracker tells which Services it touches
            self._lingering.host = self._host = msgspec.structs.replace(self._host, elsewhere=elsewhere)
        self._ask_for_nodes()
        return changes

    def _ask_for_nodes(self) -> None:
        claims = self._tracker.claims
        if self.other_nodes is not None and claims.wants_nodes != self._follows_nodes:
            self._follows_nodes = claims.wants_nodes
            self.other_nodes.follow(wanted=claims.wants_nodes)
            log.info("other_nodes_wanted", wanted=claims.wants_nodes, addresses_waiting=claims.waiting)

    def _tell_health(self) -> None:
        """Publish what load balancers are told where that has changed; not before there was a first full plan.

        After the kernel was told: they must not send before it can serve.
        """
        checks, addresses = self._desired.health_checks, self._host.health_addresses
        if self._synced_once and (checks is not self._health.checks or addresses != self._health.addresses):
            self._health = HealthSnapshot(checks, addresses)
            self.publish_health(self._health)

    def _plan_fixed(self) -> list[ObjectId]:
        self._say_who_is_outside(self._mode.families_that_cannot_tell_pods(self._tracker.node))
        return self._desired.replace(FIXED, self._mode.fixed(self._tracker.node, self._host))

    def _say_who_is_outside(self, families: frozenset[Family]) -> None:
        """differs: upstream ends the program where the Node should tell its pods and does not."""
        for family in sorted(families - self._outside):
            log.warning(
                "pods_count_as_outside",
                family=family.label,
                effect="where externalTrafficPolicy is Local and this node has no endpoint, its pods are refused too",
                hint="Tell local pods in this family: by --cluster-cidr, the Node's podCIDRs or --detect-local-mode",
            )
        self._outside = families

    def _first_plan(self, names: Collection[ServiceName]) -> list[ObjectId]:
        """The first full plan: what is needed most goes out first; what nobody wants is touched too, to be deleted."""
        fixed = self._plan_fixed()
        needed = [ref for name in _SERVE_FIRST if name in names for ref in self._plan_cluster_ips(name)]
        self._mirror.adopt(needed)
        self._applier.apply([*fixed, *needed])
        self._mirror.adopt(self._plan(names))
        self._mirror.forget_found()
        self._stale_flows.suspect_all()
        self._synced_once = True
        self._applier.may_delete = True
        return self._with_what_lingers(self._everything())

    def _plan_cluster_ips(self, name: ServiceName) -> list[ObjectId]:
        """Only cluster IPs that no Service names as another address: all else may be an older one's, or be guarded.

        That is not known before the others are planned, which costs more than these two may wait for.
        """
        service, slices = self._tracker.view(name)
        if service is None or any(map(self._tracker.claims.has_claimant, service.cluster_ips)):
            return []
        plan = self._mode.plan(with_cluster_ips_alone(service), slices, self._host)
        untold = msgspec.structs.replace(plan, notes=(), remarks=())  # what is told already is not told again
        return self._desired.replace(name, untold)

    def _plan(self, names: Iterable[ServiceName]) -> list[ObjectId]:
        touched: list[ObjectId] = []
        left: list[tuple[list[ObjectId], float | None, bool]] = []
        for name in names:
            service, slices = self._tracker.view(name)
            plan = self._mode.plan(service, slices, self._host) if service else None
            drain_s = plan.drain_s if plan else self._desired.drain_s(name)
            if service and plan:
                self._say(service, plan)
            if service:
                self._neighbours.note(service)
            left.append((self._desired.replace(name, plan), drain_s, plan is not None))
            if service and self._mode.depends_on_host(service, slices):
                self._depend_on_host[name] = None
            else:
                self._depend_on_host.pop(name, None)
        # When all have told what they want; first those that are gone, whose addresses may have to stay (lingering.py).
        for changed, drain_s, service_lives in sorted(left, key=itemgetter(2)):
            touched += changed
            touched += self._lingering.take_up(changed, drain_s, service_lives=service_lives)
        return touched

    def _with_what_lingers(self, found: list[ObjectId]) -> list[ObjectId]:
        """What was found in the kernel, with what that lets go; nothing lingers before all wants are known."""
        return [*found, *self._lingering.take_up(found)] if self._synced_once else found

    def _everything(self) -> list[ObjectId]:
        return [*self._desired, *((kind, key) for kind, found in self._mirror.applied.items() for key in found)]


def _count(refs: Retries[ObjectId] | dict[ObjectId, None]) -> Mapping[Kind, int]:
    return Counter(kind for kind, _ in refs) if refs else {}


def _log_node(node: NodeView) -> None:
    """What plans depend on from now on; upstream would start anew for it."""
    log.info(
        "node_changed",
        node=node.name,
        node_ips=[format_addr(address) for address in node.primary_ips],
        pod_networks=[str(cidr) for cidr in node.pod_cidrs],
        zone=node.zone,
    )


def _log(notes: Iterable[Note]) -> None:
    for note in notes:
        log.warning("object_rejected", object=note.subject, reason=note.reason, hint=note.hint)
