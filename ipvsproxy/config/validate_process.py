"""The rules for what is not about Services: addresses to listen on, the process, connection tracking, gates, logs.

Source: as validate.py, which calls these; k8s.io/component-base v0.37.2 featuregate/feature_gate.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ipvsproxy.config.check import MAX_INT32, POSITIVE, ROOT, Check
from ipvsproxy.config.listen import listener
from ipvsproxy.config.types import ConntrackConfig, KubeProxyConfiguration, Listener, LogFormat, ProxyMode
from ipvsproxy.model.addr import PackedAddr, parse_addr

_LINUX = f"{ROOT}.KubeProxyLinuxConfiguration"
_CONNTRACK = f"{_LINUX}.KubeProxyConntrackConfiguration"
_OOM_SCORES = range(-1000, 1001)
_ANY_ADDRESS = PackedAddr(bytes(4))

EXTERNAL_IPS_GATE = "AllowServiceExternalIPs"
IPVS_GATE = "KubeProxyIPVS"
GATES_WITH_EFFECT = frozenset({EXTERNAL_IPS_GATE, IPVS_GATE})
_VERSION = re.compile(r"[0-9]+\.[0-9]+")
# k8s.io/apimachinery v0.37.2 pkg/api/resource/quantity.go
_QUANTITY = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?", re.ASCII)
_LOCKED_ON = frozenset({"PreferSameTrafficDistribution", "MultiCIDRServiceAllocator"})


def bind_address(check: Check, written: KubeProxyConfiguration) -> PackedAddr:
    """The address that holds against the node's own."""
    address = parse_addr(written.bind_address)
    if address is None:
        detail = "not a valid textual representation of an IP address"
        check.refuse("bindAddress", f"{ROOT}.BindAddress", written.bind_address, detail)
        return _ANY_ADDRESS
    return address


def healthz(check: Check, written: KubeProxyConfiguration) -> Listener | None:
    """Where health is served; None: nowhere."""
    if not written.healthz_bind_address:
        return None
    return listener(check, "healthzBindAddress", f"{ROOT}.HealthzBindAddress", written.healthz_bind_address)


def metrics(check: Check, written: KubeProxyConfiguration) -> Listener:
    """Where metrics are served; differs from health: blank is refused, as upstream does."""
    found = listener(check, "metricsBindAddress", f"{ROOT}.MetricsBindAddress", written.metrics_bind_address)
    return found or Listener(_ANY_ADDRESS, 0)


def oom_score_adj(check: Check, written: KubeProxyConfiguration) -> int:
    """What to write to /proc/self/oom_score_adj."""
    if written.oom_score_adj not in _OOM_SCORES:
        detail = "must be within the range [-1000, 1000]"
        check.refuse("oomScoreAdj", f"{_LINUX}.OOMScoreAdj", written.oom_score_adj, detail)
    return written.oom_score_adj


def conntrack(check: Check, written: KubeProxyConfiguration) -> ConntrackConfig:
    """Limits and time-outs of connection tracking."""
    section = written.conntrack

    def timeout(key: str, name: str, text: str) -> int:
        return check.timeout_s(f"conntrack.{key}", f"{_CONNTRACK}.{name}", text, MAX_INT32)

    return ConntrackConfig(
        max_per_core=check.not_negative("conntrack.maxPerCore", f"{_CONNTRACK}.MaxPerCore", section.max_per_core),
        min=check.not_negative("conntrack.min", f"{_CONNTRACK}.Min", section.min),
        tcp_established_timeout_s=timeout(
            "tcpEstablishedTimeout", "TCPEstablishedTimeout", section.tcp_established_timeout
        ),
        tcp_close_wait_timeout_s=timeout("tcpCloseWaitTimeout", "TCPCloseWaitTimeout", section.tcp_close_wait_timeout),
        tcp_be_liberal=section.tcp_be_liberal,
        udp_timeout_s=timeout("udpTimeout", "UDPTimeout", section.udp_timeout),
        udp_stream_timeout_s=timeout("udpStreamTimeout", "UDPStreamTimeout", section.udp_stream_timeout),
    )


def allows_external_ips(check: Check, written: KubeProxyConfiguration) -> bool:
    """What the feature gates say.

    differs: a gate that upstream does not know is no error, so that the same file starts us whatever release of
    kube-proxy it was written for; upstream refuses it as "unrecognized feature gate".
    """
    gates: Mapping[str, bool] = written.feature_gates
    for name in sorted(_LOCKED_ON & gates.keys()):
        if not gates[name]:
            detail = f"cannot set feature gate {name} to false, feature is locked to true"
            check.refuse("featureGates", f"{ROOT}.FeatureGates", f"{name}=false", detail)
    if not gates.get(IPVS_GATE, True):
        detail = f"must be true in mode {ProxyMode.IPVS}, the only one that ipvsproxy has"
        check.refuse("featureGates", f"{ROOT}.FeatureGates", f"{IPVS_GATE}=false", detail)
    return gates.get(EXTERNAL_IPS_GATE, True)


def client_connection(check: Check, written: KubeProxyConfiguration) -> str:
    """The kubeconfig file; empty: the pod's own access."""
    section = written.client_connection
    check.not_negative("clientConnection.burst", f"{ROOT}.ClientConnection.Burst", section.burst)
    return section.kubeconfig


def without_effect(check: Check, written: KubeProxyConfiguration) -> None:
    """What nothing here looks at, and is refused all the same where it is no value of its kind."""
    _periods_without_effect(check, written)
    version = written.show_hidden_metrics_for_version
    if version and not _VERSION.fullmatch(version):
        detail = "must be a version such as 1.36"
        check.refuse("showHiddenMetricsForVersion", f"{ROOT}.ShowHiddenMetricsForVersion", version, detail)
    for name, options in (("text", written.logging.options.text), ("json", written.logging.options.json)):
        size = options.info_buffer_size
        if isinstance(size, str) and not _QUANTITY.fullmatch(size):
            field = f"logging.options.{name}.infoBufferSize"
            check.refuse(field, f"{ROOT}.{field}", size, "must be a quantity such as 64Ki")


def _periods_without_effect(check: Check, written: KubeProxyConfiguration) -> None:
    period = check.duration("configSyncPeriod", f"{ROOT}.ConfigSyncPeriod", written.config_sync_period)
    if period is not None and period <= 0:
        check.refuse("configSyncPeriod", f"{ROOT}.ConfigSyncPeriod", written.config_sync_period, POSITIVE)
    for name, section in (("iptables", written.iptables), ("nftables", written.nftables)):
        check.duration(f"{name}.syncPeriod", f"{ROOT}.{name}.syncPeriod", section.sync_period)
        check.duration(f"{name}.minSyncPeriod", f"{ROOT}.{name}.minSyncPeriod", section.min_sync_period)
    if isinstance(written.logging.flush_frequency, str):
        path = f"{ROOT}.logging.flushFrequency"
        check.duration("logging.flushFrequency", path, written.logging.flush_frequency)


def log_format(check: Check, written: KubeProxyConfiguration) -> LogFormat:
    """How log lines look."""
    if written.logging.format in set(LogFormat):
        return LogFormat(written.logging.format)
    detail = "Unsupported log format, must be text or json"
    check.refuse("logging.format", f"{ROOT}.logging.format", written.logging.format, detail)
    return LogFormat.AUTO


def verbosity(check: Check, written: KubeProxyConfiguration) -> int:
    """The log level; and whether `vmodule` is one, though it changes nothing."""
    section, path = written.logging, f"{ROOT}.logging.vmodule"
    if section.vmodule and section.format == LogFormat.JSON:
        check.refuse("logging.vmodule", path, "", "Only supported for text log format", "Forbidden")
    for index, item in enumerate(section.vmodule):
        if not item.file_pattern:
            check.refuse("logging.vmodule", f"{path}[{index}]", "", "File pattern must not be empty", "Required value")
        if not item.verbosity >= 0:
            check.refuse("logging.vmodule", f"{path}[{index}]", item.verbosity, "Must be >= 0")
    if not 0 <= section.verbosity <= MAX_INT32:
        detail = f"must be within the range [0, {MAX_INT32}]"
        check.refuse("logging.verbosity", f"{ROOT}.logging.verbosity", section.verbosity, detail)
    return section.verbosity
