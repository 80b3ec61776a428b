"""What is watched, and what the API server is asked to leave out.

`keeps` says the same as the selectors, for servers that refuse them (old ones cannot select by `spec.clusterIP`).
Source: kubernetes v1.37.2 pkg/proxy/config/config.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ipvsproxy.cluster.events import OTHER_NODE, ApiObject
from ipvsproxy.model.api_objects import EndpointSlice, Node, OtherNode, Service
from ipvsproxy.model.names import LABEL_HEADLESS, LABEL_PROXY_NAME
from ipvsproxy.model.notes import Note

MAX_OBJECT_BYTES = 1_572_864
"""etcd's own limit of one request (--max-request-bytes, 1.5 MiB), so no object in a cluster is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object as it is listed and watched. Selectors are empty where all objects are wanted.

    `kind` is ours (events.py), `list_kind` the API's. `if_none`: what there is to say of a list without any.
    """

    kind: str
    list_kind: str
    path: str
    type: type[ApiObject]
    keeps: Callable[[ApiObject], bool]
    labels: str = ""
    fields: str = ""
    if_none: Note | None = None


def _is_proxied(item: ApiObject) -> bool:
    assert isinstance(item, Service)  # noqa: S101 - the resource's own type
    return LABEL_PROXY_NAME not in (item.metadata.labels or {}) and (
        item.spec is None or item.spec.cluster_ip != "None"
    )


def _has_addresses_to_proxy(item: ApiObject) -> bool:
    assert isinstance(item, EndpointSlice)  # noqa: S101 - the resource's own type
    return LABEL_HEADLESS not in (item.metadata.labels or {})


SERVICES = Resource(
    kind="Service",
    list_kind="ServiceList",
    path="/api/v1/services",
    type=Service,
    keeps=_is_proxied,
    labels=f"!{LABEL_PROXY_NAME}",
    fields="spec.clusterIP!=None",
)
ENDPOINT_SLICES = Resource(
    kind="EndpointSlice",
    list_kind="EndpointSliceList",
    path="/apis/discovery.k8s.io/v1/endpointslices",
    type=EndpointSlice,
    keeps=_has_addresses_to_proxy,
    labels=f"!{LABEL_HEADLESS}",
)


def own_node(name: str) -> Resource:
    """The Node object of this name alone."""
    return Resource(
        kind="Node",
        list_kind="NodeList",
        path="/api/v1/nodes",
        type=Node,
        keeps=lambda item: item.metadata.name == name,
        fields=f"metadata.name={name}",
        if_none=Note(
            f"Node {name}",
            "is not in the cluster: no endpoint counts as on this node, and no zone is preferred",
            "Give --hostname-override the name that `kubectl get nodes` shows",
        ),
    )


def other_nodes(name: str) -> Resource:
    """Every Node but the one of this name.

    Whole objects come, some 10 kB each: the API server has no smaller form that holds all addresses. Metadata alone
    (PartialObjectMetadata) has none, a Table has the first InternalIP and ExternalIP only, and so not both families.
    """
    return Resource(
        kind=OTHER_NODE,
        list_kind="NodeList",
        path="/api/v1/nodes",
        type=OtherNode,
        keeps=lambda item: item.metadata.name != name,
        fields=f"metadata.name!={name}",
    )


def watched(node_name: str) -> tuple[Resource, ...]:
    """All that the daemon follows from start to end; other Nodes are followed on demand (other_nodes.py)."""
    return SERVICES, ENDPOINT_SLICES, own_node(node_name)
