"""Where `status --names` and `top` have their names from: the running daemon, a folder, or the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ipvsproxy.cluster.events import ClusterEvent
from ipvsproxy.cluster.known import Known, Snapshot, decode_known, known
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.daemon_client import ask, not_understood
from ipvsproxy.model.enums import Family
from ipvsproxy.serve.local_socket import KNOWN
from ipvsproxy.status.names_options import NamesFrom

_PATIENCE_S = 30.0  # the daemon answers or gives up after some seconds; more than that is a machine that hangs
_HINT = "Name another source of names: --manifests DIR, --from-cluster or --kubeconfig FILE"


def names_reader(source: NamesFrom) -> Callable[[], Known]:
    """What reads them whenever it is called; the API server, for whom all are work, is asked now and not again.

    Both raise IpvsproxyError.
    """
    if source.manifests:
        return lambda: names_of_folder(source.manifests)
    if source.cluster:
        found = names_of_cluster(source.kubeconfig)
        return lambda: found
    return names_of_daemon


def names_of_daemon(path: str = "", patience_s: float = _PATIENCE_S) -> Known:
    """What the daemon of this network namespace knows now. Raises IpvsproxyError."""
    answer = ask(KNOWN, patience_s=patience_s, path=path, hint=_HINT)
    try:
        return decode_known(answer)
    except msgspec.DecodeError as error:
        raise not_understood(path, error, _HINT) from error


def names_of_folder(folder: str) -> Known:
    """What a folder of manifests says. Raises ConfigError."""
    from ipvsproxy.kube.manifests import ManifestFolder  # noqa: PLC0415  # PyYAML, which the daemon's names do without

    return _names_of(ManifestFolder(Path(folder)).load())


def names_of_cluster(kubeconfig: str) -> Known:
    """What the API server says; without a kubeconfig by the pod's own access. Raises IpvsproxyError."""
    from ipvsproxy.kube.client import Access, ApiServer  # noqa: PLC0415  # 0.3 s that the others do without
    from ipvsproxy.kube.snapshot import read_services  # noqa: PLC0415

    events: list[ClusterEvent] = []
    read_services(ApiServer(Access(kubeconfig=kubeconfig)), events.extend)
    return _names_of(events)


def _names_of(events: Iterable[ClusterEvent]) -> Known:
    tracker = Tracker("", frozenset(Family))
    for event in events:
        tracker.note(event)
    return known(Snapshot("", tracker.snapshot))
