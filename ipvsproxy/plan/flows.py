"""Which UDP flows are stale: held by connection tracking to whom no virtual server would send them any more.

UDP has no end that anybody sees: an entry lives as long as packets come, and as long as it lives they all go where the
first one went. So who changes where a frontend leads must end the flows that are held elsewhere: on a server that has
left, on a frontend that is gone, or on the host itself, which answers where no virtual server stands yet and keeps what
it has once taken (IPVS does not translate a flow that connection tracking has confirmed untranslated).

Only flows whose original destination is such a frontend are looked at, so flows that nothing changed about, other
programs' and plain pod traffic stay (K10, K20).
differs: kubernetes v1.37.2 pkg/proxy/conntrack/cleanup.go takes any flow to a node port's number for the node port's,
whatever its address, and forgets frontends that are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from ipvsproxy.model import real_servers
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.flows import PackedEndpoint, pack_endpoint
from ipvsproxy.model.kernel_objects import Kind, Operation, Settings, Verb, VirtualServerKey

# For each frontend, who may answer what is sent to it.
Answerers: TypeAlias = Mapping[PackedEndpoint, Collection[PackedEndpoint]]

_REDIRECTING = frozenset(
    {(Kind.VIRTUAL_SERVER, Verb.ADD), (Kind.VIRTUAL_SERVER, Verb.DELETE), (Kind.REAL_SERVER, Verb.DELETE)}
)


def redirected(operations: Iterable[Operation]) -> Iterator[VirtualServerKey]:
    """The UDP virtual servers whose clients' flows may be stale now that `operations` have been carried out.

    One more real server, another weight or another scheduler concern new flows only.
    """
    for operation in operations:
        if (operation.kind, operation.verb) in _REDIRECTING:
            key = operation.key
            if isinstance(key, VirtualServerKey) and key.protocol is Protocol.UDP:
                yield key


def frontend(key: VirtualServerKey) -> PackedEndpoint:
    """The destination that the clients of a virtual server send to."""
    return pack_endpoint(key.address, key.port)


def answerers(key: VirtualServerKey, servers: Settings | None, *, stands: bool) -> frozenset[PackedEndpoint]:
    """Who may answer for `key`: its wanted real servers (a blob); the host itself only while no virtual server stands.

    Weights do not matter: a server that only drains keeps its flows.
    """
    records = real_servers.split(servers, len(key.address)) if isinstance(servers, bytes) else []
    allowed = {PackedEndpoint(real_servers.identity(record)) for record in records}
    return frozenset(allowed if stands else {*allowed, frontend(key)})


def is_stale(allowed: Answerers, destination: PackedEndpoint, server: PackedEndpoint) -> bool:
    """Whether a flow to `destination` that `server` answers is one of ours, and answered by the wrong one."""
    its_answerers = allowed.get(destination)
    return its_answerers is not None and server not in its_answerers
