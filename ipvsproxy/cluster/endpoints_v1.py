"""core/v1 Endpoints as EndpointSlices, for Services that have no slice of their own (stand-alone source).

In a cluster the control plane mirrors them; a folder of manifests has none, so the same is done here: one slice for
each subset and family. Source: kubernetes v1.37.2 pkg/controller/endpointslicemirroring.
"""

from __future__ import annotations

from collections.abc import Iterator

from ipvsproxy.model.addr import family_of, parse_addr
from ipvsproxy.model.api_objects import (
    Endpoint,
    EndpointConditions,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    Metadata,
)
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import LABEL_HEADLESS, LABEL_SERVICE_NAME

_NOT_READY = EndpointConditions(ready=False)


def mirror_endpoints(endpoints: Endpoints) -> tuple[EndpointSlice, ...]:
    """The slices that say what `endpoints` says. Their names hold a colon, so no real object can have them."""
    metadata = endpoints.metadata
    labels = {LABEL_SERVICE_NAME: metadata.name}
    if LABEL_HEADLESS in (metadata.labels or {}):
        labels[LABEL_HEADLESS] = ""
    return tuple(
        EndpointSlice(
            metadata=Metadata(
                name=f"{metadata.name}:{index}:{family.label}", namespace=metadata.namespace, labels=labels
            ),
            address_type=family.label,
            endpoints=members,
            ports=subset.ports,
        )
        for index, subset in enumerate(endpoints.subsets or ())
        for family in Family
        if (members := tuple(_members(subset, family)))
    )


def _members(subset: EndpointSubset, family: Family) -> Iterator[Endpoint]:
    for addresses, conditions in ((subset.addresses, None), (subset.not_ready_addresses, _NOT_READY)):
        for address in addresses or ():
            if _family(address.ip) is family:
                yield Endpoint((address.ip,), conditions, address.target_ref, address.node_name)


def _family(text: str) -> Family:
    """What is no address counts as IPv4, so that it is reported like any bad address of a slice and not lost here."""
    addr = parse_addr(text)
    return Family.IPV4 if addr is None else family_of(addr)
