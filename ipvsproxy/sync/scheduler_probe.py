"""Whether the kernel has the scheduler: found out by trying, not from lists of modules (K45).

Source: kubernetes v1.37.2 pkg/proxy/ipvs/proxier.go CanUseIPVSProxier, whose probe address this is.
"""

from __future__ import annotations

import errno

from ipvsproxy.errors import KernelError, Unsupported
from ipvsproxy.kernel.api import Ipvs
from ipvsproxy.model.addr import PackedAddr
from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb, VirtualServer, VirtualServerKey

_PROBE = VirtualServerKey(Protocol.TCP, PackedAddr(bytes((198, 51, 100, 0))), 20000)  # TEST-NET-2: no Service's address


def require_scheduler(ipvs: Ipvs, scheduler: str) -> None:
    """Make sure that `scheduler` can be used; the kernel loads its module for this. Raises KernelError.

    A virtual server that is there already shows it without trying.
    """
    table = ipvs.dump()
    if any(server.scheduler == scheduler for server in table.virtual_servers):
        return
    remove = Operation(Verb.DELETE, Kind.VIRTUAL_SERVER, _PROBE)
    # Removed before too: a probe that a killed run left behind answers EEXIST, whatever the scheduler.
    _, number, _ = ipvs.apply(
        [remove, Operation(Verb.ADD, Kind.VIRTUAL_SERVER, _PROBE, VirtualServer(scheduler)), remove]
    )
    if number == errno.ENOENT:
        raise Unsupported(
            f'cannot use the scheduler "{scheduler}"',
            number,
            f"Load ip_vs_{scheduler} on the node, or set --ipvs-scheduler to rr",
            why="this kernel does not have it",
        )
    if number:
        raise KernelError(f"cannot create the virtual server {_PROBE} to try the scheduler", number)
