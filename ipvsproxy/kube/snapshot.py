"""The cluster as the API server has it now, read once: what `plan` and `status --names` look at.

The daemon follows instead (watch.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import Forbidden
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.kube.other_nodes import KnownAddresses
from ipvsproxy.kube.recovery import Cause, Interruption
from ipvsproxy.kube.resources import ENDPOINT_SLICES, SERVICES, Resource, other_nodes, watched
from ipvsproxy.kube.watch import Deliver, Server, Watch

_SERVER_ERROR = 500
_PASSING = frozenset({Cause.CUT, Cause.SILENT})
_ADDRESS = "Look at --kubeconfig and --master: they are to name an API server that can be reached from here"
_HINTS_BY_STATUS = {
    401: "Look at the credentials in --kubeconfig: they are not accepted, or no longer",
    403: "Let its user list services, endpointslices and nodes (a ClusterRole), or give another --kubeconfig",
    410: "Try again: the cluster changed faster than it was read",
    429: "Try again a little later: the server has too much to do",
}


def read_cluster(server: Server, node_name: str, deliver: Deliver) -> None:
    """Tell every Service, EndpointSlice and our Node, a page at a time, and Listed after each kind.

    Raises IpvsproxyError at the first trouble: whoever asks waits for an answer.
    """
    _read(server, watched(node_name), deliver)


def read_services(server: Server, deliver: Deliver) -> None:
    """The same of Services and EndpointSlices alone. Raises IpvsproxyError."""
    _read(server, (SERVICES, ENDPOINT_SLICES), deliver)


def _read(server: Server, resources: Iterable[Resource], deliver: Deliver) -> None:
    for resource in resources:
        try:
            Watch(server, resource, SystemClock()).read_once(deliver)
        except Interruption as interruption:
            raise _cannot_list(resource, interruption) from interruption


def read_other_nodes(server: Server, node_name: str, deliver: Deliver) -> None:
    """Tell the addresses of all Nodes but ours, and Listed; or Forbidden, with which the daemon lives too.

    Raises IpvsproxyError at any other trouble.
    """
    resource = other_nodes(node_name)
    try:
        Watch(server, resource, SystemClock()).read_once(partial(KnownAddresses().hand_on, deliver))
    except Interruption as interruption:
        if not interruption.is_forbidden:
            raise _cannot_list(resource, interruption) from interruption
        deliver((Forbidden(resource.kind, str(interruption)),))


def _cannot_list(resource: Resource, interruption: Interruption) -> IpvsproxyError:
    return IpvsproxyError(f"cannot list {resource.kind}s", str(interruption), _hint(interruption))


def _hint(interruption: Interruption) -> str:
    """What helps, as the status or else the cause tells; an unusable configuration brings its own hint."""
    if interruption.status in _HINTS_BY_STATUS:
        return _HINTS_BY_STATUS[interruption.status]
    if interruption.cause is Cause.UNCONFIGURED:
        return ""
    passes = interruption.status >= _SERVER_ERROR or interruption.cause in _PASSING
    return "Try again: that may pass by itself" if passes else _ADDRESS
