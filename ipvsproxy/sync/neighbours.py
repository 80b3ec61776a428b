"""One warning where this node answers its neighbours for load-balancer IPs (K26).

Every node has them on kube-ipvs0, and by the kernel's default answers ARP for any address that it has: so all nodes
claim what one of them is to announce. IPv6 has no such trouble: a neighbour solicitation is answered for an address of
the interface that it came in on, and for no other.
"""

from __future__ import annotations

import structlog

from ipvsproxy.cluster.services import ServiceView
from ipvsproxy.model.addr import PackedAddr, family_of, format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, State
from ipvsproxy.model.names import ServiceName

log = structlog.get_logger()

_ARP_IGNORE = "net.ipv4.conf.all.arp_ignore"
_ANSWERS_FOR_ANY = "0"  # Documentation/networking/ip-sysctl.rst


class Neighbours:
    """Says it once in the life of the process; it goes by the kernel's sysctl, whoever has set it, not by a flag."""

    def __init__(self) -> None:
        self._planned: dict[PackedAddr, ServiceName] = {}
        self._said = False

    def note(self, service: ServiceView) -> None:
        """A Service was planned."""
        if not self._said:
            ips = (ip for ip in service.load_balancer_ips if family_of(ip) is Family.IPV4)
            self._planned.update(dict.fromkeys(ips, service.name))

    def warn(self, applied: State) -> None:
        """After a sync, when the sysctl and the addresses that were planned are in force."""
        planned, self._planned = self._planned, {}
        bound = next((ip for ip in planned if ip in applied[Kind.ADDRESS]), None)
        if bound is None or applied[Kind.SYSCTL].get(_ARP_IGNORE) != _ANSWERS_FOR_ANY:
            return
        self._said = True
        log.warning(
            "arp_answered_for_load_balancer_ips",
            vip=format_addr(bound),
            service=str(planned[bound]),
            effect="every node claims these addresses where something announces them in a layer-2 network",
            hint="Give --ipvs-strict-arp (ipvs.strictARP), or leave it where they are routed to the nodes",
        )
