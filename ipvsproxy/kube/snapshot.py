"""The cluster as the API server has it now, read once: what `plan` looks at. The daemon follows instead (watch.py)."""

from __future__ import annotations

from ipvsproxy.clock import SystemClock
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.kube.recovery import Interruption
from ipvsproxy.kube.resources import watched
from ipvsproxy.kube.watch import Deliver, Server, Watch


def read_cluster(server: Server, node_name: str, deliver: Deliver) -> None:
    """Tell every Service, EndpointSlice and our Node, a page at a time, and Listed after each kind.

    Raises IpvsproxyError at the first trouble: whoever asks waits for an answer.
    """
    for resource in watched(node_name):
        try:
            Watch(server, resource, SystemClock()).read_once(deliver)
        except Interruption as interruption:
            raise IpvsproxyError(
                f"cannot list {resource.kind}s",
                str(interruption),
                "Look at --kubeconfig, and at the rights of its user (list on services, endpointslices and nodes)",
            ) from interruption
