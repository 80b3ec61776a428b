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
from ipvsproxy.kube.recovery import Interruption
from ipvsproxy.kube.resources import ENDPOINT_SLICES, SERVICES, Resource, other_nodes, watched
from ipvsproxy.kube.watch import Deliver, Server, Watch


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
    return IpvsproxyError(
        f"cannot list {resource.kind}s",
        str(interruption),
        "Look at --kubeconfig, and at the rights of its user (list on services, endpointslices and nodes)",
    )
