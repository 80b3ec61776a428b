"""The composition root: the one place that picks the real edges, starts the threads and stops them.

    watch-…    threads  follow the API server, one for each kind of object;   ┐
    manifests  thread   or reads a folder and waits for its changes           │
    device     thread   hears what others do to addresses                     ├→ one queue → sync (main thread),
    gateways   thread   hears of default routes                               │   which owns all the rest
    signals             SIGTERM, SIGINT                                       ┘
    events     thread   tells the API server what owners of objects must know ←── what a sync has to tell them
    health-…   thread   answers load balancers                                ←── with what the sync thread publishes
    healthz    thread   answers probes                                        ←── likewise
    metrics    thread   answers scrapes                                       ←── likewise
    instance   thread   answers another start that one runs already
    status     thread   answers root on this node                             ←── with what the sync thread, when asked,
                                                                                  hands out between two passes

A thread that dies takes the process down with its reason. SIGTERM leaves the kernel state in place: traffic goes on.
"""

from __future__ import annotations

import errno
import math
import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ipvsproxy import __version__
from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import OTHER_NODE, ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.families import check_families
from ipvsproxy.config.types import ProxyConfig
from ipvsproxy.config_follower import ConfigFollower
from ipvsproxy.errors import AlreadyRunning, IpvsproxyError, KernelError, Unsupported
from ipvsproxy.kernel.addresses import NetlinkAddresses
from ipvsproxy.kernel.api import Kernel, Rules
from ipvsproxy.kernel.conntrack import NetlinkConntrack
from ipvsproxy.kernel.gateways import GatewayMonitor
from ipvsproxy.kernel.host_files import RootFiles
from ipvsproxy.kernel.ipsets import NetlinkIPSets
from ipvsproxy.kernel.iptables_backend import choose_rules, remove_leftovers, report_leftovers
from ipvsproxy.kernel.ipvs import NetlinkIpvs
from ipvsproxy.kernel.monitor import AddressMonitor
from ipvsproxy.kernel.sysctls import PROC_SYS_NET, ProcSysctls, kernel_release
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.kube.other_nodes import OtherNodesWatch
from ipvsproxy.kube.resources import watched
from ipvsproxy.kube.watch import Watch
from ipvsproxy.model.enums import Family
from ipvsproxy.model.notices import Notice, node_notice
from ipvsproxy.model.vitals import Heard, Moment
from ipvsproxy.modes.ipvs.mode import IpvsMode, ipvs_options
from ipvsproxy.modes.ipvs.rules import OWN_CHAINS
from ipvsproxy.modes.ipvs.sets import ENTRY_KIND_BY_NAME
from ipvsproxy.modes.ipvs.sysctls import ALL_SYSCTLS
from ipvsproxy.node_name import node_name
from ipvsproxy.page_servers import page_servers
from ipvsproxy.preparation import kept_settings, load_modules, put_host_in_order, set_oom_score
from ipvsproxy.process import STOP_SIGNALS, accept_signals, hold_signals
from ipvsproxy.serve.listening import listeners_allowed
from ipvsproxy.serve.node_port_server import NodePortServer
from ipvsproxy.status_server import status_server
from ipvsproxy.sync.reconciler import Reconciler
from ipvsproxy.sync.runner import GLANCE_S, Message, Periods, Runner, Signal
from ipvsproxy.sync.scheduler_probe import require_scheduler

if TYPE_CHECKING:
    from ipvsproxy.kernel.inotify import FolderWatch

log = structlog.get_logger()

_CLEANUP_S = 10.0
_INSTANCE = "\0ipvsproxy"
_ASK_FOR = struct.pack("@ll", 5, 0)  # struct timeval
_CREDENTIALS = struct.Struct("=iII")  # struct ucred, include/linux/socket.h


class Restart(NamedTuple):
    """Run the same command line again, with this as the text of the configuration file, which may change meanwhile."""

    config_text: bytes


def run(config: ProxyConfig, reread: Callable[[], ProxyConfig]) -> int | Restart:
    """Serve until told to stop; the exit code, or Restart where the configuration has changed.

    `reread` says what the command line means by now. Raises IpvsproxyError for what makes serving impossible.
    """
    inbox = QueueInbox()
    ending = _Ending(inbox)
    _stop_on_signals(ending)  # from here on SIGTERM is heard, if only when the start is through
    follower = ConfigFollower(config, reread, ending.restart)
    signal.signal(signal.SIGHUP, lambda *_: follower.reload())
    accept_signals()
    with _single_instance() as held:
        load_modules(config)
        chosen = choose_rules(config.iptables_backend, OWN_CHAINS)
        report_leftovers(chosen.backend, OWN_CHAINS)
        kernel = real_kernel(chosen.rules, Path(config.proc_sys_net))
        families = _served_families(kernel)
        name = node_name(config)
        log.info("starting", version=__version__, node=name, families=[family.label for family in families])
        source = _source(config, name, inbox)
        mode = _mode(config, families)
        claims = Claims(config.cluster_cidrs, waits_for_nodes=source.other_nodes is not None)
        tracker = Tracker(
            name,
            families,
            node_ip=config.bind_address if any(config.bind_address) else None,
            external_ips=config.allows_external_ips,
            claims=claims,
        )
        monitor = AddressMonitor(inbox.put)
        reconciler = Reconciler(kernel, tracker, mode, SystemClock(), exclude=config.exclude_cidrs)
        reconciler.traffic.limit = config.service_metrics
        reconciler.tell = source.tell
        reconciler.other_nodes = source.other_nodes
        health = NodePortServer(SystemClock(), listeners_allowed())
        health.tell = source.tell
        reconciler.publish_health = health.publish
        reconciler.host_changed(monitor.host_addresses)
        gateways = GatewayMonitor(inbox.put)
        _start(config, kernel, reconciler, source, name)
        runner = Runner(inbox, tracker, reconciler, SystemClock(), periods(config))
        status = status_server(inbox.put, lambda: runner.figures, SystemClock(), name)
        workers = (
            _Worker("instance", partial(_let_ask, held), partial(held.shutdown, socket.SHUT_RDWR), inbox),
            *source.workers,
            *_config_workers(config, follower, inbox),
            _Worker("device", monitor.run, monitor.stop, inbox),
            _Worker("gateways", gateways.run, gateways.stop, inbox),
            _Worker("health-check-ports", partial(health.run, lambda: runner.is_healthy), health.stop, inbox),
            *_page_workers(config, name, runner, source, inbox),
            _Worker("status", status.run, status.stop, inbox),
        )
        return ending.outcome(_serve(runner, workers))


def _config_workers(config: ProxyConfig, follower: ConfigFollower, inbox: QueueInbox) -> tuple[_Worker, ...]:
    """Who decides on a restart; and who looks at the folder of the file, if there is one."""
    decider = _Worker("config", follower.run, follower.stop, inbox)
    if not config.config_file:
        return (decider,)
    changes = _folder_watch(Path(config.config_file).parent)

    def watch() -> None:
        while changes.wait():
            follower.look()

    return decider, _Worker("config-file", watch, changes.stop, inbox)


def _folder_watch(path: Path) -> FolderWatch:
    """Raises KernelError."""
    from ipvsproxy.kernel.inotify import FolderWatch  # noqa: PLC0415  # loads pyroute2: see there

    return FolderWatch(path)


class _Ending:
    """Stops the sync thread and remembers what for: a stop wins over a restart, whichever is asked for first."""

    def __init__(self, inbox: QueueInbox) -> None:
        self.stops = False
        self.next: Restart | None = None
        self._inbox = inbox

    def stop(self) -> None:
        """End for good; from any thread or signal handler."""
        self.stops = True
        self._inbox.put(Signal.STOP)

    def restart(self, config: ProxyConfig) -> None:
        """End in order to start anew with this configuration; from any thread."""
        self.next = Restart(config.config_text)
        self._inbox.put(Signal.STOP)

    def outcome(self, served: int) -> int | Restart:
        """What to answer when serving, now over, has ended with `served`."""
        if served or self.next is None:
            return served
        hold_signals()  # what came until here has set `stops`; the rest is for the next run
        return served if self.stops else self.next


def periods(config: ProxyConfig) -> Periods:
    """How often to sync at most, how often to audit, and how often to glance at the rules."""
    return Periods(min_sync_s=config.min_sync_period_s, audit_s=config.sync_period_s, glance_s=GLANCE_S)


class _Source(NamedTuple):
    """Who tells of the cluster, who tells it of us, and who tells of the other Nodes where that has to be asked for."""

    workers: tuple[_Worker, ...]
    tell: Callable[[Notice], None] = lambda _: None
    tell_now: Callable[[Notice], None] = lambda _: None
    other_nodes: OtherNodesWatch | None = None
    watches: tuple[Watch, ...] = ()

    def hear(self, now: Moment) -> dict[str, Heard]:
        """What each watch that must be there is heard of."""
        return {
            watch.resource.kind: Heard(
                is_connected=watch.is_connected,
                at=None if watch.heard_at is None else now.unix - (now.monotonic - watch.heard_at),
            )
            for watch in self.watches
        }


def _page_workers(
    config: ProxyConfig, name: str, runner: Runner, source: _Source, inbox: QueueInbox
) -> Iterator[_Worker]:
    """A thread for each server of pages."""
    for title, server in page_servers(config, name, runner, SystemClock(), source.hear):
        server.tell = source.tell
        yield _Worker(title, server.run, server.stop, inbox)


def _source(config: ProxyConfig, name: str, inbox: QueueInbox) -> _Source:
    """The folder; or a watch for each kind, the last one on demand, and Events. Raises ConfigError."""
    if config.manifests:
        path = Path(config.manifests)
        changes, folder = _folder_watch(path), ManifestFolder(path)
        inbox.deliver(folder.load())  # a folder that cannot be read ends the program before anything is programmed
        return _Source((_Worker("manifests", partial(folder.run, inbox.deliver, changes), changes.stop, inbox),))
    # 20 MB that a folder does without
    from ipvsproxy.kube.client import Access, ApiServer  # noqa: PLC0415
    from ipvsproxy.kube.event_recorder import ApiEventSink, EventRecorder  # noqa: PLC0415

    server = ApiServer(Access(kubeconfig=config.kubeconfig, master=config.master))
    watches = [Watch(server, resource, SystemClock()) for resource in watched(name)]
    other_nodes = OtherNodesWatch(server, name, SystemClock())
    followed: list[tuple[str, Watch | OtherNodesWatch]] = [(watch.resource.kind, watch) for watch in watches]
    followed.append((OTHER_NODE, other_nodes))
    recorder = EventRecorder(ApiEventSink(server), name, SystemClock())
    workers = (
        *(_Worker(f"watch-{kind}", partial(watch.run, inbox.deliver), watch.stop, inbox) for kind, watch in followed),
        _Worker("events", recorder.run, recorder.stop, inbox),
    )
    return _Source(workers, recorder.record, recorder.record_now, other_nodes, tuple(watches))


def cleanup(config: ProxyConfig) -> int:
    """Remove everything of ours from the kernel but the sysctls; the exit code. Raises IpvsproxyError."""
    with _single_instance():
        chosen = choose_rules(config.iptables_backend, OWN_CHAINS)
        left = remove_leftovers(chosen.backend, OWN_CHAINS)  # first: no set goes while a rule names it
        kernel = real_kernel(chosen.rules)
        families = kernel.rules.families
        mode = IpvsMode(ipvs_options(config, families))
        tracker = Tracker(node_name(config), families)
        clock = SystemClock()
        reconciler = Reconciler(kernel, tracker, mode, clock, exclude=config.exclude_cidrs)
        with closing(AddressMonitor(lambda _: None)) as monitor:
            reconciler.host_changed(monitor.host_addresses)  # tells our node ports from foreign virtual servers
        result = reconciler.remove_all()
        deadline = clock.monotonic() + _CLEANUP_S
        while result.retry_at is not None and result.retry_at < deadline:  # the xtables lock may be held for a moment
            time.sleep(max(0.0, result.retry_at - clock.monotonic()))
            result = reconciler.sync()
        log.info("cleanup_finished", removed=result.operations, refused=result.refused, waiting=result.waiting)
        return 0 if result.refused == result.waiting == left == 0 else 1


def real_kernel(rules: Rules, proc_sys_net: Path = PROC_SYS_NET) -> Kernel:
    """The edges to this network namespace, with one of the two flavours of iptables."""
    return Kernel(
        ipvs=NetlinkIpvs(),
        addresses=NetlinkAddresses(),
        ipsets=NetlinkIPSets(ENTRY_KIND_BY_NAME),
        rules=rules,
        sysctls=ProcSysctls(ALL_SYSCTLS, net=proc_sys_net),
        conntrack=NetlinkConntrack(),
    )


def _mode(config: ProxyConfig, families: frozenset[Family]) -> IpvsMode:
    options = ipvs_options(config, families, kernel_release())
    if options.node_ports.has_loopback:
        log.warning("loopback_serves_no_node_ports", reason="IPVS cannot send on a packet with a loopback source")
    for note in check_families(config, families):
        log.warning("configuration_has_a_gap", field=note.subject, reason=note.reason, hint=note.hint)
    return IpvsMode(options)


def _start(config: ProxyConfig, kernel: Kernel, reconciler: Reconciler, source: _Source, name: str) -> None:
    """Make sure of the scheduler, put the host in order and the fixed layer in place. Raises KernelError."""
    try:
        require_scheduler(kernel.ipvs, config.scheduler)
    except Unsupported as error:
        source.tell_now(node_notice(name, "UnknownScheduler", str(error)))
        raise
    files = RootFiles(net=Path(config.proc_sys_net))
    set_oom_score(config, files)
    put_host_in_order(config, kernel.ipvs, files)
    kept = kept_settings(config, kernel.ipvs, files)
    kept.check()
    reconciler.keep_settings = kept.check
    result = reconciler.start()
    log.info("fixed_layer_stands", operations=result.operations, refused=result.refused, waiting=result.waiting)
    source.tell(node_notice(name, "Starting", is_warning=False))


def _served_families(kernel: Kernel) -> frozenset[Family]:
    families = kernel.rules.families
    if not families:
        raise Unsupported(
            "cannot serve any address family",
            errno.EAFNOSUPPORT,
            "Load iptable_filter, iptable_mangle, iptable_nat (IPv6: ip6table_…); run with NET_ADMIN and NET_RAW",
            why="neither iptables nor ip6tables works here",
        )
    for family in Family:
        if family not in families:
            log.warning("family_unavailable", family=family.label, effect="its Services are skipped on this node")
    return families


class QueueInbox:
    """The queue between the threads; `put` may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[float, Message]] = queue.SimpleQueue()
        self.arrived_at = time.monotonic()

    def put(self, message: Message) -> None:
        """Hand a message over."""
        self._queue.put((time.monotonic(), message))

    def deliver(self, events: Iterable[ClusterEvent]) -> None:
        """Hand over what one look at the cluster told, as one message."""
        self.put(tuple(events))

    def get(self, timeout_s: float) -> Message | None:
        """The next message, or None after `timeout_s` seconds without one."""
        try:
            self.arrived_at, message = self._queue.get(timeout=None if timeout_s == math.inf else timeout_s)
        except queue.Empty:
            return None
        return message


class _Worker:
    """A thread of the daemon: when it dies, the daemon stops and says why."""

    def __init__(self, name: str, work: Callable[[], None], stop: Callable[[], None], inbox: QueueInbox) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.stop = stop
        self._work = work
        self._inbox = inbox
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        hold_signals()  # they are the main thread's: one that was taken here would not survive a restart
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - kept and raised again as the daemon's own end
            self.failure = error
            self._inbox.put(Signal.STOP)


def _serve(runner: Runner, workers: tuple[_Worker, ...]) -> int:
    for worker in workers:
        worker.thread.start()
    died = False
    try:
        runner.run()
    except Exception:
        died = True
        log.exception("sync_died", kernel_state="left in place")
    finally:
        for worker in workers:
            worker.stop()
    for worker in workers:
        worker.thread.join(timeout=5)
    failed = [worker for worker in workers if worker.failure is not None]
    for worker in failed:
        if isinstance(worker.failure, IpvsproxyError):
            log.error("thread_ended", thread=worker.name, reason=str(worker.failure))
        else:
            log.error("thread_died", thread=worker.name, exc_info=worker.failure)
    log.info("stopped", kernel_state="left in place")
    return 1 if failed or died else 0


def _stop_on_signals(ending: _Ending) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: ending.stop())


@contextmanager
def _single_instance() -> Iterator[socket.socket]:
    """Hold a name that one process of a network namespace can have: an abstract Unix socket, gone with the process.

    Any user may take that name, so a holder only counts if it runs as the same user. The socket is for `_let_ask`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(_INSTANCE)
            held.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise KernelError("cannot tell whether another ipvsproxy runs", error.errno or 0) from error
            pid, uid = _holder()
            if uid == os.geteuid():
                other = f"another ipvsproxy (process {pid})" if pid else "another ipvsproxy, of another container,"
                raise AlreadyRunning(
                    "cannot start",
                    f"{other} runs in this network namespace",
                    "Stop it first (SIGTERM leaves its state)",
                ) from error
            log.warning("instance_name_taken", process=pid, user=uid, effect="a second ipvsproxy would not be noticed")
        yield held


def _let_ask(held: socket.socket) -> None:
    """Let in and out again whoever asks who holds the name, until it is shut down: few can wait, and those for ever."""
    with suppress(OSError):
        while True:
            held.accept()[0].close()


def _holder() -> tuple[int, int]:
    """Process and user of whoever holds the name; -1 where it does not listen, which an ipvsproxy does.

    The process is 0 where it is none of our process namespace: unix(7), pid_namespaces(7).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _ASK_FOR)  # a holder that is not ours may not answer
        try:
            asking.connect(_INSTANCE)
        except OSError:
            return -1, -1
        pid, uid, _ = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return pid, uid
