"""`ipvsproxy plan`: the whole desired state of a folder of manifests, printed without kernel, root or network."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ipvsproxy.cluster.claims import Claims
from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.types import PlanFormat, PlanOptions, ProxyConfig
from ipvsproxy.kube.manifests import ManifestFolder
from ipvsproxy.kube.snapshot import read_cluster, read_other_nodes
from ipvsproxy.model.kernel_objects import State
from ipvsproxy.model.notes import Note
from ipvsproxy.modes.ipvs.mode import IpvsMode, ipvs_options
from ipvsproxy.node_name import node_name
from ipvsproxy.plan.desired import FIXED, Desired
from ipvsproxy.status import wanted
from ipvsproxy.stdout import print_lines


def run(config: ProxyConfig, options: PlanOptions) -> bool:
    """Print the plan on stdout and notes on stderr; whether every object could be used. Raises ConfigError."""
    state, notes = plan(config, options)
    print_lines(_lines(state, notes, options.format))
    for note in notes:
        sys.stderr.write(f"{note}\n")
    return not notes


def plan(config: ProxyConfig, options: PlanOptions) -> tuple[State, tuple[Note, ...]]:
    """The desired state that the daemon would bring about, and what was left out of it. Raises ConfigError."""
    claims = Claims(config.cluster_cidrs, waits_for_nodes=options.from_cluster)
    tracker = Tracker(node_name(config), options.families, options.node_addresses, claims=claims)
    _read(config, options, tracker)
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
    contested = (
        Note(f"Service {other}", f"{key!s} is served for {holder}, which is older", "Give it another address or port")
        for (_, key), holder, other in desired.contested(desired)
    )
    return desired.state(), (*notes, *contested)


def _read(config: ProxyConfig, options: PlanOptions, tracker: Tracker) -> None:
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


def _lines(state: State, notes: tuple[Note, ...], plan_format: PlanFormat) -> Iterator[str]:
    if plan_format is PlanFormat.JSON:
        return wanted.json_text(state, notes)
    return wanted.FORMATS[plan_format](state)
