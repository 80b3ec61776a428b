"""The rules for a whole configuration. Paths and texts are those that kube-proxy 1.37.2 prints."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.config.field_errors import InvalidConfigError
from ipvsproxy.config.types import DetectLocalMode, KubeProxyConfiguration
from ipvsproxy.config.validate import validate
from ipvsproxy.model.addr import format_endpoint, parse_cidr

IPVS = "KubeProxyConfiguration.KubeProxyIPVSConfiguration"
NODE_PORTS = "KubeProxyConfiguration.NodePortAddresses"
NODE_PORT_ITEM = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'"
DETECT_LOCAL = "KubeProxyConfiguration.DetectLocalConfiguration"
BLOCK = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
PAIR = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"


def written(document):
    return msgspec.convert(document, KubeProxyConfiguration)


def errors_of(document, spellings=None):
    with pytest.raises(InvalidConfigError) as caught:
        validate(written(document), spellings or {})
    return str(caught.value).splitlines()


def accepted(document):
    return validate(written(document), {})


@pytest.mark.parametrize(
    "document,error",
    [
        pytest.param(
            {"mode": "iptables"},
            'KubeProxyConfiguration.Mode.ProxyMode: Invalid value: "iptables": must be ipvs, or blank '
            "(blank means ipvs): ipvsproxy has no other mode",
            id="mode iptables",
        ),
        pytest.param(
            {"mode": "IPVS"},
            'KubeProxyConfiguration.Mode.ProxyMode: Invalid value: "IPVS": must be ipvs, or blank '
            "(blank means ipvs): ipvsproxy has no other mode",
            id="mode in capitals",
        ),
        pytest.param(
            {"hostnameOverride": " \t"},
            'KubeProxyConfiguration.HostnameOverride: Invalid value: " \\t": empty hostname-override is invalid',
            id="a blank hostname",
        ),
        pytest.param(
            {"detectLocalMode": "clustercidr"},
            'KubeProxyConfiguration.DetectLocalMode: Unsupported value: "clustercidr": supported values: '
            '"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""',
            id="an unknown local mode",
        ),
        pytest.param(
            {"detectLocalMode": "BridgeInterface"},
            f'{DETECT_LOCAL}.InterfaceName: Invalid value: "": must not be empty',
            id="bridge mode without a bridge",
        ),
        pytest.param(
            {"detectLocalMode": "InterfaceNamePrefix"},
            f'{DETECT_LOCAL}.InterfacePrefix: Invalid value: "": must not be empty',
            id="prefix mode without a prefix",
        ),
        pytest.param(
            {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "sixteen-letters-"}},
            f'{DETECT_LOCAL}.InterfaceName: Invalid value: "sixteen-letters-": '
            "must be at most 15 bytes without blanks and slashes",
            id="a bridge name longer than the kernel's",
        ),
        pytest.param(
            {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "fifteen-letters"}},
            f'{DETECT_LOCAL}.InterfacePrefix: Invalid value: "fifteen-letters": '
            "must be at most 14 bytes without blanks and slashes",
            id="a prefix that leaves no room for iptables' plus sign",
        ),
        pytest.param(
            {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "cni 0"}},
            f'{DETECT_LOCAL}.InterfaceName: Invalid value: "cni 0": '
            "must be at most 15 bytes without blanks and slashes",
            id="a bridge name with a blank",
        ),
        pytest.param(
            {"clusterCIDR": "10.244.0.0"},
            f'{DETECT_LOCAL}.ClusterCIDRs[0]: Invalid value: "10.244.0.0": {BLOCK}',
            id="a cluster CIDR without length",
        ),
        pytest.param(
            {"clusterCIDR": "10.244.0.0/16, fd00::/56"},
            f'{DETECT_LOCAL}.ClusterCIDRs[1]: Invalid value: " fd00::/56": {BLOCK}',
            id="a blank in a list of cluster CIDRs",
        ),
        pytest.param(
            {"clusterCIDR": "10.1.0.0/16,10.2.0.0/16"},
            f'{DETECT_LOCAL}.ClusterCIDRs: Invalid value: ["10.1.0.0/16","10.2.0.0/16"]: {PAIR}',
            id="two cluster CIDRs of one family",
        ),
        pytest.param(
            {"clusterCIDR": "a,b,c"},
            f'{DETECT_LOCAL}.ClusterCIDRs: Invalid value: ["a","b","c"]: {PAIR}',
            id="three cluster CIDRs",
        ),
        pytest.param(
            {"nodePortAddresses": ["192.0.2.0/24", "192.0.2.11"]},
            f'{NODE_PORTS}[1]: Invalid value: "192.0.2.11": {NODE_PORT_ITEM}',
            id="an address instead of a network for node ports",
        ),
        pytest.param(
            {"nodePortAddresses": ["Primary"]},
            f'{NODE_PORTS}[0]: Invalid value: "Primary": {NODE_PORT_ITEM}',
            id="a keyword in capitals",
        ),
        pytest.param(
            {"nodePortAddresses": ["primary", "192.0.2.0/24", "primary"]},
            f'{NODE_PORTS}[2]: Duplicate value: "primary"',
            id="primary twice",
        ),
        pytest.param({"nodePortAddresses": ["all", "all"]}, f'{NODE_PORTS}[1]: Duplicate value: "all"', id="all twice"),
        pytest.param(
            {"nodePortAddresses": ["localhost", "localhost"]},
            f'{NODE_PORTS}[1]: Duplicate value: "localhost"',
            id="localhost twice",
        ),
        pytest.param(
            {"iptables": {"masqueradeBit": 32}},
            "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: "
            "must be within the range [0, 31]",
            id="a masquerade bit too high",
        ),
        pytest.param(
            {"iptables": {"masqueradeBit": -1}},
            "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: "
            "must be within the range [0, 31]",
            id="a masquerade bit below zero",
        ),
        pytest.param(
            {"ipvs": {"scheduler": "a-very-long-name"}},
            f'{IPVS}.Scheduler: Invalid value: "a-very-long-name": '
            "must be 1 to 15 characters of a-z, 0-9, - and _, or blank (blank means rr)",
            id="a scheduler name longer than the kernel's",
        ),
        pytest.param(
            {"ipvs": {"scheduler": "RR"}},
            f'{IPVS}.Scheduler: Invalid value: "RR": '
            "must be 1 to 15 characters of a-z, 0-9, - and _, or blank (blank means rr)",
            id="a scheduler name in capitals",
        ),
        pytest.param(
            {"ipvs": {"excludeCIDRs": ["10.0.0.0/8", "10.0.0.1"]}},
            f'{IPVS}.ExcludeCidrs[1]: Invalid value: "10.0.0.1": must be a valid CIDR',
            id="an excluded CIDR without length",
        ),
        pytest.param(
            {"ipvs": {"tcpTimeout": "-1s"}},
            f'{IPVS}.TCPTimeout: Invalid value: "-1s": must be greater than or equal to 0',
            id="a negative TCP time-out",
        ),
        pytest.param(
            {"ipvs": {"tcpFinTimeout": "-1ns"}},
            f'{IPVS}.TCPFinTimeout: Invalid value: "-1ns": must be greater than or equal to 0',
            id="a slightly negative FIN time-out",
        ),
        pytest.param(
            {"ipvs": {"udpTimeout": "5"}},
            f'{IPVS}.UDPTimeout: Invalid value: "5": '
            "must be a duration such as 1m30s, 500ms or 0, of less than 292 years",
            id="a UDP time-out without unit",
        ),
        pytest.param(
            {"ipvs": {"tcpTimeout": "2000000h"}},
            f'{IPVS}.TCPTimeout: Invalid value: "2000000h": must be less than or equal to 4294967295s',
            id="a time-out that no netlink message can carry",
        ),
        pytest.param(
            {"ipvs": {"syncPeriod": "0s"}},
            'KubeProxyConfiguration.SyncPeriod: Invalid value: "0s": must be greater than 0',
            id="a sync period of nothing",
        ),
        pytest.param(
            {"ipvs": {"minSyncPeriod": "-1s"}},
            'KubeProxyConfiguration.MinSyncPeriod: Invalid value: "-1s": must be greater than or equal to 0',
            id="a negative least sync period",
        ),
        pytest.param(
            {"ipvs": {"minSyncPeriod": "1m"}},
            'KubeProxyConfiguration.SyncPeriod: Invalid value: "1m": '
            "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
            id="a least sync period above the sync period",
        ),
        pytest.param(
            {"logging": {"format": "xml"}},
            'KubeProxyConfiguration.logging.format: Invalid value: "xml": Unsupported log format, must be text or json',
            id="an unknown log format",
        ),
        pytest.param(
            {"logging": {"verbosity": -1}},
            "KubeProxyConfiguration.logging.verbosity: Invalid value: -1: must be within the range [0, 2147483647]",
            id="a negative log level",
        ),
        pytest.param(
            {"ipvsproxy": {"iptablesBackend": "nftables"}},
            'KubeProxyConfiguration.ipvsproxy.iptablesBackend: Invalid value: "nftables": must be auto, legacy, nft',
            id="an unknown iptables flavour",
        ),
        pytest.param(
            {"ipvsproxy": {"drainTimeout": "-1s"}},
            'KubeProxyConfiguration.ipvsproxy.drainTimeout: Invalid value: "-1s": must be greater than or equal to 0',
            id="a drain time below 0",
        ),
        pytest.param(
            {"ipvsproxy": {"drainTimeout": "long"}},
            'KubeProxyConfiguration.ipvsproxy.drainTimeout: Invalid value: "long": must be a duration such as 1m30s, '
            "500ms or 0, of less than 292 years",
            id="a drain time that is none",
        ),
        pytest.param(
            {"ipvsproxy": {"procSysNet": "host/net"}},
            'KubeProxyConfiguration.ipvsproxy.procSysNet: Invalid value: "host/net": must be an absolute path',
            id="a folder of settings that depends on where the program was started",
        ),
    ],
)
def test_a_bad_field_is_refused_in_upstreams_words(document, error):
    assert errors_of(document) == [error]


def test_all_errors_are_told_at_once():
    errors = errors_of({"mode": "nftables", "ipvs": {"scheduler": "?", "excludeCIDRs": ["x", "y"]}})
    assert [line.partition(":")[0] for line in errors] == [
        "KubeProxyConfiguration.Mode.ProxyMode",
        f"{IPVS}.Scheduler",
        f"{IPVS}.ExcludeCidrs[0]",
        f"{IPVS}.ExcludeCidrs[1]",
    ]


def test_an_error_names_the_flag_where_the_field_has_one():
    (error,) = errors_of({"ipvs": {"scheduler": "?"}}, {"ipvs.scheduler": "--ipvs-scheduler"})
    assert error.endswith(" (--ipvs-scheduler)")


@pytest.mark.parametrize("bit", [0, 31])
def test_the_ends_of_the_masquerade_bits_range_are_in_it(bit):
    assert accepted({"iptables": {"masqueradeBit": bit}}).masquerade_bit == bit


def test_the_least_sync_period_may_equal_the_sync_period():
    config = accepted({"ipvs": {"syncPeriod": "5s", "minSyncPeriod": "5s"}})
    assert (config.sync_period_s, config.min_sync_period_s) == (5.0, 5.0)


@pytest.mark.parametrize("scheduler", ["rr", "sh", "mh", "lblcr", "my_sched-15char"])
def test_any_name_that_a_kernel_module_could_have_is_a_scheduler(scheduler):
    assert accepted({"ipvs": {"scheduler": scheduler}}).scheduler == scheduler


@pytest.mark.parametrize(
    "text,cidrs",
    [
        pytest.param("10.244.0.0/16", ["10.244.0.0/16"], id="IPv4 alone"),
        pytest.param("fd00:10:244::/56", ["fd00:10:244::/56"], id="IPv6 alone"),
        pytest.param(
            "fd00:10:244::/56,10.244.0.0/16", ["fd00:10:244::/56", "10.244.0.0/16"], id="a pair in this order"
        ),
        pytest.param("10.244.1.2/16", ["10.244.0.0/16"], id="host bits are cleared"),
        pytest.param("", [], id="none"),
    ],
)
def test_cluster_cidrs_are_one_network_a_family(text, cidrs):
    assert accepted({"clusterCIDR": text}).cluster_cidrs == tuple(parse_cidr(cidr) for cidr in cidrs)


@pytest.mark.parametrize(
    "items,cidrs,on_primary",
    [
        pytest.param([], [], False, id="none: every address"),
        pytest.param(
            ["192.0.2.0/24", "fd00::1/8"], ["192.0.2.0/24", "fd00::/8"], False, id="networks, host bits cleared"
        ),
        pytest.param(["192.0.2.0/24", "192.0.2.0/24"], ["192.0.2.0/24"] * 2, False, id="a network twice, as upstream"),
        pytest.param(["primary"], [], True, id="primary"),
        pytest.param(["all"], ["0.0.0.0/0", "::/0"], False, id="all"),
        pytest.param(["localhost"], ["127.0.0.0/8", "::1/128"], False, id="localhost"),
        pytest.param(
            ["localhost", "primary", "192.0.2.0/24"], ["127.0.0.0/8", "::1/128", "192.0.2.0/24"], True, id="a mixture"
        ),
    ],
)
def test_addresses_for_node_ports_are_networks_and_keywords(items, cidrs, on_primary):
    config = accepted({"nodePortAddresses": items})
    assert config.node_port_cidrs == tuple(parse_cidr(cidr) for cidr in cidrs)
    assert config.node_ports_on_primary is on_primary


@pytest.mark.parametrize("mode", ["NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"])
def test_cluster_cidrs_are_not_checked_where_they_have_no_effect(mode):
    document = {
        "detectLocalMode": mode,
        "clusterCIDR": "10.1.0.0/16,10.2.0.0/16,nonsense",
        "detectLocal": {"bridgeInterface": "cni0", "interfaceNamePrefix": "cali"},
    }
    config = accepted(document)
    assert config.detect_local_mode is DetectLocalMode(mode)
    assert config.cluster_cidrs == (parse_cidr("10.1.0.0/16"), parse_cidr("10.2.0.0/16"))


@pytest.mark.parametrize("mode", ["", "ClusterCIDR", "NodeCIDR"])
def test_interface_names_are_not_checked_where_they_have_no_effect(mode):
    names = {"bridgeInterface": "much longer than any interface", "interfaceNamePrefix": "/"}
    accepted({"detectLocalMode": mode, "detectLocal": names})


def test_the_longest_interface_names_fit():
    bridge = accepted({"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "fifteen-letters"}})
    prefix = accepted(
        {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "14-letters-abc"}}
    )
    assert (bridge.bridge_interface, prefix.interface_name_prefix) == ("fifteen-letters", "14-letters-abc")


def test_a_time_out_below_a_second_leaves_the_kernels_value_as_upstream_does():
    assert accepted({"ipvs": {"udpTimeout": "999ms"}}).udp_timeout_s == 0


LINUX = "KubeProxyConfiguration.KubeProxyLinuxConfiguration"
CONNTRACK = f"{LINUX}.KubeProxyConntrackConfiguration"
NOT_NEGATIVE = "must be greater than or equal to 0"


@pytest.mark.parametrize(
    "document,error",
    [
        pytest.param(
            {"bindAddress": "[::]"},
            'BindAddress: Invalid value: "[::]": not a valid textual representation of an IP address',
            id="an address in brackets",
        ),
        pytest.param(
            {"healthzBindAddress": "localhost"},
            'HealthzBindAddress: Invalid value: "localhost": must be IP:port',
            id="health: no port",
        ),
        pytest.param(
            {"healthzBindAddress": "::1:80"},
            'HealthzBindAddress: Invalid value: "::1:80": must be IP:port',
            id="health: IPv6 without brackets",
        ),
        pytest.param(
            {"healthzBindAddress": "localhost:80"},
            'HealthzBindAddress: Invalid value: "localhost": must be a valid IP',
            id="health: a name",
        ),
        pytest.param(
            {"healthzBindAddress": "0.0.0.0:0"},
            'HealthzBindAddress: Invalid value: "0": must be a valid port',
            id="health: port 0",
        ),
        pytest.param(
            {"metricsBindAddress": ""},
            'MetricsBindAddress: Invalid value: "": must be IP:port',
            id="metrics: blank",
        ),
        pytest.param(
            {"metricsBindAddress": "[::1]:65536"},
            'MetricsBindAddress: Invalid value: "65536": must be a valid port',
            id="metrics: a port of 17 bits",
        ),
        pytest.param(
            {"configSyncPeriod": "0s"},
            'ConfigSyncPeriod: Invalid value: "0s": must be greater than 0',
            id="config sync period",
        ),
        pytest.param(
            {"clientConnection": {"burst": -1}},
            f"ClientConnection.Burst: Invalid value: -1: {NOT_NEGATIVE}",
            id="burst",
        ),
        pytest.param(
            {"featureGates": {"PreferSameTrafficDistribution": False}},
            'FeatureGates: Invalid value: "PreferSameTrafficDistribution=false": '
            "cannot set feature gate PreferSameTrafficDistribution to false, feature is locked to true",
            id="a gate that is locked",
        ),
        pytest.param(
            {"featureGates": {"KubeProxyIPVS": False}},
            'FeatureGates: Invalid value: "KubeProxyIPVS=false": must be true in mode ipvs, '
            "the only one that ipvsproxy has",
            id="the gate of the mode",
        ),
        pytest.param(
            {"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}},
            "logging.vmodule: Forbidden: Only supported for text log format",
            id="vmodule with JSON",
        ),
        pytest.param(
            {"showHiddenMetricsForVersion": "abc"},
            'ShowHiddenMetricsForVersion: Invalid value: "abc": must be a version such as 1.36',
            id="a version that is none",
        ),
        pytest.param(
            {"logging": {"options": {"text": {"infoBufferSize": "abc"}}}},
            'logging.options.text.infoBufferSize: Invalid value: "abc": must be a quantity such as 64Ki',
            id="a size that is none",
        ),
        pytest.param(
            {"logging": {"options": {"json": {"infoBufferSize": "1KB"}}}},
            'logging.options.json.infoBufferSize: Invalid value: "1KB": must be a quantity such as 64Ki',
            id="a unit that is none",
        ),
        pytest.param(
            {"logging": {"vmodule": [{"verbosity": 1}]}},
            "logging.vmodule[0]: Required value: File pattern must not be empty",
            id="vmodule without a file",
        ),
        pytest.param(
            {"iptables": {"syncPeriod": "1 s"}},
            'iptables.syncPeriod: Invalid value: "1 s": must be a duration such as 1m30s, 500ms or 0, '
            "of less than 292 years",
            id="a period without effect that is none",
        ),
    ],
)
def test_what_is_not_about_services_is_refused_with_upstreams_path(document, error):
    assert errors_of(document) == [f"KubeProxyConfiguration.{error}"]


@pytest.mark.parametrize("score", [-1001, 1001])
def test_an_oom_score_beyond_the_kernels_range_is_refused(score):
    detail = "must be within the range [-1000, 1000]"
    assert errors_of({"oomScoreAdj": score}) == [f"{LINUX}.OOMScoreAdj: Invalid value: {score}: {detail}"]


@pytest.mark.parametrize(
    "field,value,shown",
    [
        ("maxPerCore", -1, "MaxPerCore: Invalid value: -1"),
        ("min", -1, "Min: Invalid value: -1"),
        ("tcpEstablishedTimeout", "-1s", 'TCPEstablishedTimeout: Invalid value: "-1s"'),
        ("tcpCloseWaitTimeout", "-1s", 'TCPCloseWaitTimeout: Invalid value: "-1s"'),
        ("udpTimeout", "-1s", 'UDPTimeout: Invalid value: "-1s"'),
        ("udpStreamTimeout", "-1s", 'UDPStreamTimeout: Invalid value: "-1s"'),
    ],
)
def test_k41_limits_of_connection_tracking_below_zero_are_refused(field, value, shown):
    assert errors_of({"conntrack": {field: value}}) == [f"{CONNTRACK}.{shown}: {NOT_NEGATIVE}"]


def test_k41_zero_leaves_what_the_node_has():
    zeros = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    conntrack = accepted({"conntrack": zeros}).conntrack
    assert (conntrack.max_per_core, conntrack.min) == (0, 0)
    assert (conntrack.tcp_established_timeout_s, conntrack.tcp_close_wait_timeout_s) == (0, 0)


def test_k07_each_time_out_is_set_alone_and_zero_leaves_the_kernels():
    config = accepted({"ipvs": {"tcpTimeout": "5s"}})
    assert (config.tcp_timeout_s, config.tcp_fin_timeout_s, config.udp_timeout_s) == (5, 0, 0)


def test_k47_an_excluded_address_is_a_network_of_one():
    assert accepted({"ipvs": {"excludeCIDRs": ["10.96.0.10/32"]}}).exclude_cidrs == (parse_cidr("10.96.0.10/32"),)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:65535", "127.0.0.1:10249"])
def test_where_to_listen_is_an_address_and_a_port(text):
    config = accepted({"healthzBindAddress": text})
    assert config.healthz is not None
    assert format_endpoint(*config.healthz) == text


def test_health_is_not_served_where_the_address_is_blank():
    assert accepted({"healthzBindAddress": ""}).healthz is None


def test_gates_that_are_unknown_are_taken():
    assert accepted({"featureGates": {"NoSuchGate": True, "KubeProxyIPVS": True}}).allows_external_ips is True


@pytest.mark.parametrize("size", ["0", "64Ki", "1.5M", ".5G", "5.", "+1e3", "1E-3", "128m", 4096, -1])
def test_a_size_is_a_quantity_as_kubernetes_writes_them(size):
    document = {"logging": {"options": {"text": {"infoBufferSize": size}}}, "showHiddenMetricsForVersion": "1.36"}
    assert accepted(document).written.logging.options.text.info_buffer_size == size
