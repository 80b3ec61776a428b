"""From the configuration as written to the one as understood: every value parsed and checked, every error told at once.

Paths and texts are upstream's to the letter, oddities included, since people search for them; what upstream does not
check and the kernel would refuse later, at every sync, is marked "own".
Source: kubernetes v1.37.2 pkg/proxy/apis/config/validation/validation.go, cmd/kube-proxy/app/options.go;
k8s.io/component-base v0.37.2 logs/api/v1/options.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ipvsproxy.config.check import NOT_NEGATIVE, POSITIVE, ROOT, Check
from ipvsproxy.config.durations import NANOSECONDS_PER_SECOND
from ipvsproxy.config.field_errors import InvalidConfigError
from ipvsproxy.config.types import (
    DetectLocalMode,
    Duration,
    Estimation,
    FilterVerdict,
    IptablesBackend,
    KubeProxyConfiguration,
    ProxyConfig,
    ProxyMode,
)
from ipvsproxy.config.validate_process import (
    allows_external_ips,
    bind_address,
    client_connection,
    conntrack,
    healthz,
    log_format,
    metrics,
    oom_score_adj,
    verbosity,
    without_effect,
)
from ipvsproxy.model.addr import Cidr, family_of, parse_cidr
from ipvsproxy.model.names import DEFAULT_SCHEDULER

_IPVS = f"{ROOT}.KubeProxyIPVSConfiguration"
_DETECT_LOCAL = f"{ROOT}.DetectLocalConfiguration"

_SCHEDULER = re.compile(r"[a-z0-9_-]{1,15}")  # IP_VS_SCHEDNAME_MAXLEN 16, include/uapi/linux/ip_vs.h
_NOT_IN_INTERFACE_NAME = re.compile(r"[\s/]")  # net/core/dev.c dev_valid_name
_INTERFACE_NAME_BYTES = 15  # IFNAMSIZ - 1
_MAX_BIT = 31
_MAX_CIDRS = 2
_MAX_TIMEOUT_S = 2**32 - 1  # IPVS_CMD_ATTR_TIMEOUT_* are 32 bits wide

_CIDR_BLOCK = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
_NODE_PORT_KEYWORDS = {"primary": (), "localhost": ("127.0.0.0/8", "::1/128"), "all": ("0.0.0.0/0", "::/0")}
_NODE_PORT_ITEM = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'"
_CIDR_PAIR = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"


def validate(written: KubeProxyConfiguration, spellings: Mapping[str, str]) -> ProxyConfig:
    """The configuration as understood. Raises InvalidConfigError with every error.

    `spellings` tells how a field ("ipvs.syncPeriod") can be written ("--ipvs-sync-period"), for the messages.
    """
    check = Check(spellings)
    detect_local_mode = _detect_local_mode(check, written)
    sync_period, min_sync_period = _sync_periods(check, written)
    without_effect(check, written)
    config = ProxyConfig(
        written=written,
        flag_values={},
        config_file="",
        remarks=(),
        mode=_mode(check, written),
        hostname_override=_hostname(check, written),
        bind_address=bind_address(check, written),
        healthz=healthz(check, written),
        metrics=metrics(check, written),
        bind_address_hard_fail=written.bind_address_hard_fail,
        allows_external_ips=allows_external_ips(check, written),
        oom_score_adj=oom_score_adj(check, written),
        conntrack=conntrack(check, written),
        detect_local_mode=detect_local_mode,
        cluster_cidrs=_cluster_cidrs(check, written, detect_local_mode),
        bridge_interface=_bridge_interface(check, written, detect_local_mode),
        interface_name_prefix=_interface_name_prefix(check, written, detect_local_mode),
        masquerade_bit=_masquerade_bit(check, written),
        masquerade_all=written.iptables.masquerade_all,
        scheduler=_scheduler(check, written),
        strict_arp=written.ipvs.strict_arp,
        exclude_cidrs=_exclude_cidrs(check, written),
        tcp_timeout_s=_timeout_s(check, "ipvs.tcpTimeout", "TCPTimeout", written.ipvs.tcp_timeout),
        tcp_fin_timeout_s=_timeout_s(check, "ipvs.tcpFinTimeout", "TCPFinTimeout", written.ipvs.tcp_fin_timeout),
        udp_timeout_s=_timeout_s(check, "ipvs.udpTimeout", "UDPTimeout", written.ipvs.udp_timeout),
        sync_period_s=sync_period / NANOSECONDS_PER_SECOND,
        min_sync_period_s=min_sync_period / NANOSECONDS_PER_SECOND,
        log_format=log_format(check, written),
        verbosity=verbosity(check, written),
        node_port_cidrs=_node_port_cidrs(check, written),
        node_ports_on_primary="primary" in written.node_port_addresses,
        kubeconfig=client_connection(check, written),
        master=written.ipvsproxy.master,
        manifests=written.ipvsproxy.manifests,
        iptables_backend=_iptables_backend(check, written),
        filter_verdict=_filter_verdict(check, written),
        estimation=_estimation(check, written),
        service_metrics=_service_metrics(check, written),
        drain_timeout_s=_drain_timeout_s(check, written),
        proc_sys_net=_proc_sys_net(check, written),
    )
    if check.errors:
        raise InvalidConfigError(check.errors)
    return config


def _mode(check: Check, written: KubeProxyConfiguration) -> ProxyMode:
    if written.mode not in {"", *ProxyMode}:
        detail = f"must be {' or '.join(ProxyMode)}, or blank (blank means ipvs): ipvsproxy has no other mode"
        check.refuse("mode", f"{ROOT}.Mode.ProxyMode", written.mode, detail)
    return ProxyMode.IPVS


def _hostname(check: Check, written: KubeProxyConfiguration) -> str:
    name = written.hostname_override.strip()
    if written.hostname_override and not name:
        detail = "empty hostname-override is invalid"
        check.refuse("hostnameOverride", f"{ROOT}.HostnameOverride", written.hostname_override, detail)
    return name.lower()


def _detect_local_mode(check: Check, written: KubeProxyConfiguration) -> DetectLocalMode:
    if written.detect_local_mode in set(DetectLocalMode):
        return DetectLocalMode(written.detect_local_mode)
    if written.detect_local_mode:
        supported = ", ".join(f'"{mode}"' for mode in (*DetectLocalMode, ""))
        detail = f"supported values: {supported}"
        check.refuse(
            "detectLocalMode", f"{ROOT}.DetectLocalMode", written.detect_local_mode, detail, "Unsupported value"
        )
    return DetectLocalMode.CLUSTER_CIDR


def _cluster_cidrs(check: Check, written: KubeProxyConfiguration, mode: DetectLocalMode) -> tuple[Cidr, ...]:
    """In the other modes the value has no effect and is not checked, so what is no CIDR is left out."""
    field, path = "clusterCIDR", f"{_DETECT_LOCAL}.ClusterCIDRs"
    texts = written.cluster_cidr.split(",") if written.cluster_cidr else []
    if mode is not DetectLocalMode.CLUSTER_CIDR:
        return tuple(cidr for cidr in map(parse_cidr, texts) if cidr)
    if len(texts) > _MAX_CIDRS:
        check.refuse(field, path, texts, _CIDR_PAIR)
        return ()
    cidrs = tuple(_cidrs(check, field, path, texts, _CIDR_BLOCK))
    if len(cidrs) > len({family_of(cidr.network) for cidr in cidrs}):
        check.refuse(field, path, texts, _CIDR_PAIR)
    return cidrs


def _node_port_cidrs(check: Check, written: KubeProxyConfiguration) -> tuple[Cidr, ...]:
    """The networks, with the keywords all and localhost as the networks they stand for; primary depends on the node."""
    field, path = "nodePortAddresses", f"{ROOT}.NodePortAddresses"
    cidrs: list[Cidr] = []
    for index, text in enumerate(written.node_port_addresses):
        if text in _NODE_PORT_KEYWORDS and text in written.node_port_addresses[:index]:
            check.refuse(field, f"{path}[{index}]", text, "", "Duplicate value")
        elif text in _NODE_PORT_KEYWORDS:
            cidrs += (cidr for word in _NODE_PORT_KEYWORDS[text] if (cidr := parse_cidr(word)))
        elif (cidr := parse_cidr(text)) is not None:
            cidrs.append(cidr)
        else:
            check.refuse(field, f"{path}[{index}]", text, _NODE_PORT_ITEM)
    return tuple(cidrs)


def _exclude_cidrs(check: Check, written: KubeProxyConfiguration) -> tuple[Cidr, ...]:
    texts = written.ipvs.exclude_cidrs
    return tuple(_cidrs(check, "ipvs.excludeCIDRs", f"{_IPVS}.ExcludeCidrs", texts, "must be a valid CIDR"))


def _cidrs(check: Check, field: str, path: str, texts: tuple[str, ...] | list[str], detail: str) -> Iterator[Cidr]:
    for index, text in enumerate(texts):
        cidr = parse_cidr(text)
        if cidr is None:
            check.refuse(field, f"{path}[{index}]", text, detail)
        else:
            yield cidr


def _bridge_interface(check: Check, written: KubeProxyConfiguration, mode: DetectLocalMode) -> str:
    name = written.detect_local.bridge_interface
    if mode is DetectLocalMode.BRIDGE_INTERFACE:
        field, path = "detectLocal.bridgeInterface", f"{_DETECT_LOCAL}.InterfaceName"
        _interface(check, field, path, name, _INTERFACE_NAME_BYTES)
    return name


def _interface_name_prefix(check: Check, written: KubeProxyConfiguration, mode: DetectLocalMode) -> str:
    prefix = written.detect_local.interface_name_prefix
    if mode is DetectLocalMode.INTERFACE_NAME_PREFIX:
        field, path = "detectLocal.interfaceNamePrefix", f"{_DETECT_LOCAL}.InterfacePrefix"
        _interface(check, field, path, prefix, _INTERFACE_NAME_BYTES - len("+"))  # iptables adds the plus sign
    return prefix


def _interface(check: Check, field: str, path: str, name: str, max_bytes: int) -> None:
    if not name:
        check.refuse(field, path, name, "must not be empty")
    elif len(name.encode(errors="surrogateescape")) > max_bytes or _NOT_IN_INTERFACE_NAME.search(name):  # own
        check.refuse(field, path, name, f"must be at most {max_bytes} bytes without blanks and slashes")


def _masquerade_bit(check: Check, written: KubeProxyConfiguration) -> int:
    bit = written.iptables.masquerade_bit
    if not 0 <= bit <= _MAX_BIT:
        path = f"{ROOT}.KubeProxyIPTablesConfiguration.MasqueradeBit"
        check.refuse("iptables.masqueradeBit", path, bit, f"must be within the range [0, {_MAX_BIT}]")
    return bit


def _scheduler(check: Check, written: KubeProxyConfiguration) -> str:
    """own: whether the kernel has it is found out at start; a name of another form no kernel can have."""
    scheduler = written.ipvs.scheduler or DEFAULT_SCHEDULER
    if not _SCHEDULER.fullmatch(scheduler):
        detail = f"must be 1 to 15 characters of a-z, 0-9, - and _, or blank (blank means {DEFAULT_SCHEDULER})"
        check.refuse("ipvs.scheduler", f"{_IPVS}.Scheduler", scheduler, detail)
    return scheduler


def _timeout_s(check: Check, field: str, name: str, text: Duration) -> int:
    return check.timeout_s(field, f"{_IPVS}.{name}", text, _MAX_TIMEOUT_S)


def _sync_periods(check: Check, written: KubeProxyConfiguration) -> tuple[int, int]:
    """Both in nanoseconds."""
    field, path, text = "ipvs.syncPeriod", f"{ROOT}.SyncPeriod", written.ipvs.sync_period
    min_field, min_path, min_text = "ipvs.minSyncPeriod", f"{ROOT}.MinSyncPeriod", written.ipvs.min_sync_period
    period = check.duration(field, path, text)
    min_period = check.duration(min_field, min_path, min_text)
    if period is not None and period <= 0:
        check.refuse(field, path, text, POSITIVE)
    if min_period is not None and min_period < 0:
        check.refuse(min_field, min_path, min_text, NOT_NEGATIVE)
    if period is not None and min_period is not None and min_period > period:
        # Upstream names the one field and shows the other's value; the flag is that of the value.
        check.refuse(min_field, path, min_text, f"must be greater than or equal to {min_path}")
    return period or 0, min_period or 0


def _iptables_backend(check: Check, written: KubeProxyConfiguration) -> IptablesBackend:
    """Own: upstream finds it out by itself, always."""
    backend = written.ipvsproxy.iptables_backend
    if backend in set(IptablesBackend):
        return IptablesBackend(backend)
    detail = f"must be {', '.join(IptablesBackend)}"
    check.refuse("ipvsproxy.iptablesBackend", f"{ROOT}.ipvsproxy.iptablesBackend", backend, detail)
    return IptablesBackend.AUTO


def _proc_sys_net(check: Check, written: KubeProxyConfiguration) -> str:
    """Own: upstream must be privileged to set them."""
    folder = written.ipvsproxy.proc_sys_net
    if not folder.startswith("/"):
        check.refuse("ipvsproxy.procSysNet", f"{ROOT}.ipvsproxy.procSysNet", folder, "must be an absolute path")
    return folder


def _estimation(check: Check, written: KubeProxyConfiguration) -> Estimation:
    """Own: upstream leaves it to the kernel (K39)."""
    estimation = written.ipvsproxy.estimation
    if estimation in set(Estimation):
        return Estimation(estimation)
    detail = f"must be {' or '.join(Estimation)}"
    check.refuse("ipvsproxy.estimation", f"{ROOT}.ipvsproxy.estimation", estimation, detail)
    return Estimation.KEEP


def _service_metrics(check: Check, written: KubeProxyConfiguration) -> int:
    """Own: upstream has no numbers of a Service (K53)."""
    field = "ipvsproxy.serviceMetrics"
    return check.not_negative(field, f"{ROOT}.{field}", written.ipvsproxy.service_metrics)


def _filter_verdict(check: Check, written: KubeProxyConfiguration) -> FilterVerdict:
    """Own: upstream's filter always returns."""
    verdict = written.ipvsproxy.filter_verdict
    if verdict in set(FilterVerdict):
        return FilterVerdict(verdict)
    detail = f"must be {' or '.join(FilterVerdict)}"
    check.refuse("ipvsproxy.filterVerdict", f"{ROOT}.ipvsproxy.filterVerdict", verdict, detail)
    return FilterVerdict.ACCEPT


def _drain_timeout_s(check: Check, written: KubeProxyConfiguration) -> float:
    """Own: upstream waits for as long as the kernel remembers the connection."""
    field, path, text = "ipvsproxy.drainTimeout", f"{ROOT}.ipvsproxy.drainTimeout", written.ipvsproxy.drain_timeout
    nanoseconds = check.duration(field, path, text) or 0
    if nanoseconds < 0:
        check.refuse(field, path, text, NOT_NEGATIVE)
    return nanoseconds / NANOSECONDS_PER_SECOND
