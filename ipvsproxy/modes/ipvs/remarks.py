"""What the owner of a Service should know though all that he asked for is in force: nobody else would tell him.

differs: kube-proxy says nothing of either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import CompactSlice
from ipvsproxy.model.addr import format_addr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.notes import Note, gather

ADDRESS_OF_NODE = "AddressOfNode"
NO_ENDPOINT_PORT = "NoEndpointPort"


def remarks(
    service: ServiceView,
    slices: Sequence[CompactSlice],
    host: HostView,
    unmatched: Iterable[tuple[ServicePort, Family]],
) -> tuple[Note, ...]:
    """At most one note of a kind; `unmatched`: the ports that lead nowhere in a family."""
    subject = f"Service {service.name}"
    return (
        *gather(subject, _addresses_of_node(service, host), "Its other ports stay the node's own", ADDRESS_OF_NODE),
        *gather(
            subject,
            list(dict.fromkeys(_without_endpoint_port(slices, unmatched))),
            "Give the pods' container a port of the name that targetPort says, or correct the EndpointSlices",
            NO_ENDPOINT_PORT,
        ),
    )


def _addresses_of_node(service: ServiceView, host: HostView) -> list[str]:
    named = (
        ("cluster IP", service.cluster_ips),
        ("external IP", service.external_ips),
        ("load-balancer IP", service.load_balancer_ips),
    )
    return [
        f"{what} {format_addr(address)} is an address of this node, which serves the Service's ports there"
        for what, addresses in named
        for address in addresses
        if address in host.addresses
    ]


def _without_endpoint_port(
    slices: Sequence[CompactSlice], unmatched: Iterable[tuple[ServicePort, Family]]
) -> Iterable[str]:
    """The ports without any endpoint though there are endpoints: those of other names, or of none."""
    for port, family in unmatched:
        with_endpoints = [piece for piece in slices if piece.family is family and piece.endpoints]
        if with_endpoints:
            yield f"port {port!s} leads nowhere: no EndpointSlice has a port of its name and protocol"
