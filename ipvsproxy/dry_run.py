"""`ipvsproxy plan`: the whole desired state of a folder of manifests, printed without kernel, root or network."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.types import DetectLocalMode, LookOptions, PlanFormat, PlanOptions, ProxyConfig
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.kube.snapshot import read_cluster, read_other_nodes
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.kernel_objects import State
from ipvsproxy.model.notes import Note, gather
from ipvsproxy.modes.ipvs.mode import IpvsMode, ipvs_options
from ipvsproxy.node_name import node_name
from ipvsproxy.plan.desired import FIXED, Desired
from ipvsproxy.status import wanted
from ipvsproxy.stdout import print_lines

_NODE_HINT = "Add the Node whose name --hostname-override says; for addresses alone, --node-addresses will do"


def run(config: ProxyConfig, options: PlanOptions) -> bool:
    """Print the plan on stdout and notes on stderr; whether every object could be used. Raises ConfigError."""
    state, notes = plan(config, options)
    print_lines(_lines(state, notes, options.format))
    for note in notes:
        sys.stderr.write(f"{note}\n")
    return not notes


def plan(config: ProxyConfig, options: PlanOptions) -> tuple[State, tuple[Note, ...]]:
    """The desired state that the daemon would bring about, and what was left out of it. Raises ConfigError.

    Its interfaces are taken to have the addresses of --node-addresses or, where those are not given, all of its Node's.
    """
    tracker = read_tracker(config, options, options.node_addresses)
    mode = IpvsMode(ipvs_options(config, options.families))
    desired = Desired()
    host = mode.host_view(frozenset(tracker.node.addresses), tracker.node)
    desired.replace(FIXED, mode.fixed(tracker.node, host))
    tracker.claims.put_own(host.addresses)
    changes = tracker.take()
    host = msgspec.structs.replace(host, elsewhere=tracker.claims.elsewhere)
    notes = [*changes.notes]
    for name in changes.services:
        service, slices = tracker.view(name)
        if service:
            owned = mode.plan(service, slices, host)
            desired.replace(name, owned)
            notes += owned.notes
    notes += _missing(tracker, config)
    contested = (
        Note(f"Service {other}", f"{key!s} is served for {holder}, which is older", "Give it another address or port")
        for key, holder, other in desired.take_lost()
    )
    return desired.state(), (*notes, *contested)


def _missing(tracker: Tracker, config: ProxyConfig) -> tuple[Note, ...]:
    """What of the plan depends on our Node and lacks it. The daemon asks the kernel for addresses, or waits."""
    node = tracker.node
    views = [tracker.view(name) for name in tracker.names()]
    services = [service for service, _ in views if service]
    faults: list[str] = []
    if not node.addresses and any(port.node_port for service in services for port in service.ports):
        faults.append("its addresses are not known, so node ports are left out")
    if not node.addresses and any(service.restricted and service.load_balancer_ips for service in services):
        faults.append("its addresses are not known, so source ranges that it is in do not let itself in")
    if not node.pod_cidrs and config.detect_local_mode is DetectLocalMode.NODE_CIDR:
        faults.append("its pod networks are not known, so no pod counts as local")
    if not tracker.knows_node and any(piece.zones for _, slices in views for piece in slices):
        faults.append("its zone is not known, so topology hints are not followed")
    return gather(f"Node {node.name}", faults, _NODE_HINT)


def read_tracker(
    config: ProxyConfig,
    options: LookOptions,
    node_addresses: tuple[PackedAddr, ...] = (),
    node_ip: PackedAddr | None = None,
) -> Tracker:
    """What the folder or the API server tells now, in full. Raises IpvsproxyError.

    `node_addresses` hold against the Node's own, `node_ip` against that of its family.
    """
    tracker = Tracker(
        node_name(config),
        options.families,
        node_addresses,
        external_ips=config.allows_external_ips,
        node_ip=node_ip,
        claims=Claims(config.cluster_cidrs, waits_for_nodes=options.from_cluster),
    )

    def deliver(events: Iterable[ClusterEvent]) -> None:
        for event in events:
            tracker.note(event)

    if options.from_cluster:
        from ipvsproxy.kube.client import Access, ApiServer  # noqa: PLC0415  # 0.3 s that a folder does without

        server = ApiServer(Access(kubeconfig=config.kubeconfig, master=config.master))
        read_cluster(server, node_name(config), deliver)
        if tracker.claims.wants_nodes:
            read_other_nodes(server, node_name(config), deliver)
    else:
        deliver(ManifestFolder(Path(config.manifests)).load())
    return tracker


def _lines(state: State, notes: tuple[Note, ...], plan_format: PlanFormat) -> Iterator[str]:
    if plan_format is PlanFormat.JSON:
        return wanted.json_text(state, notes)
    return wanted.FORMATS[plan_format](state)
