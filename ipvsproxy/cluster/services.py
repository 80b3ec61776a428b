"""A Service as the planner sees it: numbers and packed addresses, every field judged once, here.

The API server validates what it stores; a manifest folder does not, and an old object may break today's rules. A bad
field loses only itself, or the Service where nothing is left to serve, and each bad Service says so in one note.
Source: kubernetes v1.37.2 pkg/proxy/{serviceport,servicechangetracker}.go, pkg/proxy/util/utils.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from ipvsproxy.config.durations import NANOSECONDS_PER_SECOND, parse_duration
from ipvsproxy.model import api_objects
from ipvsproxy.model.addr import Cidr, PackedAddr, family_of, is_bindable, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.names import ANNOTATION_DRAIN_TIMEOUT, LABEL_PROXY_NAME, ServiceName
from ipvsproxy.model.notes import Note, gather

DEFAULT_AFFINITY_S = 10800
_MAX_AFFINITY_S = 86400  # k8s.io/api core/v1 ClientIPConfig.timeoutSeconds
_MAX_PORT = 0xFFFF
_LONGEST_DRAIN_H = 24  # a Service that is gone holds its address for no longer, whatever its author has written
_HINT = "Correct the Service; what is not named here is in force"
_SKIPPED_HINT = "Serve the family on this node, or give the Service a cluster IP of another one"
_TYPES = frozenset({"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"})


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """One port of a Service; `name` is empty where it has none, `node_port` 0."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0

    def __str__(self) -> str:
        return f'"{self.name}" ({self.port}/{self.protocol.name})' if self.name else f"{self.port}/{self.protocol.name}"


class ServiceView(msgspec.Struct, frozen=True):
    """A Service that has a cluster IP of a served family. Addresses are of the families of `cluster_ips` only.

    `created` is the API's time stamp (RFC 3339, sorts as text), empty where unknown. `affinity_s` is in seconds, 0
    without affinity. In the families of `restricted` only `source_ranges` may use the load-balancer IPs: nobody where
    there is none. `drain_s` is how many seconds connections to an endpoint that left may go on, None where the node's
    default holds.
    """

    name: ServiceName
    created: str
    ports: tuple[ServicePort, ...]
    cluster_ips: tuple[PackedAddr, ...]
    affinity_s: int = 0
    external_ips: tuple[PackedAddr, ...] = ()
    load_balancer_ips: tuple[PackedAddr, ...] = ()
    restricted: tuple[Family, ...] = ()
    source_ranges: tuple[Cidr, ...] = ()
    external_policy_local: bool = False
    internal_policy_local: bool = False
    health_check_node_port: int = 0
    uid: str = ""
    drain_s: float | None = None


def with_cluster_ips_alone(view: ServiceView) -> ServiceView:
    """The same Service without any other way in."""
    ports = tuple(msgspec.structs.replace(port, node_port=0) for port in view.ports)
    return msgspec.structs.replace(
        view, ports=ports, external_ips=(), load_balancer_ips=(), restricted=(), health_check_node_port=0
    )


def read_service(
    service: api_objects.Service, families: Collection[Family]
) -> tuple[ServiceView | None, tuple[Note, ...]]:
    """The Service as far as `families` are served, and a note on what is wrong with it or why it is skipped.

    None without a note where it is not ours by intent: headless, ExternalName, or given to another proxy by label.
    """
    name = ServiceName(service.metadata.namespace, service.metadata.name)
    faults: list[str] = []
    skipped: list[str] = []
    view = _view(name, service, families, faults, skipped)
    subject = f"Service {name}"
    return view, (*gather(subject, faults, _HINT, "InvalidField"), *gather(subject, skipped, _SKIPPED_HINT))


def _view(
    name: ServiceName,
    service: api_objects.Service,
    families: Collection[Family],
    faults: list[str],
    skipped: list[str],
) -> ServiceView | None:
    spec = service.spec
    if not name.name or not name.namespace or spec is None:
        faults.append("metadata.name, metadata.namespace or spec is missing")
        return None
    if not _is_ours(service.metadata, spec):
        return None
    cluster_ips = _cluster_ips(spec, families, faults, skipped)
    if not cluster_ips:
        return None
    own_families = {family_of(ip) for ip in cluster_ips}
    external_local = _external_policy_local(spec, faults)
    restricted, source_ranges = _source_ranges(spec, own_families, faults)
    ports = tuple(_ports(spec, faults))
    tells_health = external_local and bool(ports)  # a Service of which nothing is served has none
    return ServiceView(
        name=name,
        created=service.metadata.creation_timestamp or "",
        ports=ports,
        cluster_ips=cluster_ips,
        affinity_s=_affinity_s(spec, faults),
        external_ips=_addresses(spec.external_ips or (), "spec.externalIPs", own_families, faults),
        load_balancer_ips=_load_balancer_ips(service.status, own_families, faults),
        restricted=restricted,
        source_ranges=source_ranges,
        external_policy_local=external_local,
        internal_policy_local=_is_local(spec.internal_traffic_policy, "spec.internalTrafficPolicy", faults),
        health_check_node_port=_health_check_node_port(spec, faults) if tells_health else 0,
        uid=service.metadata.uid,
        drain_s=_drain_s(service.metadata.annotations, faults),
    )


def _is_ours(metadata: api_objects.Metadata, spec: api_objects.ServiceSpec) -> bool:
    if LABEL_PROXY_NAME in (metadata.labels or {}):
        return False
    return spec.type != "ExternalName" and spec.cluster_ip not in {None, "", "None"}


def _cluster_ips(
    spec: api_objects.ServiceSpec, families: Collection[Family], faults: list[str], skipped: list[str]
) -> tuple[PackedAddr, ...]:
    """At most one of each served family: the first that `ipFamilies` names, or `clusterIP` where it names none.

    A Service that this node lacks the family for is skipped here: nothing that its owner could do about.
    """
    found: dict[Family, PackedAddr] = {}
    for path, text, label in _cluster_ip_texts(spec):
        addr = parse_addr(text)
        if addr is None or (label and family_of(addr).label != label):
            faults.append(f'{path}: "{text}" is not an {label or "IP"} address')
        elif not is_bindable(addr):
            faults.append(f"{path}: {text} is loopback, link-local, multicast or unspecified, so no Service may own it")
        else:
            found.setdefault(family_of(addr), addr)
    if found and not any(family in families for family in found):
        labels = " and ".join(sorted(family.label for family in found))
        skipped.append(f"its cluster IP is {labels} only, a family that is not served here")
    return tuple(found[family] for family in Family if family in found and family in families)


def _cluster_ip_texts(spec: api_objects.ServiceSpec) -> Iterator[tuple[str, str, str]]:
    """(field path, text, family label) of each cluster IP; the label is empty where the object names no family."""
    if not spec.ip_families:
        yield "spec.clusterIP", spec.cluster_ip or "", ""
        return
    texts = spec.cluster_ips or (spec.cluster_ip or "",)
    for index, (text, label) in enumerate(zip(texts, spec.ip_families, strict=False)):
        yield f"spec.clusterIPs[{index}]", text, label


def _ports(spec: api_objects.ServiceSpec, faults: list[str]) -> Iterator[ServicePort]:
    """The ports that are right; of two with one number or one name (a protocol) the first."""
    taken: set[tuple[str, Protocol, int] | tuple[Protocol, int | str]] = set()
    if not spec.ports:
        faults.append("spec.ports is missing")
    for index, entry in enumerate(spec.ports or ()):
        port = _port(f"spec.ports[{index}]", entry, faults)
        if port is None:
            continue
        identities: set[tuple[Protocol, int | str]] = {(port.protocol, port.port), (port.protocol, port.name)}
        if port.node_port and ("nodePort", port.protocol, port.node_port) in taken:
            faults.append(
                f"spec.ports[{index}].nodePort: {port.node_port}/{port.protocol.name} repeats an earlier port's"
            )
            port = msgspec.structs.replace(port, node_port=0)
        if identities & taken:
            faults.append(f"spec.ports[{index}]: {port!s} repeats the number or name of an earlier port")
        else:
            taken.update(identities)
            taken.add(("nodePort", port.protocol, port.node_port))
            yield port


def _port(path: str, entry: api_objects.ServicePort, faults: list[str]) -> ServicePort | None:
    protocol = Protocol.__members__.get(entry.protocol or "TCP")
    if protocol is None:
        faults.append(f'{path}.protocol: "{entry.protocol}" is not TCP, UDP or SCTP')
        return None
    if not 0 < entry.port <= _MAX_PORT:
        faults.append(f"{path}.port: {entry.port} is not in 1..65535")
        return None
    node_port = entry.node_port or 0
    if not 0 <= node_port <= _MAX_PORT:
        faults.append(f"{path}.nodePort: {node_port} is not in 1..65535")
        node_port = 0
    return ServicePort(entry.name or "", protocol, entry.port, node_port)


def _affinity_s(spec: api_objects.ServiceSpec, faults: list[str]) -> int:
    if spec.session_affinity in {None, "", "None"}:
        return 0
    if spec.session_affinity != "ClientIP":
        faults.append(f'spec.sessionAffinity: "{spec.session_affinity}" is not None or ClientIP')
        return 0
    config = spec.session_affinity_config
    timeout_s = config.client_ip.timeout_seconds if config and config.client_ip else None
    if timeout_s is None:
        return DEFAULT_AFFINITY_S
    if not 0 < timeout_s <= _MAX_AFFINITY_S:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        faults.append(f"{path}: {timeout_s} is not in 1..{_MAX_AFFINITY_S}, so {DEFAULT_AFFINITY_S} holds")
        return DEFAULT_AFFINITY_S
    return timeout_s


def _addresses(
    texts: Sequence[str], path: str, families: Collection[Family], faults: list[str]
) -> tuple[PackedAddr, ...]:
    """The addresses of `families`, in order, each once; blanks are nothing, bad ones are faults."""
    found: dict[PackedAddr, None] = {}
    for index, text in enumerate(texts):
        addr = parse_addr(text)
        if addr is None:
            if text.strip():
                faults.append(f'{path}[{index}]: "{text}" is not an IP address')
        elif not is_bindable(addr):
            faults.append(
                f"{path}[{index}]: {text} is loopback, link-local, multicast or unspecified, so no Service may own it"
            )
        elif family_of(addr) in families:
            found[addr] = None
    return tuple(found)


def _load_balancer_ips(
    status: api_objects.ServiceStatus | None, families: Collection[Family], faults: list[str]
) -> tuple[PackedAddr, ...]:
    """Ingress addresses that the node itself serves: ipMode VIP or unset, whatever the Service's type."""
    ingress = (status.load_balancer.ingress if status and status.load_balancer else None) or ()
    texts = [entry.ip or "" if entry.ip_mode in {None, "", "VIP"} else "" for entry in ingress]
    return _addresses(texts, "status.loadBalancer.ingress", families, faults)


def _source_ranges(
    spec: api_objects.ServiceSpec, families: Collection[Family], faults: list[str]
) -> tuple[tuple[Family, ...], tuple[Cidr, ...]]:
    """The families of `families` in which only the ranges are let in, and their ranges.

    A range of length 0 lets all of its family in. A list that says something closes what it does not name: ranges of
    one family close the other, and one of bad ranges closes both. differs: kube-proxy leaves these open.
    """
    found: dict[Cidr, None] = {}
    says_something = False
    for index, text in enumerate(spec.load_balancer_source_ranges or ()):
        cidr = parse_cidr(text.strip())
        says_something |= bool(text.strip())
        if cidr is not None:
            found[cidr] = None
        else:
            faults.append(f'spec.loadBalancerSourceRanges[{index}]: "{text}" is not a CIDR')
    open_families = {family_of(cidr.network) for cidr in found if cidr.prefix_len == 0}
    restricted = tuple(family for family in Family if says_something and family in set(families) - open_families)
    return restricted, tuple(cidr for cidr in found if family_of(cidr.network) in restricted)


def _external_policy_local(spec: api_objects.ServiceSpec, faults: list[str]) -> bool:
    """Whether external traffic stays on the node; only types that can have such traffic count."""
    service_type = spec.type or "ClusterIP"
    if service_type not in _TYPES:
        faults.append(f'spec.type: "{service_type}" is not ClusterIP, NodePort, LoadBalancer or ExternalName')
    is_local = _is_local(spec.external_traffic_policy, "spec.externalTrafficPolicy", faults)
    return is_local and (service_type in {"LoadBalancer", "NodePort"} or bool(spec.external_ips))


def _is_local(policy: str | None, path: str, faults: list[str]) -> bool:
    if policy not in {None, "", "Cluster", "Local"}:
        faults.append(f'{path}: "{policy}" is not Cluster or Local, so Cluster holds')
    return policy == "Local"


def _health_check_node_port(spec: api_objects.ServiceSpec, faults: list[str]) -> int:
    """The port of the health check server of a load balancer with local traffic policy; 0 for every other Service."""
    if spec.type != "LoadBalancer":
        return 0
    port = spec.health_check_node_port or 0
    if not 0 < port <= _MAX_PORT:
        faults.append(f"spec.healthCheckNodePort: {port} is not in 1..65535, so load balancers cannot ask this node")
        return 0
    return port


def _drain_s(annotations: api_objects.Annotations | None, faults: list[str]) -> float | None:
    text = annotations.drain_timeout if annotations else None
    if text is None:
        return None
    path = f"metadata.annotations[{ANNOTATION_DRAIN_TIMEOUT}]"
    nanoseconds = parse_duration(text.strip())
    if nanoseconds is None or nanoseconds < 0:
        faults.append(f'{path}: "{text}" is not a duration such as 1m30s, 500ms or 0, so --ipvs-drain-timeout holds')
        return None
    if nanoseconds > _LONGEST_DRAIN_H * 3600 * NANOSECONDS_PER_SECOND:
        faults.append(f'{path}: "{text}" is too long, so {_LONGEST_DRAIN_H}h hold')
    return min(nanoseconds / NANOSECONDS_PER_SECOND, _LONGEST_DRAIN_H * 3600.0)
