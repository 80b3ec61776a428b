"""Flags and file together: a table of (arguments, file) → what is in force, what is told, or the exact error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipvsproxy.config.command_line import CleanUp, Plan, Prepare, Serve, Write, parse_command_line
from ipvsproxy.config.load import API_VERSION, KIND
from ipvsproxy.config.types import LogFormat, ProxyMode
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import parse_addr

KUBEADM = Path(__file__).parents[2] / "data/kubeadm"
KUBEADM_FILE = (KUBEADM / "config.conf").read_text()
KUBEADM_WORDS = (KUBEADM / "args.txt").read_text().split()
MODE = "KubeProxyConfiguration.Mode.ProxyMode"
ONLY_IPVS = "must be ipvs, or blank (blank means ipvs): ipvsproxy has no other mode"
LINUX = "KubeProxyConfiguration.KubeProxyLinuxConfiguration"
HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def command_of(words, text):
    def read_file(path):
        assert path == "c.yaml"
        return text.encode()

    return parse_command_line(["--config=c.yaml", *words], read_file)


def config_of(words, fields):
    command = command_of(words, HEAD + fields)
    assert isinstance(command, Serve)
    return command.config


def refusal(words, text):
    with pytest.raises(ConfigError) as caught:
        command_of(words, text)
    return str(caught.value)


def remarks_of(config):
    return {remark.event: dict(remark.keys) for remark in config.remarks}


@pytest.mark.parametrize(
    "words,fields,name,value",
    [
        pytest.param([], "mode: ipvs", "mode", ProxyMode.IPVS, id="mode"),
        pytest.param([], "mode: ''", "mode", ProxyMode.IPVS, id="an empty mode means ipvs"),
        pytest.param(["--proxy-mode=ipvs"], "mode: iptables", "mode", ProxyMode.IPVS, id="proxy-mode holds over mode"),
        pytest.param([], "hostnameOverride: ' N1 '", "hostname_override", "n1", id="a name in the file"),
        pytest.param(
            ["--hostname-override=n2"], "hostnameOverride: n1", "hostname_override", "n2", id="name: flag wins"
        ),
        pytest.param(
            ["--hostname-override="], "hostnameOverride: n1", "hostname_override", "n1", id="a blank flag does not"
        ),
        pytest.param(["--master=https://m"], "", "master", "https://m", id="master counts beside a file"),
        pytest.param(["-v4"], "logging: {verbosity: 1}", "verbosity", 4, id="the log level of the flag wins"),
        pytest.param([], "logging: {verbosity: 3}", "verbosity", 3, id="the log level of the file"),
        pytest.param(
            ["--logging-format=json"],
            "logging: {format: text}",
            "log_format",
            LogFormat.JSON,
            id="log format: flag wins",
        ),
        pytest.param(
            ["--ipvs-scheduler=lc"], "ipvs: {scheduler: sh}", "scheduler", "sh", id="any other flag is ignored"
        ),
        pytest.param(["--ipvs-scheduler=lc"], "", "scheduler", "rr", id="also where the file says nothing"),
        pytest.param(
            ["--masquerade-all"], "iptables: {masqueradeAll: false}", "masquerade_all", False, id="a switch too"
        ),
        pytest.param(
            ["--ipvs-drain-timeout=5s"], "ipvsproxy: {drainTimeout: 1m}", "drain_timeout_s", 5.0, id="our flags win"
        ),
        pytest.param([], "ipvsproxy: {drainTimeout: 1m}", "drain_timeout_s", 60.0, id="our own section"),
        pytest.param([], "ipvsproxy: {master: 'https://m'}", "master", "https://m", id="master in our own section"),
        pytest.param([], "ipvs: {syncPeriod: 0s}", "sync_period_s", 30.0, id="a period of zero is the default"),
        pytest.param([], "ipvs: {minSyncPeriod: 0s}", "min_sync_period_s", 0.0, id="least time between syncs: zero is"),
        pytest.param([], "iptables: {masqueradeBit: 0}", "masquerade_bit", 0, id="bit zero is bit zero"),
        pytest.param([], "iptables: {masqueradeBit: null}", "masquerade_bit", 14, id="a null says nothing"),
        pytest.param([], "oomScoreAdj: 0", "oom_score_adj", 0, id="an oom score of zero is zero"),
        pytest.param([], "oomScoreAdj: null", "oom_score_adj", -999, id="an oom score of null is the default"),
        pytest.param(
            [], "healthzBindAddress: ''", "healthz", (parse_addr("0.0.0.0"), 10256), id="health: empty is default"
        ),
        pytest.param(
            [], "bindAddress: '::'", "healthz", (parse_addr("::"), 10256), id="health follows the family of bindAddress"
        ),
        pytest.param(
            [],
            "bindAddress: '::'",
            "metrics",
            (parse_addr("::1"), 10249),
            id="metrics follow the family of bindAddress",
        ),
        pytest.param(
            [], "healthzBindAddress: 192.0.2.1", "healthz", (parse_addr("192.0.2.1"), 10256), id="a port is added"
        ),
        pytest.param([], "metricsBindAddress: '::'", "metrics", (parse_addr("::"), 10249), id="to IPv6 in brackets"),
        pytest.param(
            ["--metrics-port=0"], "", "metrics", (parse_addr("127.0.0.1"), 10249), id="port flags are ignored"
        ),
        pytest.param(["--healthz-port=0"], "", "healthz", (parse_addr("0.0.0.0"), 10256), id="also the one of health"),
        pytest.param([], "hostnameOverride: 2026-11-30", "hostname_override", "2026-11-30", id="a date is a text"),
        pytest.param([], "featureGates: {AllowServiceExternalIPs: false}", "allows_external_ips", False, id="a gate"),
        pytest.param([], "ipvs: {strictARP: yes}", "strict_arp", True, id="YAML 1.1 says yes"),
    ],
)
def test_file_and_flags_together(words, fields, name, value):
    assert getattr(config_of(words, fields), name) == value


@pytest.mark.parametrize(
    "words,text,message",
    [
        pytest.param(
            [],
            HEAD + "mode: iptables",
            f'{MODE}: Invalid value: "iptables": {ONLY_IPVS} '
            "(mode in c.yaml; give --proxy-mode=ipvs to start with this file as it is)",
            id="another mode in the file, and no flag",
        ),
        pytest.param(
            ["--proxy-mode="],
            HEAD + "mode: nftables",
            f'{MODE}: Invalid value: "nftables": {ONLY_IPVS} '
            "(mode in c.yaml; give --proxy-mode=ipvs to start with this file as it is)",
            id="another mode in the file, and a blank flag",
        ),
        pytest.param(
            ["--proxy-mode=iptables"],
            HEAD + "mode: ipvs",
            f'{MODE}: Invalid value: "iptables": {ONLY_IPVS} (--proxy-mode)',
            id="another mode in the flag",
        ),
        pytest.param(
            [],
            HEAD + "ipvs: {syncPeriod: 1s, minSyncPeriod: 2s}\noomScoreAdj: 1001",
            'KubeProxyConfiguration.SyncPeriod: Invalid value: "2s": must be greater than or equal to '
            "KubeProxyConfiguration.MinSyncPeriod (ipvs.minSyncPeriod in c.yaml)\n"
            f"{LINUX}.OOMScoreAdj: Invalid value: 1001: must be within the range "
            "[-1000, 1000] (oomScoreAdj in c.yaml)",
            id="every error at once, with the place in the file",
        ),
        pytest.param(
            [],
            "kind: KubeProxyConfiguration",
            "failed to decode: c.yaml: apiVersion is missing. Write apiVersion: kubeproxy.config.k8s.io/v1alpha1",
            id="no version",
        ),
        pytest.param(
            [],
            HEAD.replace("KubeProxyConfiguration", "KubeletConfiguration"),
            'failed to decode: c.yaml: kind is "KubeletConfiguration". Write kind: KubeProxyConfiguration',
            id="another kind",
        ),
        pytest.param([], "", "failed to decode: c.yaml: it holds no mapping of fields", id="an empty file"),
        pytest.param([], "- a", "failed to decode: c.yaml: it holds no mapping of fields", id="a list"),
        pytest.param(
            [],
            HEAD + "clusterCIDR: 5",
            "failed to decode: c.yaml: Expected `str`, got `int` - at `$.clusterCIDR`",
            id="a field of another type",
        ),
        pytest.param(
            [],
            HEAD + "oomScoreAdj: 4294967296",
            "failed to decode: c.yaml: Expected `int` <= 2147483647 - at `$.oomScoreAdj`",
            id="a number of 33 bits",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(words, text, message):
    assert refusal(words, text) == message


def test_broken_yaml_is_refused_with_its_line():
    message = refusal([], HEAD + "ipvs: [")
    assert message.startswith("failed to decode: c.yaml: ")
    assert "line 4" in message


@pytest.mark.parametrize("depth", [1_500, 100_000])
def test_a_file_nested_without_end_is_refused_and_not_followed_down(depth):
    assert refusal([], nested(depth)).startswith("failed to decode: c.yaml: ")


def test_a_file_nested_hundreds_of_levels_deep_is_read_or_refused_as_this_python_can_follow_it():
    """3.11 cannot, 3.12 can."""
    try:
        command = command_of([], nested(600))
    except ConfigError as error:
        assert str(error) == "failed to decode: c.yaml: it is nested hundreds of levels deep"  # noqa: PT017  # or none
    else:
        assert isinstance(command, Serve)


def nested(depth: int) -> str:
    return f"{HEAD}x: {'[' * depth}{']' * depth}"


@pytest.mark.parametrize(
    "fields",
    [
        "bindAddress: '0'",
        "bindAddress: 0s",
        "bindAddress: {}",
        "healthzBindAddress: 0h",
        "metricsBindAddress: []",
        "metricsBindAddress: false",
        "clientConnection: {contentType: 0}",
        "clientConnection: {qps: ''}",
        "clientConnection: {burst: false}",
        "logging: {flushFrequency: false}",
        "logging: {flushFrequency: ''}",
        "ipvs: {syncPeriod: false}",
        "ipvs: {syncPeriod: ''}",
        "nftables: {minSyncPeriod: []}",
        "configSyncPeriod: 0",
    ],
)
def test_a_zero_of_another_kind_is_refused_and_not_taken_for_the_default(fields):
    assert fields.rpartition(": ")[0].rpartition("{")[2].lower() in refusal([], HEAD + fields).lower()


@pytest.mark.parametrize(
    "fields",
    [
        "bindAddress: ''\nhealthzBindAddress: ''\nmetricsBindAddress: ''",
        "clientConnection: {contentType: '', qps: 0, burst: 0}",
        "clientConnection: {qps: 0.0}",
        "logging: {flushFrequency: 0}",
        "logging: {flushFrequency: 0s}",
        "ipvs: {syncPeriod: 0s}\niptables: {syncPeriod: '0', minSyncPeriod: 0h}",
        "nftables: {syncPeriod: 0s, minSyncPeriod: 0ms}\nconfigSyncPeriod: 0s",
    ],
)
def test_a_zero_of_the_fields_own_kind_means_the_default(fields):
    assert config_of([], fields).written == config_of([], "").written


def levels(anchor: str, alias: str) -> str:
    """Each level holds the one before ten times: 10^12 values, as far as they count."""
    return f"a0: &a0 {anchor}\n" + "".join(
        f"a{level}: &a{level} {alias.format(', '.join([f'*a{level - 1}'] * 10))}\n" for level in range(1, 13)
    )


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(levels("[x]", "[{}]"), id="lists"),
        pytest.param(levels("{x: 1}", "{{<<: [{}]}}"), id="merged mappings"),
        pytest.param("x: &x [*x]", id="a list that holds itself"),
        pytest.param("x: &x {y: *x}", id="a mapping that holds itself"),
    ],
)
def test_a_short_file_that_means_a_long_one_is_refused_and_not_expanded(fields):
    why = "its aliases (*) stand for far more than the text holds. Write it without them"
    assert refusal([], HEAD + fields) == f"failed to decode: c.yaml: {why}"
    assert refusal([], fields) == f"failed to decode: c.yaml: {why}"  # also where it is of no kind


def test_aliases_stand_for_what_they_name():
    config = config_of([], "conntrack: {udpTimeout: &day 24h, udpStreamTimeout: *day}\nipvs: {tcpTimeout: *day}")
    assert (config.conntrack.udp_stream_timeout_s, config.tcp_timeout_s) == (86400, 86400)


def test_a_long_file_is_no_expansion():
    config = config_of([], "nodePortAddresses:\n" + "- 192.0.2.0/24\n" * 20_000)
    assert len(config.node_port_cidrs) == 20_000


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e999"])
def test_a_number_that_is_not_finite_is_refused_by_field(value):
    text = f"{HEAD}clientConnection: {{qps: !!float {value}}}"
    shown = value.replace(".", "").replace("1e999", "inf")
    reason = f"clientConnection.qps: {shown}: must be a finite number"
    assert refusal([], text) == f"failed to decode: c.yaml: {reason}"


@pytest.mark.parametrize("value,shown", [("NaN", "nan"), ("-Infinity", "-inf"), ("1e999", "inf")])
def test_a_number_that_is_not_finite_is_refused_in_json_too(value, shown):
    head = f'{{"apiVersion": "{API_VERSION}", "kind": "{KIND}"'
    text = f'{head}, "x": {{"y": [0, {{"z": {value}}}]}}}}'
    assert refusal([], text) == f"failed to decode: c.yaml: x.y[1].z: {shown}: must be a finite number"


@pytest.mark.parametrize("value", ["1e39", "-3.5e38"])
def test_a_number_that_upstreams_32_bits_cannot_hold_is_refused_by_field(value):
    assert refusal([], f"{HEAD}clientConnection: {{qps: !!float {value}}}").endswith("at `$.clientConnection.qps`")
    assert config_of([], "clientConnection: {qps: 3.4028234e+38}").written.client_connection.qps > 3.4e38


def test_unknown_fields_in_lists_are_named_too():
    config = config_of([], "logging: {vmodule: [{filePattern: a, verbosity: 1}, {filePattern: b, level: 2}]}")
    assert remarks_of(config)["config_file_not_strict"]["unknown"] == ("logging.vmodule[1].level",)


def test_unknown_and_duplicate_fields_are_named_and_not_fatal():
    config = config_of([], "foo: 1\nipvs:\n  scheduler: lc\n  bar: 2\n  scheduler: sh\n")
    assert config.scheduler == "sh"
    assert remarks_of(config)["config_file_not_strict"] == {
        "file": "c.yaml",
        "unknown": ("foo", "ipvs.bar"),
        "duplicate": ("scheduler (line 7)",),
        "effect": "unknown ones ignored, last one counts",
    }


def test_flags_that_a_file_makes_void_are_named():
    config = config_of(["--masquerade-all", "--healthz-port=0", "-v1", "--proxy-mode="], "")
    assert remarks_of(config)["flags_ignored"]["flags"] == ("--healthz-port", "--masquerade-all")


def test_a_mode_in_the_file_that_the_flag_overrides_is_told_once():
    config = config_of(["--proxy-mode=ipvs"], "mode: iptables")
    assert [remark.event for remark in config.remarks] == ["mode_in_file_overridden"]
    assert config.written.mode == "ipvs"


def test_what_has_no_effect_here_is_told_in_one_line():
    config = config_of(
        ["--log-flush-frequency=1s"],
        "winkernel: {networkName: x}\nnftables: {masqueradeBit: 14}\nfeatureGates: {A: true, KubeProxyIPVS: true}\n"
        "clientConnection: {qps: 50}\niptables: {localhostNodePorts: true, syncPeriod: 1m}\n",
    )
    assert [remark.event for remark in config.remarks] == ["settings_without_effect"]
    assert remarks_of(config)["settings_without_effect"]["settings"] == (
        "--log-flush-frequency",
        "clientConnection.qps",
        "iptables.syncPeriod",
        "winkernel.networkName",
        "featureGates.A",
    )


def test_flags_without_effect_are_told_without_a_file_too():
    command = parse_command_line(["--kube-api-qps=5", "--feature-gates=A=true", "--profiling", "--manifests=x"])
    assert isinstance(command, Serve)
    settings = remarks_of(command.config)["settings_without_effect"]["settings"]
    assert settings == ("--kube-api-qps", "--profiling", "featureGates.A")


def test_of_kubeadms_file_nothing_is_to_be_told():
    command = command_of([], KUBEADM_FILE)
    assert isinstance(command, Serve)
    assert command.config.remarks == ()


@pytest.mark.parametrize("mode", ['""', "ipvs", "iptables"])
def test_kubeadms_command_and_file_start_us_unchanged(mode):
    words = [*KUBEADM_WORDS, *(["--proxy-mode=ipvs"] if mode == "iptables" else [])]
    text = KUBEADM_FILE.replace('mode: ""', f"mode: {mode}")
    command = parse_command_line(words, {"/var/lib/kube-proxy/config.conf": text.encode()}.__getitem__)
    assert isinstance(command, Serve)
    config = command.config
    assert (config.hostname_override, config.kubeconfig) == ("n1", "/var/lib/kube-proxy/kubeconfig.conf")
    assert [str(cidr) for cidr in config.cluster_cidrs] == ["10.244.0.0/16", "fd00:10:244::/56"]
    assert (config.oom_score_adj, config.conntrack.min, config.conntrack.tcp_close_wait_timeout_s) == (
        -999,
        131072,
        3600,
    )
    assert config.config_file == "/var/lib/kube-proxy/config.conf"


def test_json_is_read_too():
    text = json.dumps({"apiVersion": API_VERSION, "kind": KIND, "mode": "iptables", "hostnameOverride": "\U00010000"})
    command = command_of([], text.replace('"iptables"', '\t"iptables", "mode": "ipvs"'))
    assert isinstance(command, Serve)
    assert command.config.hostname_override == "\U00010000"
    assert remarks_of(command.config)["config_file_not_strict"]["duplicate"] == ("mode",)


@pytest.mark.parametrize(
    "words,kind",
    [
        pytest.param(["--cleanup"], CleanUp, id="clean-up"),
        pytest.param(["--init-only"], Prepare, id="what needs privileges"),
        pytest.param(["--write-config-to=o.yaml"], Write, id="writing"),
        pytest.param(["--write-config-to=o.yaml", "--cleanup"], Write, id="writing comes before clean-up"),
    ],
)
def test_every_run_takes_a_file(words, kind):
    assert isinstance(command_of(words, KUBEADM_FILE), kind)


def test_a_plan_takes_a_file():
    words = ["plan", "-o", "json", "--manifests=x", "--config=c.yaml"]
    command = parse_command_line(words, lambda _: (HEAD + "ipvs: {scheduler: sh}").encode())
    assert isinstance(command, Plan)
    assert command.config.scheduler == "sh"


def test_reading_again_tells_what_the_same_command_line_means_by_now():
    texts = [HEAD + "ipvs: {scheduler: sh}", HEAD + "ipvs: {scheduler: lc}"]
    command = parse_command_line(["--config=c.yaml"], lambda _: texts.pop(0).encode())
    assert isinstance(command, Serve)
    assert (command.config.scheduler, command.reread().scheduler) == ("sh", "lc")
