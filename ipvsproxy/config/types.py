"""The configuration in its two forms: as written, and as understood.

`KubeProxyConfiguration` is the v1alpha1 document with the fields that act here, each as people write it. Flags name its
fields (flags.py), so a file needs no table of its own. validate.py turns it into a `ProxyConfig`, which the rest of the
program reads: every value parsed, checked and with its unit, and flat, since upstream too has only one sync period and
one masquerade bit in force, whichever section they came from.

Source: k8s.io/kube-proxy v0.37.2 config/v1alpha1/types.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from ipvsproxy.model.addr import Cidr, PackedAddr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import DEFAULT_MASQUERADE_BIT


class ProxyMode(StrEnum):
    """How Services are programmed."""

    IPVS = "ipvs"


class DetectLocalMode(StrEnum):
    """How a packet from a local pod is told, in upstream's words."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"


class LogFormat(StrEnum):
    """How log lines look; AUTO is text on a terminal and JSON elsewhere."""

    AUTO = ""
    TEXT = "text"
    JSON = "json"


class IptablesBackend(StrEnum):
    """Which flavour of iptables holds our rules; AUTO is the one that the host uses."""

    AUTO = "auto"
    LEGACY = "legacy"
    NFT = "nft"


class FilterVerdict(StrEnum):
    """What our filter says of a packet to a Service: its way is free, or the host's other rules may still judge it."""

    ACCEPT = "accept"
    RETURN = "return"


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ClientConnectionConfiguration(_Section, frozen=True):
    """`clientConnection`; the rest of it (rates, content types) has no meaning for a client of three watches."""

    kubeconfig: str = ""


class LoggingConfiguration(_Section, frozen=True):
    """`logging`; differs: without a format it depends on the terminal, upstream's is text."""

    format: str = LogFormat.AUTO.value
    verbosity: int = 0


class IPTablesConfiguration(_Section, frozen=True):
    """`iptables`; both fields are in force in ipvs mode too."""

    masquerade_bit: int = DEFAULT_MASQUERADE_BIT
    masquerade_all: bool = False


class IPVSConfiguration(_Section, frozen=True):
    """`ipvs`; durations as Go writes them."""

    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] = msgspec.field(default=(), name="excludeCIDRs")
    strict_arp: bool = msgspec.field(default=False, name="strictARP")
    tcp_timeout: str = "0s"
    tcp_fin_timeout: str = "0s"
    udp_timeout: str = "0s"
    sync_period: str = "30s"
    min_sync_period: str = "0s"


class DetectLocalConfiguration(_Section, frozen=True):
    """`detectLocal`."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class OwnConfiguration(_Section, frozen=True):
    """`ipvsproxy`: what kube-proxy does not have, in a section of its own."""

    manifests: str = ""
    master: str = ""
    iptables_backend: str = IptablesBackend.AUTO.value
    filter_verdict: str = FilterVerdict.ACCEPT.value
    drain_timeout: str = "15m"


class KubeProxyConfiguration(_Section, frozen=True):
    """The document as written. A flag that is not given leaves the default that stands here."""

    hostname_override: str = ""
    mode: str = ""
    node_port_addresses: tuple[str, ...] = ()
    detect_local_mode: str = ""
    cluster_cidr: str = msgspec.field(default="", name="clusterCIDR")
    client_connection: ClientConnectionConfiguration = ClientConnectionConfiguration()
    logging: LoggingConfiguration = LoggingConfiguration()
    iptables: IPTablesConfiguration = IPTablesConfiguration()
    ipvs: IPVSConfiguration = IPVSConfiguration()
    detect_local: DetectLocalConfiguration = DetectLocalConfiguration()
    ipvsproxy: OwnConfiguration = OwnConfiguration()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The configuration as understood. Names as in v1alpha1; `_s` is seconds; a time-out of 0 changes nothing."""

    mode: ProxyMode
    hostname_override: str  # trimmed, lower case; empty means the host's own name
    detect_local_mode: DetectLocalMode
    cluster_cidrs: tuple[Cidr, ...]
    bridge_interface: str
    interface_name_prefix: str
    masquerade_bit: int
    masquerade_all: bool
    scheduler: str
    strict_arp: bool
    exclude_cidrs: tuple[Cidr, ...]
    tcp_timeout_s: int
    tcp_fin_timeout_s: int
    udp_timeout_s: int
    sync_period_s: float
    min_sync_period_s: float
    log_format: LogFormat
    verbosity: int
    node_port_cidrs: tuple[Cidr, ...]  # none of a family and not on primary: every address of it
    node_ports_on_primary: bool
    kubeconfig: str  # a file; empty: the pod's own access
    master: str  # a URL that holds against the kubeconfig's; empty: none
    manifests: str  # a folder; empty where none is given
    iptables_backend: IptablesBackend
    filter_verdict: FilterVerdict
    drain_timeout_s: float  # 0: what has to leave leaves at once


class PlanFormat(StrEnum):
    """What `ipvsproxy plan -o` prints: the format of the tool of this name."""

    IPVSADM = "ipvsadm"
    ADDRESSES = "addresses"
    IPSET = "ipset"
    IPTABLES = "iptables"
    IP6TABLES = "ip6tables"
    SYSCTL = "sysctl"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What only a dry run asks. Without node addresses those of the Node object count."""

    format: PlanFormat
    from_cluster: bool
    node_addresses: tuple[PackedAddr, ...]
    families: frozenset[Family]
