"""The fields we read of Kubernetes objects, decoded by msgspec; all others are skipped unread: 20 times less work.

Every field has a default, so that an object with missing fields decodes and is judged in `cluster/`, where it can be
named. Source: k8s.io/api v0.37.2 core/v1, discovery/v1.
"""

from __future__ import annotations

import msgspec

from ipvsproxy.model.names import ANNOTATION_DRAIN_TIMEOUT, ANNOTATION_LAST_CHANGE


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Annotations(_Object, frozen=True):
    """The annotations that we read; all others, which may be long, are skipped like other fields."""

    drain_timeout: str | None = msgspec.field(default=None, name=ANNOTATION_DRAIN_TIMEOUT)
    last_change: str | None = msgspec.field(default=None, name=ANNOTATION_LAST_CHANGE)


class Identity(_Object, frozen=True):
    """Of metav1.ObjectMeta what tells which object this is, in which version."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Metadata(Identity, frozen=True):
    """metav1.ObjectMeta."""

    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: Annotations | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ServicePort(_Object, frozen=True):
    """core/v1 ServicePort; targetPort is not read, slices carry the number."""

    name: str | None = None
    protocol: str | None = None
    port: int = 0
    node_port: int | None = None


class ClientIPConfig(_Object, frozen=True):
    """core/v1 ClientIPConfig."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(_Object, frozen=True):
    """core/v1 SessionAffinityConfig."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(_Object, frozen=True):
    """core/v1 ServiceSpec."""

    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = msgspec.field(default=None, name="clusterIPs")
    ip_families: tuple[str, ...] | None = None
    ports: tuple[ServicePort, ...] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(default=None, name="externalIPs")
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    load_balancer_source_ranges: tuple[str, ...] | None = None
    health_check_node_port: int | None = None


class Ingress(_Object, frozen=True):
    """core/v1 LoadBalancerIngress."""

    ip: str | None = None
    ip_mode: str | None = None
    hostname: str | None = None


class LoadBalancerStatus(_Object, frozen=True):
    """core/v1 LoadBalancerStatus."""

    ingress: tuple[Ingress, ...] | None = None


class ServiceStatus(_Object, frozen=True):
    """core/v1 ServiceStatus."""

    load_balancer: LoadBalancerStatus | None = None


class Service(_Object, frozen=True):
    """core/v1 Service."""

    metadata: Metadata = Metadata()
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class EndpointConditions(_Object, frozen=True):
    """discovery/v1 EndpointConditions; nil means true, true, false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(_Object, frozen=True):
    """discovery/v1 ForZone and ForNode."""

    name: str = ""


class EndpointHints(_Object, frozen=True):
    """discovery/v1 EndpointHints."""

    for_zones: tuple[Hint, ...] | None = None
    for_nodes: tuple[Hint, ...] | None = None


class TargetRef(_Object, frozen=True):
    """core/v1 ObjectReference of an endpoint: its pod, if it has one."""

    kind: str = ""
    name: str = ""


class Endpoint(_Object, frozen=True):
    """discovery/v1 Endpoint; only the first address counts. `target_ref` is for people alone."""

    addresses: tuple[str, ...] | None = None
    conditions: EndpointConditions | None = None
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(_Object, frozen=True):
    """discovery/v1 EndpointPort and core/v1 EndpointPort."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(_Object, frozen=True):
    """discovery/v1 EndpointSlice."""

    metadata: Metadata = Metadata()
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class EndpointAddress(_Object, frozen=True):
    """core/v1 EndpointAddress."""

    ip: str = ""
    target_ref: TargetRef | None = None
    node_name: str | None = None


class EndpointSubset(_Object, frozen=True):
    """core/v1 EndpointSubset."""

    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class Endpoints(_Object, frozen=True):
    """core/v1 Endpoints, read only where a Service has no EndpointSlice."""

    metadata: Metadata = Metadata()
    subsets: tuple[EndpointSubset, ...] | None = None


class Taint(_Object, frozen=True):
    """core/v1 Taint; whatever its value and effect are."""

    key: str = ""


class NodeSpec(_Object, frozen=True):
    """core/v1 NodeSpec."""

    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    pod_cidrs: tuple[str, ...] | None = msgspec.field(default=None, name="podCIDRs")
    taints: tuple[Taint, ...] | None = None


class NodeAddress(_Object, frozen=True):
    """core/v1 NodeAddress."""

    type: str = ""
    address: str = ""


class NodeStatus(_Object, frozen=True):
    """core/v1 NodeStatus."""

    addresses: tuple[NodeAddress, ...] | None = None


class Node(_Object, frozen=True):
    """core/v1 Node."""

    metadata: Metadata = Metadata()
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class OtherNode(_Object, frozen=True):
    """core/v1 Node as far as it is read where it is not ours: of some 10 kB its name and its addresses."""

    metadata: Identity = Identity()
    status: NodeStatus | None = None
