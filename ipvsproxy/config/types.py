"""The configuration in its two forms: as written, and as understood.

`KubeProxyConfiguration` is the v1alpha1 document, each field as people write it, also those without a meaning here.
Flags name its fields (flags.py), so a file needs no table of its own. validate.py turns it into a `ProxyConfig`, which
the rest of the program reads: every value parsed, checked and with its unit, and flat, since upstream too has only one
sync period and one masquerade bit in force, whichever section they came from.

Source: k8s.io/kube-proxy v0.37.2 config/v1alpha1/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeAlias

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


class Estimation(StrEnum):
    """Whether the kernel goes on estimating rates for each virtual and real server (net.ipv4.vs.run_estimation)."""

    KEEP = "keep"
    OFF = "off"


MAX_FLOAT32 = 3.4028235e38
Float32 = Annotated[float, msgspec.Meta(ge=-MAX_FLOAT32, le=MAX_FLOAT32)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Duration: TypeAlias = str  # Go's text, "1m30s"; what is none is refused by validate.py, with its path


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ClientConnectionConfiguration(_Section, frozen=True):
    """`clientConnection`; the rates and content types have no meaning for a client of three watches."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: Float32 = 5.0
    burst: Int32 = 10


class VModuleItem(_Section, frozen=True):
    """One source file pattern of `logging.vmodule` and its verbosity."""

    file_pattern: str = ""
    verbosity: Int32 = 0


class TextLogOptions(_Section, frozen=True):
    """`logging.options.text`; info_buffer_size is a quantity such as 64Ki."""

    split_stream: bool = False
    info_buffer_size: str | int = "0"


class JSONLogOptions(_Section, frozen=True):
    """`logging.options.json`; info_buffer_size is a quantity such as 64Ki."""

    split_stream: bool = False
    info_buffer_size: str | int = "0"


class LogOptions(_Section, frozen=True):
    """`logging.options`: no meaning here, every line is written at once."""

    text: TextLogOptions = TextLogOptions()
    json: JSONLogOptions = JSONLogOptions()


class LoggingConfiguration(_Section, frozen=True):
    """`logging`; differs: without a format it depends on the terminal, upstream's is text.

    `flush_frequency` is a duration, or nanoseconds as a number: kubeadm writes 0.
    """

    format: str = LogFormat.AUTO.value
    flush_frequency: Duration | int = "5s"
    verbosity: int = 0
    vmodule: tuple[VModuleItem, ...] = ()
    options: LogOptions = LogOptions()


class IPTablesConfiguration(_Section, frozen=True):
    """`iptables`; the first two fields are in force in ipvs mode too, the others are not."""

    masquerade_bit: Int32 = DEFAULT_MASQUERADE_BIT
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    sync_period: Duration = "30s"
    min_sync_period: Duration = "1s"


class IPVSConfiguration(_Section, frozen=True):
    """`ipvs`; durations as Go writes them."""

    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] = msgspec.field(default=(), name="excludeCIDRs")
    strict_arp: bool = msgspec.field(default=False, name="strictARP")
    tcp_timeout: Duration = "0s"
    tcp_fin_timeout: Duration = "0s"
    udp_timeout: Duration = "0s"
    sync_period: Duration = "30s"
    min_sync_period: Duration = "0s"


class NFTablesConfiguration(_Section, frozen=True):
    """`nftables`: another mode's."""

    masquerade_bit: Int32 = DEFAULT_MASQUERADE_BIT
    masquerade_all: bool = False
    sync_period: Duration = "30s"
    min_sync_period: Duration = "1s"


class WinkernelConfiguration(_Section, frozen=True):
    """`winkernel`: another system's."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = msgspec.field(default=False, name="enableDSR")
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class DetectLocalConfiguration(_Section, frozen=True):
    """`detectLocal`."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class ConntrackConfiguration(_Section, frozen=True):
    """`conntrack`: sysctls of net.netfilter; 0 leaves what the node has."""

    max_per_core: Int32 = 32768
    min: Int32 = 131072
    tcp_established_timeout: Duration = "24h0m0s"
    tcp_close_wait_timeout: Duration = "1h0m0s"
    tcp_be_liberal: bool = False
    udp_timeout: Duration = "0s"
    udp_stream_timeout: Duration = "0s"


class OwnConfiguration(_Section, frozen=True):
    """`ipvsproxy`: what kube-proxy does not have, in a section of its own."""

    manifests: str = ""
    master: str = ""
    iptables_backend: str = IptablesBackend.AUTO.value
    filter_verdict: str = FilterVerdict.ACCEPT.value
    drain_timeout: Duration = "15m"
    estimation: str = Estimation.KEEP.value
    service_metrics: Int32 = 0
    proc_sys_net: str = "/proc/sys/net"


class KubeProxyConfiguration(_Section, frozen=True):
    """The document as written, less `apiVersion` and `kind`. What is not given leaves the default that stands here."""

    feature_gates: dict[str, bool] = {}
    client_connection: ClientConnectionConfiguration = ClientConnectionConfiguration()
    logging: LoggingConfiguration = LoggingConfiguration()
    hostname_override: str = ""
    bind_address: str = "0.0.0.0"  # noqa: S104  # never bound: it tells the node's address
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: str = ""
    iptables: IPTablesConfiguration = IPTablesConfiguration()
    ipvs: IPVSConfiguration = IPVSConfiguration()
    nftables: NFTablesConfiguration = NFTablesConfiguration()
    winkernel: WinkernelConfiguration = WinkernelConfiguration()
    windows_run_as_service: bool = False
    detect_local_mode: str = ""
    detect_local: DetectLocalConfiguration = DetectLocalConfiguration()
    cluster_cidr: str = msgspec.field(default="", name="clusterCIDR")
    node_port_addresses: tuple[str, ...] = ()
    oom_score_adj: Int32 = -999
    conntrack: ConntrackConfiguration = ConntrackConfiguration()
    config_sync_period: Duration = "15m0s"
    port_range: str = ""
    ipvsproxy: OwnConfiguration = OwnConfiguration()


class Remark(NamedTuple):
    """Something about a configuration that works which the log should tell once: an event with its keys."""

    event: str
    keys: Mapping[str, object]
    is_warning: bool = False


class Listener(NamedTuple):
    """Where a server listens: an address, which may be that of all interfaces (zeros), and a TCP port."""

    address: PackedAddr
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackConfig:
    """Limits and time-outs of connection tracking; whole seconds, and 0 leaves what the node has."""

    max_per_core: int
    min: int
    tcp_established_timeout_s: int
    tcp_close_wait_timeout_s: int
    tcp_be_liberal: bool  # False leaves it as it is
    udp_timeout_s: int
    udp_stream_timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The configuration as understood. Names as in v1alpha1; `_s` is seconds; a time-out of 0 changes nothing."""

    written: KubeProxyConfiguration  # the document in force, as /configz shows it
    flag_values: Mapping[str, str]  # every flag by name, without dashes, with its value as a text: /flagz
    config_file: str  # a path; empty: flags alone
    config_text: bytes = field(default=b"", compare=False, repr=False)  # what the file held when it was read
    remarks: tuple[Remark, ...]
    mode: ProxyMode
    hostname_override: str  # trimmed, lower case; empty means the host's own name
    bind_address: PackedAddr  # holds against the node's own address of its family, but for zeros
    healthz: Listener | None  # None: not served
    metrics: Listener | None  # None: not served
    bind_address_hard_fail: bool
    allows_external_ips: bool  # the gate AllowServiceExternalIPs
    oom_score_adj: int
    conntrack: ConntrackConfig
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
    estimation: Estimation
    service_metrics: int  # so many Service ports have metrics of their own; 0: none, and nothing is read for them
    proc_sys_net: str  # the folder where settings of the network are read and written


class PlanFormat(StrEnum):
    """What `ipvsproxy plan -o` prints: the format of the tool of this name."""

    IPVSADM = "ipvsadm"
    ADDRESSES = "addresses"
    IPSET = "ipset"
    IPTABLES = "iptables"
    IP6TABLES = "ip6tables"
    SYSCTL = "sysctl"
    JSON = "json"


class DiffFormat(StrEnum):
    """What `ipvsproxy diff -o` prints: lines for people, or one document for programs."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions:
    """Where a command that looks once finds the cluster, and which families count."""

    from_cluster: bool
    families: frozenset[Family]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(LookOptions):
    """What only a dry run asks. Without node addresses those of the Node object count."""

    format: PlanFormat
    node_addresses: tuple[PackedAddr, ...]
