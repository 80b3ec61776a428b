"""Every flag in one table, and how Go's flags are written: the flag package and pflag read words as this file does.

A flag names the field of the v1alpha1 document that it sets ("ipvs.syncPeriod"), so flags and file cannot come to mean
different things; the default stands at the field. What no document says (clean-up, the format of a plan) has no field.
Source: kubernetes v1.37.2 cmd/kube-proxy/app/options.go; github.com/spf13/pflag v1.0.10.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import TypeAlias

from ipvsproxy.config.field_errors import quoted
from ipvsproxy.config.targets import parse_client
from ipvsproxy.config.types import MAX_FLOAT32, DiffFormat, PlanFormat
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import PackedAddr, parse_addr
from ipvsproxy.model.enums import Family

FlagValue: TypeAlias = object  # what `parse` gave: it goes into msgspec.convert or back to the row's own reader

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})  # Go's strconv.ParseBool
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INT32 = range(-(2**31), 2**31)
_DECIMAL = re.compile(r"[-+]?[0-9]{1,10}")
_WHOLE = re.compile(  # Go's literals: by their prefix of another base, and with _ between digits
    r"[-+]?(?:0x(?:_?[0-9a-f])+|0b(?:_?[01])+|0o?(?:_?[0-7])+|[1-9](?:_?[0-9])*|0)", re.ASCII | re.IGNORECASE
)
_LONGEST = 64  # characters of a number: far more than 32 bits take
_QUOTED_LIST = re.compile(r'(?:[^",\n]*|"(?:[^"]|"")*")(?:,(?:[^",\n]*|"(?:[^"]|"")*"))*')
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_END = "--"  # of flags
_VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+\S*")


_BESIDE_FILE = frozenset({"mode", "hostnameOverride", "ipvsproxy.master"})


class Group(StrEnum):
    """Headings of the help, in its order."""

    PROXY = "Proxy"
    API = "API server"
    NODE = "Node"
    SERVING = "Health and metrics"
    LOCAL = "Which traffic is local"
    IPVS = "IPVS"
    CONNTRACK = "Connection tracking"
    LOGGING = "Logging"
    OWN = "ipvsproxy's own"
    WITHOUT_EFFECT = "Accepted from kube-proxy's command lines, without an effect here"


class Commands(IntFlag):
    """Which commands take a flag."""

    PROXY = 1
    PLAN = 2
    DIFF = 4
    EXPLAIN = 8
    LOOKS = PLAN | DIFF | EXPLAIN
    EVERY = PROXY | LOOKS


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `parse` takes one word and raises ValueError with what is allowed; no `field`: not in a document."""

    name: str
    parse: Callable[[str], FlagValue]
    field: str
    group: Group
    metavar: str
    help: str
    short: str = ""
    commands: Commands = Commands.EVERY

    @property
    def is_switch(self) -> bool:
        """Whether it stands alone: `--flag` means true, and the next word is never its value."""
        return self.parse in {parse_bool, parse_version}

    @property
    def holds_against_file(self) -> bool:
        """Whether it counts beside --config; for read.py."""
        return self.group is Group.OWN or self.field.startswith("logging.") or self.field in _BESIDE_FILE

    @property
    def is_map(self) -> bool:
        """Whether its value is a list of pairs."""
        return self.parse in {parse_gates, parse_vmodule}

    @property
    def is_list(self) -> bool:
        """Whether giving it again adds to what was given before."""
        return self.parse in {parse_list, parse_addresses, parse_families} or self.is_map


def parse_bool(text: str) -> bool:
    """A boolean as Go reads it."""
    if text not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return text in _TRUE


def parse_int32(text: str) -> int:
    """A whole number of 32 bits, in the base that its prefix says: 010 is 8. Source: Go's strconv.ParseInt, base 0."""
    digits = text.replace("_", "").lstrip("+-")
    is_old_octal = digits.startswith("0") and digits.isdecimal()
    is_number = len(text) <= _LONGEST and _WHOLE.fullmatch(text)
    return _in_int32(int(digits, 8 if is_old_octal else 0) * (-1 if text.startswith("-") else 1) if is_number else None)


def parse_level(text: str) -> int:
    """A whole number of 32 bits, decimal. Source: component-base v0.37.2 logs/api/v1 VerbosityLevelPflag."""
    return _in_int32(int(text) if _DECIMAL.fullmatch(text) else None)


def _in_int32(number: int | None) -> int:
    if number is None or number not in _INT32:  # None would be looked for one by one
        raise ValueError(f"must be a whole number from {_INT32.start} to {_INT32.stop - 1}")
    return number


def parse_float(text: str) -> float:
    """A decimal number of 32 bits, as Go's float32 flags; never infinite, since JSON cannot say that."""
    if not _FLOAT.fullmatch(text) or abs(float(text)) > MAX_FLOAT32:
        raise ValueError("must be a number")
    return float(text)


def parse_version(text: str) -> bool:
    """Whether to print the version: true and raw do; differs: a version to pretend to (vX.Y.Z) changes nothing."""
    if text == "raw":
        return True
    return False if _VERSION.fullmatch(text) else parse_bool(text)


def parse_gates(text: str) -> list[tuple[str, bool]]:
    """A comma-separated list of gate=bool, blanks allowed. Source: component-base v0.37.2 cli/flag mapStringBool."""
    gates = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"missing bool value for {name.strip()}")
        gates.append((name.strip(), parse_bool(value.strip())))
    return gates


def parse_vmodule(text: str) -> list[tuple[str, int]]:
    """A comma-separated list of pattern=N. Source: component-base v0.37.2 logs/api/v1 VModuleConfigurationPFlag."""
    items = []
    for item in filter(None, text.split(",")):
        pattern, equals, level = item.partition("=")
        if not equals or not pattern or not level:
            raise ValueError(f"{quoted(item)} does not have the pattern=N format")
        items.append((pattern, parse_level(level)))
    return items


def parse_text(text: str) -> str:
    """Any text; what it may be is checked with the whole configuration."""
    return text


def parse_list(text: str) -> list[str]:
    """A line of CSV; empty text is an empty list. Source: pflag v1.0.10 string_slice.go."""
    if not _QUOTED_LIST.fullmatch(text):
        raise ValueError("quotes enclose whole items")
    return next(csv.reader([text])) if '"' in text else text.split(",") if text else []


def parse_plan_format(text: str) -> PlanFormat:
    """What `plan` is to print."""
    if text not in set(PlanFormat):
        raise ValueError(f"must be one of {', '.join(PlanFormat)}")
    return PlanFormat(text)


def parse_diff_format(text: str) -> DiffFormat:
    """What `diff` is to print."""
    if text not in set(DiffFormat):
        raise ValueError(f"must be one of {', '.join(DiffFormat)}")
    return DiffFormat(text)


def parse_addresses(text: str) -> list[PackedAddr]:
    """A comma-separated list of addresses."""
    addresses = [(item, parse_addr(item)) for item in parse_list(text)]
    for item, address in addresses:
        if address is None:
            raise ValueError(f"{quoted(item)} is not an IP address")
    return [address for _, address in addresses if address is not None]


def parse_families(text: str) -> list[Family]:
    """A comma-separated list of families in Kubernetes' spelling."""
    by_label = {family.label: family for family in Family}
    items = parse_list(text)
    if not items or not by_label.keys() >= set(items):
        raise ValueError(f"must be {' or '.join(by_label)}, or both with a comma between")
    return [by_label[item] for item in items]


VERSION = Flag(
    "--version", parse_version, "", Group.PROXY, "", "Print the version and exit.", commands=Commands.PROXY
)  # fmt: skip
HELP = Flag("--help", parse_bool, "", Group.PROXY, "", "Print this and exit.", short="-h")
CLEANUP = Flag(
    "--cleanup", parse_bool, "", Group.PROXY, "",
    "Remove everything of ours from the kernel, and exit.", commands=Commands.PROXY,
)  # fmt: skip
INIT_ONLY = Flag(
    "--init-only", parse_bool, "", Group.PROXY, "",
    "Do what needs privileges (modules, sysctls, IPVS time-outs), and exit. Needs no API server.",
    commands=Commands.PROXY,
)  # fmt: skip
CONFIG = Flag(
    "--config", parse_text, "", Group.PROXY, "FILE",
    "A KubeProxyConfiguration (v1alpha1) file, which is followed. Holds against most flags: see docs/configuration.md.",
)  # fmt: skip
WRITE_CONFIG_TO = Flag(
    "--write-config-to", parse_text, "", Group.PROXY, "FILE",
    "Write the configuration in force to this file, as YAML, and exit.", commands=Commands.PROXY,
)  # fmt: skip
MASTER = Flag(
    "--master", parse_text, "ipvsproxy.master", Group.API, "URL",
    "URL of the API server; holds against the one in the kubeconfig.",
)  # fmt: skip
PROXY_MODE = Flag(
    "--proxy-mode", parse_text, "mode", Group.PROXY, "MODE",
    "The proxy mode: ipvs, which blank means too. Holds against the mode in the file.",
)  # fmt: skip
HOSTNAME_OVERRIDE = Flag(
    "--hostname-override", parse_text, "hostnameOverride", Group.NODE, "NAME",
    "Name of the Node object of this node; the host's own name if not given.",
)  # fmt: skip
HEALTHZ_PORT = Flag(
    "--healthz-port", parse_int32, "", Group.SERVING, "PORT",
    "Deprecated: the port of a --healthz-bind-address without one; 0: no health server.",
)  # fmt: skip
METRICS_PORT = Flag(
    "--metrics-port", parse_int32, "", Group.SERVING, "PORT",
    "Deprecated: the port of a --metrics-bind-address without one; 0: no metrics server.",
)  # fmt: skip
OUTPUT = Flag(
    "--output", parse_plan_format, "", Group.OWN, "FORMAT",
    f"What to print: {', '.join(PlanFormat)}.", short="-o", commands=Commands.PLAN,
)  # fmt: skip
DIFF_OUTPUT = Flag(
    "--output", parse_diff_format, "", Group.OWN, "FORMAT",
    f"What to print: {' or '.join(DiffFormat)}; text if not given.", short="-o", commands=Commands.DIFF,
)  # fmt: skip
FROM_CLUSTER = Flag(
    "--from-cluster", parse_bool, "", Group.OWN, "",
    "Read the API server (--kubeconfig, or as a pod) instead of a folder.", commands=Commands.PLAN,
)  # fmt: skip
NODE_ADDRESSES = Flag(
    "--node-addresses", parse_addresses, "", Group.OWN, "IP,…",
    "The node's addresses, instead of those in the Node object's status.", commands=Commands.PLAN,
)  # fmt: skip
FROM = Flag(
    "--from", parse_client, "", Group.OWN, "CLIENT",
    "Show which rules a packet from there meets: ADDRESS, ADDRESS%INTERFACE (where it comes in), or node.",
    commands=Commands.EXPLAIN,
)  # fmt: skip
IP_FAMILIES = Flag(
    "--ip-families", parse_families, "", Group.OWN, "FAMILY,…",
    "Families that the node supports: IPv4, IPv6 or IPv4,IPv6, which is the default.", commands=Commands.LOOKS,
)  # fmt: skip

FLAGS: tuple[Flag, ...] = (
    PROXY_MODE, CONFIG, WRITE_CONFIG_TO,
    Flag("--nodeport-addresses", parse_list, "nodePortAddresses", Group.PROXY, "CIDR,…",
         "Networks of the node's addresses that serve node ports, or primary or all; all if not given."),
    Flag("--iptables-masquerade-bit", parse_int32, "iptables.masqueradeBit", Group.PROXY, "BIT",
         "The bit of the packet mark, 0 to 31, that says: masquerade this packet. In ipvs mode too."),
    Flag("--masquerade-all", parse_bool, "iptables.masqueradeAll", Group.PROXY, "",
         "Masquerade all traffic to cluster IPs, not only what comes from outside the cluster."),
    Flag("--feature-gates", parse_gates, "featureGates", Group.PROXY, "GATE=BOOL,…",
         "AllowServiceExternalIPs=false: external IPs are not served. Other gates have no effect here."),
    INIT_ONLY, CLEANUP, VERSION, HELP,
    Flag("--kubeconfig", parse_text, "clientConnection.kubeconfig", Group.API, "FILE",
         "How to reach the API server; if not given, by the ServiceAccount of the pod."),
    MASTER,
    HOSTNAME_OVERRIDE,
    Flag("--bind-address", parse_text, "bindAddress", Group.NODE, "IP",
         "Holds against the node's own address of its family, and makes that the first family. Not bound."),
    Flag("--oom-score-adj", parse_int32, "oomScoreAdj", Group.NODE, "N",
         "How willingly the kernel ends this process when memory is short: -1000 to 1000, never to first."),
    Flag("--healthz-bind-address", parse_text, "healthzBindAddress", Group.SERVING, "IP[:PORT]",
         "Where /healthz, /livez and /readyz are served."),
    HEALTHZ_PORT,
    Flag("--metrics-bind-address", parse_text, "metricsBindAddress", Group.SERVING, "IP[:PORT]",
         "Where /metrics, /configz and the like are served."),
    METRICS_PORT,
    Flag("--bind-address-hard-fail", parse_bool, "bindAddressHardFail", Group.SERVING, "",
         "End where one of these addresses cannot be bound, instead of trying again."),
    Flag("--detect-local-mode", parse_text, "detectLocalMode", Group.LOCAL, "MODE",
         "How traffic of local pods is told: ClusterCIDR (or blank), NodeCIDR, BridgeInterface, InterfaceNamePrefix."),
    Flag("--cluster-cidr", parse_text, "clusterCIDR", Group.LOCAL, "CIDR[,CIDR]",
         "Networks of the pods, at most one a family. ClusterCIDR: what comes from them is local."),
    Flag("--pod-bridge-interface", parse_text, "detectLocal.bridgeInterface", Group.LOCAL, "NAME",
         "BridgeInterface: what comes from this bridge is local."),
    Flag("--pod-interface-name-prefix", parse_text, "detectLocal.interfaceNamePrefix", Group.LOCAL, "PREFIX",
         "InterfaceNamePrefix: what comes from an interface whose name begins so is local."),
    Flag("--ipvs-scheduler", parse_text, "ipvs.scheduler", Group.IPVS, "NAME",
         "Scheduler of all virtual servers: rr (blank too), lc, sh, mh or another one of the kernel's."),
    Flag("--ipvs-strict-arp", parse_bool, "ipvs.strictARP", Group.IPVS, "",
         "Answer ARP only for addresses of the interface that was asked (arp_ignore 1, arp_announce 2)."),
    Flag("--ipvs-exclude-cidrs", parse_list, "ipvs.excludeCIDRs", Group.IPVS, "CIDR,…",
         "Leave virtual servers with these addresses alone when removing what is not wanted."),
    Flag("--ipvs-tcp-timeout", parse_text, "ipvs.tcpTimeout", Group.IPVS, "DURATION",
         "After how long an idle TCP connection is forgotten, in whole seconds; 0 leaves the kernel's value."),
    Flag("--ipvs-tcpfin-timeout", parse_text, "ipvs.tcpFinTimeout", Group.IPVS, "DURATION",
         "The same after a FIN."),
    Flag("--ipvs-udp-timeout", parse_text, "ipvs.udpTimeout", Group.IPVS, "DURATION",
         "The same for UDP."),
    Flag("--ipvs-sync-period", parse_text, "ipvs.syncPeriod", Group.IPVS, "DURATION",
         "How often everything is looked at again without a change; more than 0."),
    Flag("--ipvs-min-sync-period", parse_text, "ipvs.minSyncPeriod", Group.IPVS, "DURATION",
         "Least time between two syncs; 0: each change at once."),
    Flag("--conntrack-max-per-core", parse_int32, "conntrack.maxPerCore", Group.CONNTRACK, "N",
         "Connections to track for each processor, never less than now; 0 leaves the limit."),
    Flag("--conntrack-min", parse_int32, "conntrack.min", Group.CONNTRACK, "N",
         "Connections to track at least, whatever --conntrack-max-per-core makes."),
    Flag("--conntrack-tcp-timeout-established", parse_text, "conntrack.tcpEstablishedTimeout", Group.CONNTRACK,
         "DURATION", "After how long an idle TCP connection is forgotten; 0 leaves the node's value."),
    Flag("--conntrack-tcp-timeout-close-wait", parse_text, "conntrack.tcpCloseWaitTimeout", Group.CONNTRACK,
         "DURATION", "The same while one side has closed."),
    Flag("--conntrack-tcp-be-liberal", parse_bool, "conntrack.tcpBeLiberal", Group.CONNTRACK, "",
         "Track TCP packets outside of the window too (nf_conntrack_tcp_be_liberal 1)."),
    Flag("--conntrack-udp-timeout", parse_text, "conntrack.udpTimeout", Group.CONNTRACK, "DURATION",
         "After how long an unanswered UDP flow is forgotten; 0 leaves the node's value."),
    Flag("--conntrack-udp-timeout-stream", parse_text, "conntrack.udpStreamTimeout", Group.CONNTRACK, "DURATION",
         "The same for an answered one."),
    Flag("--v", parse_level, "logging.verbosity", Group.LOGGING, "LEVEL",
         "Log level: 2 and more logs every object that is changed.", short="-v"),
    Flag("--logging-format", parse_text, "logging.format", Group.LOGGING, "FORMAT",
         "text or json; if not given, text on a terminal and json elsewhere."),
    Flag("--manifests", parse_text, "ipvsproxy.manifests", Group.OWN, "DIR",
         "Take Services, EndpointSlices, Endpoints and Nodes from the YAML and JSON files in this folder; follow it."),
    Flag("--iptables-backend", parse_text, "ipvsproxy.iptablesBackend", Group.OWN, "BACKEND",
         "Where the rules go: legacy tables, nft, or auto: where the kubelet's are, nft if it has none."),
    Flag("--filter-verdict", parse_text, "ipvsproxy.filterVerdict", Group.OWN, "VERDICT",
         "What our filter says of packets to Services: accept, or return: the rules of others judge them too."),
    Flag("--ipvs-drain-timeout", parse_text, "ipvsproxy.drainTimeout", Group.OWN, "DURATION",
         "How long TCP connections to a server that leaves may go on, at most; 0: they end at once."),
    Flag("--ipvs-estimation", parse_text, "ipvsproxy.estimation", Group.OWN, "WHAT",
         "Rates of virtual and real servers: keep estimating as the node does, or off, which spares it some work."),
    Flag("--service-metrics", parse_int32, "ipvsproxy.serviceMetrics", Group.OWN, "N",
         "Metrics of connections, packets and bytes for up to N Service ports, five series each; 0: none."),
    Flag("--proc-sys-net", parse_text, "ipvsproxy.procSysNet", Group.OWN, "DIR",
         "Where the network's settings are: in a container, where /proc/sys is read-only, a mount of the host's."),
    OUTPUT, DIFF_OUTPUT, FROM_CLUSTER, NODE_ADDRESSES, IP_FAMILIES, FROM,
    Flag("--kube-api-content-type", parse_text, "clientConnection.contentType", Group.WITHOUT_EFFECT, "TYPE",
         "The watches ask for JSON."),
    Flag("--kube-api-qps", parse_float, "clientConnection.qps", Group.WITHOUT_EFFECT, "N",
         "A few watches need no limit."),
    Flag("--kube-api-burst", parse_int32, "clientConnection.burst", Group.WITHOUT_EFFECT, "N", "See --kube-api-qps."),
    Flag("--config-sync-period", parse_text, "configSyncPeriod", Group.WITHOUT_EFFECT, "DURATION",
         "The watches are followed; nothing is told again without a change."),
    Flag("--iptables-localhost-nodeports", parse_bool, "iptables.localhostNodePorts", Group.WITHOUT_EFFECT, "",
         "IPVS serves no node ports on loopback."),
    Flag("--iptables-sync-period", parse_text, "iptables.syncPeriod", Group.WITHOUT_EFFECT, "DURATION",
         "The iptables mode's."),
    Flag("--iptables-min-sync-period", parse_text, "iptables.minSyncPeriod", Group.WITHOUT_EFFECT, "DURATION",
         "The iptables mode's."),
    Flag("--profiling", parse_bool, "enableProfiling", Group.WITHOUT_EFFECT, "",
         "Nothing is served at /debug: that is for programs in Go."),
    Flag("--show-hidden-metrics-for-version", parse_text, "showHiddenMetricsForVersion", Group.WITHOUT_EFFECT,
         "VERSION", "No metric is hidden."),
    Flag("--vmodule", parse_vmodule, "logging.vmodule", Group.WITHOUT_EFFECT, "PATTERN=N,…",
         "Its patterns are names of kube-proxy's source files."),
    Flag("--log-flush-frequency", parse_text, "logging.flushFrequency", Group.WITHOUT_EFFECT, "DURATION",
         "Each line is written at once."),
    Flag("--log-text-split-stream", parse_bool, "logging.options.text.splitStream", Group.WITHOUT_EFFECT, "",
         "All lines go to standard error."),
    Flag("--log-text-info-buffer-size", parse_text, "logging.options.text.infoBufferSize", Group.WITHOUT_EFFECT,
         "SIZE", "See --log-flush-frequency."),
    Flag("--log-json-split-stream", parse_bool, "logging.options.json.splitStream", Group.WITHOUT_EFFECT, "",
         "See --log-text-split-stream."),
    Flag("--log-json-info-buffer-size", parse_text, "logging.options.json.infoBufferSize", Group.WITHOUT_EFFECT,
         "SIZE", "See --log-flush-frequency."),
)  # fmt: skip

FLAG_OF_FIELD: Mapping[str, str] = {flag.field: flag.name for flag in FLAGS if flag.field}


def flags_of(command: Commands) -> tuple[Flag, ...]:
    """The flags that a command takes, in the table's order."""
    return tuple(flag for flag in FLAGS if flag.commands & command)


def spell_plainly(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """The same words, each flag as one `--name=value`: what Go's spellings have in common. Ends at the first `--help`.

    Raises ConfigError for what is no flag, and for a flag without its value.
    """
    by_name = {name: flag for flag in flags for name in (flag.name, flag.short) if name}
    plain: list[str] = []
    left = iter(words)
    for word in left:
        if word == _END:
            _refuse_arguments(left)
            break
        flag, value = _split(word, by_name)
        if flag is HELP:
            if _is_on(HELP, value):
                return [*plain, HELP.name]
            continue
        plain.append(f"{flag.name}={_value(flag, left) if value is None else value}")
    return plain


def _split(word: str, by_name: Mapping[str, Flag]) -> tuple[Flag, str | None]:
    """The flag that a word names, and the value in the same word if there is one."""
    if not word.startswith("-") or word == "-":
        _refuse_arguments([word])
    name, equals, value = word.partition("=")
    if not word.startswith("--") and name not in by_name and name[:2] in by_name:  # -v2
        return by_name[name[:2]], word[2:]
    flag = by_name.get(name[:2] + name[2:].replace("_", "-"))
    if flag is None:
        hint = "--help lists all flags, behind a command those that it has"
        raise ConfigError(f"unknown flag {name}", "it is not there, or not for this command", hint)
    return flag, value if equals else None


def _refuse_arguments(words: Iterable[str]) -> None:
    for word in words:
        hint = "A command (plan, diff, explain, status, top) comes first; a switch takes its value as --flag=false"
        raise ConfigError(f"unexpected argument {quoted(word)}", "it is no flag and no flag's value", hint)


def _is_on(switch: Flag, value: str | None) -> bool:
    try:
        return value is None or bool(switch.parse(value))
    except ValueError as error:
        raise ConfigError(switch.name, f"invalid value {quoted(value or '')}: {error}") from error


def _value(flag: Flag, left: Iterator[str]) -> str:
    if flag.is_switch:
        return "true"
    for word in left:
        return word
    raise ConfigError(flag.name, "a value is missing", f"Write {flag.name}={flag.metavar}")
