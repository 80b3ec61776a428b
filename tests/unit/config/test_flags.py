"""How words on the command line become values. The words are pflag's; what they mean together is test_validate.py's."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ipvsproxy.config.command_line import CleanUp, Plan, Serve, Show, parse_command_line
from ipvsproxy.config.flags import FLAG_OF_FIELD, FLAGS, Commands, flags_of, spell_plainly
from ipvsproxy.config.read import read_config
from ipvsproxy.config.types import (
    DetectLocalMode,
    IptablesBackend,
    KubeProxyConfiguration,
    LogFormat,
    PlanFormat,
    ProxyMode,
)
from ipvsproxy.errors import ConfigError
from ipvsproxy.model.addr import format_endpoint, parse_addr, parse_cidr
from ipvsproxy.model.enums import Family

MANIFESTS = ("--manifests", "objects")
PLAN = ("plan", "-o", "ipvsadm", *MANIFESTS)


def config_of(*words):
    command = parse_command_line([*words, *MANIFESTS])
    assert isinstance(command, Serve)
    return command.config


def options_of(*words):
    command = parse_command_line(["plan", *words, *MANIFESTS])
    assert isinstance(command, Plan)
    return command.options


def refusal(*words):
    with pytest.raises(ConfigError) as caught:
        parse_command_line(words)
    return str(caught.value)


@pytest.mark.parametrize(
    "words,field,value",
    [
        pytest.param(["--proxy-mode=ipvs"], "mode", ProxyMode.IPVS, id="proxy-mode"),
        pytest.param(["--proxy-mode="], "mode", ProxyMode.IPVS, id="a blank proxy-mode means ipvs"),
        pytest.param(["--hostname-override= N1 "], "hostname_override", "n1", id="hostname-override is trimmed"),
        pytest.param(["--masquerade-all"], "masquerade_all", True, id="masquerade-all"),
        pytest.param(["--iptables-masquerade-bit=5"], "masquerade_bit", 5, id="iptables-masquerade-bit"),
        pytest.param(["--detect-local-mode=NodeCIDR"], "detect_local_mode", DetectLocalMode.NODE_CIDR, id="local mode"),
        pytest.param(
            ["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"],
            "bridge_interface",
            "cni0",
            id="bridge",
        ),
        pytest.param(
            ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali"],
            "interface_name_prefix",
            "cali",
            id="prefix",
        ),
        pytest.param(
            ["--cluster-cidr=10.244.0.0/16,fd00:10:244::/56"],
            "cluster_cidrs",
            (parse_cidr("10.244.0.0/16"), parse_cidr("fd00:10:244::/56")),
            id="cluster-cidr",
        ),
        pytest.param(
            ["--nodeport-addresses=192.0.2.0/24,primary"],
            "node_port_cidrs",
            (parse_cidr("192.0.2.0/24"),),
            id="nodeport-addresses: networks",
        ),
        pytest.param(
            ["--nodeport-addresses=192.0.2.0/24,primary"], "node_ports_on_primary", True, id="nodeport-addresses: words"
        ),
        pytest.param(["--ipvs-scheduler=wlc"], "scheduler", "wlc", id="ipvs-scheduler"),
        pytest.param(["--ipvs-scheduler="], "scheduler", "rr", id="a blank scheduler means rr"),
        pytest.param(["--ipvs-strict-arp"], "strict_arp", True, id="ipvs-strict-arp"),
        pytest.param(
            ["--ipvs-exclude-cidrs=10.0.0.1/8"], "exclude_cidrs", (parse_cidr("10.0.0.0/8"),), id="ipvs-exclude-cidrs"
        ),
        pytest.param(["--ipvs-tcp-timeout=15m"], "tcp_timeout_s", 900, id="ipvs-tcp-timeout"),
        pytest.param(["--ipvs-tcpfin-timeout=1.9s"], "tcp_fin_timeout_s", 1, id="time-outs are cut to whole seconds"),
        pytest.param(["--ipvs-udp-timeout=5s"], "udp_timeout_s", 5, id="ipvs-udp-timeout"),
        pytest.param(["--ipvs-sync-period=1m30s"], "sync_period_s", 90.0, id="ipvs-sync-period"),
        pytest.param(["--ipvs-min-sync-period=500ms"], "min_sync_period_s", 0.5, id="ipvs-min-sync-period"),
        pytest.param(["--v=4"], "verbosity", 4, id="v"),
        pytest.param(["--nodeport-addresses=primary"], "node_ports_on_primary", True, id="nodeport-addresses"),
        pytest.param(["--logging-format=json"], "log_format", LogFormat.JSON, id="logging-format"),
        pytest.param(["--iptables-backend=nft"], "iptables_backend", IptablesBackend.NFT, id="iptables-backend"),
        pytest.param(["--ipvs-drain-timeout=1m30s"], "drain_timeout_s", 90.0, id="ipvs-drain-timeout"),
        pytest.param(["--proc-sys-net=/host/net"], "proc_sys_net", "/host/net", id="proc-sys-net"),
        pytest.param(["--manifests=elsewhere"], "manifests", "objects", id="of a flag given twice the last one counts"),
    ],
)
def test_a_flag_sets_its_field(words, field, value):
    assert getattr(config_of(*words), field) == value


@pytest.mark.parametrize(
    "field,value",
    [
        ("hostname_override", ""),
        ("node_port_cidrs", ()),
        ("node_ports_on_primary", False),
        ("cluster_cidrs", ()),
        ("detect_local_mode", DetectLocalMode.CLUSTER_CIDR),
        ("masquerade_bit", 14),
        ("masquerade_all", False),
        ("scheduler", "rr"),
        ("strict_arp", False),
        ("exclude_cidrs", ()),
        ("tcp_timeout_s", 0),
        ("tcp_fin_timeout_s", 0),
        ("udp_timeout_s", 0),
        ("sync_period_s", 30.0),
        ("min_sync_period_s", 0.0),
        ("verbosity", 0),
        ("log_format", LogFormat.AUTO),
        ("iptables_backend", IptablesBackend.AUTO),
        ("drain_timeout_s", 900.0),
        ("proc_sys_net", "/proc/sys/net"),
    ],
)
def test_without_flags_the_defaults_are_upstreams(field, value):
    assert getattr(config_of(), field) == value


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--ipvs-scheduler=lc"], id="with an equals sign"),
        pytest.param(["--ipvs-scheduler", "lc"], id="as the next word"),
        pytest.param(["--ipvs_scheduler=lc"], id="with underscores"),
        pytest.param(["--ipvs_scheduler", "lc"], id="with underscores and the next word"),
        pytest.param(["--ipvs-scheduler=rr", "--ipvs-scheduler=lc"], id="given twice"),
    ],
)
def test_every_spelling_of_a_flag_means_the_same(words):
    assert config_of(*words).scheduler == "lc"


def test_underscores_in_a_value_stay():
    assert config_of("--hostname_override=a_b").hostname_override == "a_b"


@pytest.mark.parametrize("words", [["-v", "3"], ["-v=3"], ["-v3"], ["--v", "3"], ["--v=3"]])
def test_every_spelling_of_the_log_level_means_the_same(words):
    assert config_of(*words).verbosity == 3


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "t", "T", "1"])
def test_a_switch_takes_gos_words_for_true(text):
    assert config_of(f"--masquerade-all={text}").masquerade_all is True


@pytest.mark.parametrize("text", ["false", "FALSE", "False", "f", "F", "0"])
def test_a_switch_takes_gos_words_for_false(text):
    assert config_of("--masquerade-all", f"--masquerade-all={text}").masquerade_all is False


def test_a_switch_does_not_eat_the_next_word():
    assert refusal("--masquerade-all", "false", *MANIFESTS).startswith('unexpected argument "false"')
    config = config_of("--masquerade-all", "--ipvs-scheduler", "lc")
    assert (config.masquerade_all, config.scheduler) == (True, "lc")


def test_a_value_may_look_like_a_flag():
    assert config_of("--hostname-override", "--ipvs-strict-arp").hostname_override == "--ipvs-strict-arp"
    assert config_of("--hostname-override", "--ipvs-strict-arp").strict_arp is False


def test_a_list_given_twice_adds_up():
    config = config_of("--ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8", "--ipvs-exclude-cidrs", "192.168.0.0/16")
    assert [str(cidr) for cidr in config.exclude_cidrs] == ["10.0.0.0/8", "fd00::/8", "192.168.0.0/16"]


def test_an_empty_list_is_no_list_of_one_empty_text():
    assert config_of("--ipvs-exclude-cidrs=").exclude_cidrs == ()


@pytest.mark.parametrize(
    "words,message",
    [
        pytest.param(["--windows-service"], "unknown flag --windows-service: ", id="a flag that we do not have"),
        pytest.param(["--proxy"], "unknown flag --proxy: ", id="an abbreviation"),
        pytest.param(["-x"], "unknown flag -x: ", id="a short flag that we do not have"),
        pytest.param(["--output=json"], "unknown flag --output: ", id="a flag of plan outside it"),
        pytest.param(["plan", "--cleanup"], "unknown flag --cleanup: ", id="clean-up inside plan"),
        pytest.param(["serve"], 'unexpected argument "serve": ', id="a word"),
        pytest.param(["--v=2", "plan"], 'unexpected argument "plan": ', id="a command that does not come first"),
        pytest.param(["--", "--"], 'unexpected argument "--": ', id="two dashes twice"),
        pytest.param(["-"], 'unexpected argument "-": ', id="one dash"),
        pytest.param([""], 'unexpected argument "": ', id="an empty word"),
        pytest.param(
            ["--ipvs-scheduler"], "--ipvs-scheduler: a value is missing. Write --ipvs-scheduler=NAME", id="no value"
        ),
        pytest.param(["--v=two"], '--v: invalid value "two": must be a whole number from ', id="no number"),
        pytest.param(["--v="], '--v: invalid value "": must be a whole number from ', id="an empty number"),
        pytest.param(
            ["--v=1_000"], '--v: invalid value "1_000": must be a whole number from ', id="Python's underscores"
        ),
        pytest.param(["--v=2147483648"], '--v: invalid value "2147483648": must be a whole number from ', id="33 bits"),
        pytest.param(["--v=" + "9" * 5000], '--v: invalid value "999', id="thousands of digits"),
        pytest.param(
            ["--masquerade-all=yes"], '--masquerade-all: invalid value "yes": must be true or false', id="no boolean"
        ),
        pytest.param(
            ["plan", "-o", "yaml"],
            '--output: invalid value "yaml": must be one of ipvsadm, addresses, ipset, iptables, ip6tables, ',
            id="no plan format",
        ),
        pytest.param(
            ["plan", "--node-addresses=10.0.0.1,n1"],
            '--node-addresses: invalid value "10.0.0.1,n1": "n1" is not an IP address',
            id="no address",
        ),
        pytest.param(
            ["plan", "--ip-families=ipv4"],
            '--ip-families: invalid value "ipv4": must be IPv4 or IPv6, or both with a comma between',
            id="no family",
        ),
        pytest.param(
            ["plan", "--ip-families="], '--ip-families: invalid value "": must be IPv4 or IPv6', id="no families"
        ),
        pytest.param(["plan", *MANIFESTS], "--output: not given. Say what to print: -o ipvsadm|", id="plan of nothing"),
        pytest.param(["plan", "-o", "json"], "--manifests or --from-cluster: exactly one", id="plan without objects"),
        pytest.param(
            ["plan", "-o", "json", "--from-cluster", *MANIFESTS],
            "--manifests or --from-cluster: exactly one",
            id="plan of two sources",
        ),
        pytest.param(["--kubeconfig=x", *MANIFESTS], "--manifests and --kubeconfig", id="a folder and an API server"),
        pytest.param(["--master=x", *MANIFESTS], "--manifests and --kubeconfig", id="a folder and a URL"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_the_reason(words, message):
    assert refusal(*words).startswith(message)


def test_a_refusal_shows_control_characters_escaped():
    assert refusal("--v=1\n2\x1b").startswith('--v: invalid value "1\\n2\\u001b": ')


@pytest.mark.parametrize("plan_format", list(PlanFormat))
def test_a_plan_prints_in_any_format(plan_format):
    assert options_of("-o", plan_format.value).format is plan_format
    assert options_of(f"-o{plan_format}").format is plan_format
    assert options_of(f"--output={plan_format}").format is plan_format


def test_a_plan_is_for_both_families_and_the_node_objects_addresses_unless_told_otherwise():
    options = options_of("-o", "json")
    assert options.families == frozenset(Family)
    assert options.node_addresses == ()


def test_a_plan_takes_the_nodes_addresses_and_families():
    options = options_of("-o", "json", "--node-addresses", "192.0.2.1,2001:db8::1", "--ip-families=IPv6")
    assert options.families == {Family.IPV6}
    assert options.node_addresses == (parse_addr("192.0.2.1"), parse_addr("2001:db8::1"))


def test_a_plan_takes_the_proxys_flags():
    command = parse_command_line([*PLAN, "--ipvs-scheduler=sh", "--masquerade-all", "-v2"])
    assert isinstance(command, Plan)
    assert (command.config.scheduler, command.config.masquerade_all, command.config.verbosity) == ("sh", True, 2)


def test_clean_up_needs_no_objects():
    command = parse_command_line(["--cleanup", "--iptables-masquerade-bit=3"])
    assert isinstance(command, CleanUp)
    assert command.config.masquerade_bit == 3


def test_clean_up_can_be_switched_off():
    assert isinstance(parse_command_line(["--cleanup=false", *MANIFESTS]), Serve)


def test_help_is_given_whatever_follows_it():
    assert spell_plainly(["--v=1", "-h", "--nonsense"], FLAGS) == ["--v=1", "--help"]


def test_every_flag_with_a_field_sets_a_field_that_exists():
    document = msgspec.to_builtins(KubeProxyConfiguration())
    for field in FLAG_OF_FIELD:
        _at(document, field)


@pytest.mark.parametrize("command", [Commands.PROXY, Commands.PLAN, Commands.DIFF, Commands.EXPLAIN])
def test_no_two_flags_of_a_command_share_a_name(command):
    names = [name for flag in flags_of(command) for name in (flag.name, flag.short) if name]
    assert len(names) == len(set(names))


def test_no_two_flags_share_a_field():
    fields = [flag.field for flag in FLAGS if flag.field]
    assert len(fields) == len(set(fields))


def test_every_proxy_flag_with_a_field_is_a_flag_of_plan_too():
    with_field = {flag.name for flag in flags_of(Commands.PROXY) if flag.field}
    assert with_field <= {flag.name for flag in flags_of(Commands.PLAN)}


def test_a_config_reads_the_same_from_no_flags_and_from_the_default_document():
    given = {name: _at(msgspec.to_builtins(KubeProxyConfiguration()), field) for field, name in FLAG_OF_FIELD.items()}
    assert replace(read_config(given), remarks=()) == read_config({})


def _at(document, field):
    for key in field.split("."):
        document = document[key]
    return document


@pytest.mark.parametrize(
    "words,healthz,metrics",
    [
        pytest.param([], "0.0.0.0:10256", "127.0.0.1:10249", id="none"),
        pytest.param(["--healthz-port=0"], None, "127.0.0.1:10249", id="health off by the deprecated port"),
        pytest.param(["--healthz-bind-address="], "0.0.0.0:10256", "127.0.0.1:10249", id="a blank address of health"),
        pytest.param(["--metrics-bind-address="], "0.0.0.0:10256", "127.0.0.1:10249", id="a blank address of metrics"),
        pytest.param(["--bind-address="], "0.0.0.0:10256", "127.0.0.1:10249", id="a blank address of the node"),
        pytest.param(
            ["--healthz-bind-address=", "--healthz-port=1"],
            "0.0.0.0:10256",
            "127.0.0.1:10249",
            id="a blank address and a port",
        ),
        pytest.param(["--metrics-port=0"], "0.0.0.0:10256", None, id="metrics off by the deprecated port"),
        pytest.param(["--healthz-port=1"], "0.0.0.0:10256", "127.0.0.1:10249", id="a deprecated port alone"),
        pytest.param(
            ["--healthz-bind-address=::", "--healthz-port=1"], "[::]:1", "127.0.0.1:10249", id="an address and a port"
        ),
        pytest.param(["--metrics-bind-address=::1"], "0.0.0.0:10256", "[::1]:10249", id="an address without a port"),
        pytest.param(["--bind-address=::"], "0.0.0.0:10256", "127.0.0.1:10249", id="the node's address"),
    ],
)
def test_flags_say_where_health_and_metrics_are_served(words, healthz, metrics):
    config = config_of(*words)
    shown = [listener and format_endpoint(*listener) for listener in (config.healthz, config.metrics)]
    assert shown == [healthz, metrics]
    assert (config.written.healthz_bind_address, config.written.metrics_bind_address) == (healthz or "", metrics or "")


@pytest.mark.parametrize(
    "text,prints", [("true", True), ("raw", True), ("false", False), ("v1.37.2", False), ("v1.37.2-rc.1+x", False)]
)
def test_the_version_is_printed_and_no_other_pretended(text, prints):
    assert isinstance(parse_command_line([f"--version={text}", *MANIFESTS]), Show if prints else Serve)


def test_the_values_of_all_flags_are_told_as_pflag_prints_them():
    values = config_of(
        "--feature-gates=A=true, B=false", "--vmodule=a=1", "--nodeport-addresses=primary,all"
    ).flag_values
    assert (values["feature-gates"], values["vmodule"]) == ("A=true,B=false", "a=1")
    assert (values["nodeport-addresses"], values["ipvs-exclude-cidrs"]) == ("[primary,all]", "[]")
    assert (values["masquerade-all"], values["oom-score-adj"], values["config"]) == ("false", "-999", "")


@pytest.mark.parametrize(
    "word,reason",
    [
        ("--feature-gates=A=maybe", "must be true or false"),
        ("--vmodule=a", '"a" does not have the pattern=N format'),
        ("--kube-api-qps=inf", "must be a number"),
        ("--kube-api-qps=1e39", "must be a number"),
        ("--version=1.2", "must be true or false"),
    ],
)
def test_a_value_of_no_flags_form_is_refused(word, reason):
    name, _, value = word.partition("=")
    assert refusal(word) == f'{name}: invalid value "{value}": {reason}'


@pytest.mark.parametrize(
    "text,number",
    [
        ("0x10", 16), ("0X1f", 31), ("010", 8), ("0o10", 8), ("0b11", 3), ("1_000", 1000), ("0x_f", 15), ("-0x10", -16),
        ("+0_7", 7), ("0", 0), ("-0", 0), ("-999", -999), ("1000", 1000),
    ],
)  # fmt: skip
def test_a_whole_number_is_read_as_go_reads_it(text, number):
    assert config_of(f"--oom-score-adj={text}").oom_score_adj == number


@pytest.mark.parametrize("text", ["", "0x", "08", "1__0", "_1", "1_", "0b2", "1e3", " 1", "\u0661", "0x80000000"])
def test_what_go_takes_for_no_whole_number_is_refused(text):
    assert "must be a whole number from -2147483648 to 2147483647" in refusal(f"--conntrack-min={text}")


def test_a_log_level_is_decimal():
    assert config_of("--v=010").verbosity == 10
    assert "must be a whole number" in refusal("--v=0x1")


@pytest.mark.parametrize(
    "text,items",
    [
        ('"10.0.0.0/8"', ("10.0.0.0/8",)),
        ('10.0.0.0/8,"fd00::/8"', ("10.0.0.0/8", "fd00::/8")),
        ('"a,b",c', ("a,b", "c")),
        ('"say ""no""",', ('say "no"', "")),
    ],
)
def test_items_of_a_list_may_stand_in_quotes(text, items):
    (flag,) = (flag for flag in FLAGS if flag.name == "--nodeport-addresses")
    assert tuple(flag.parse(text)) == items


@pytest.mark.parametrize("text", ['"10.0.0.0/8', '10.0.0.0/8"', 'a"b"', '"a"b,c', '"'])
def test_quotes_that_do_not_enclose_an_item_are_refused(text):
    assert "quotes enclose whole items" in refusal(f"--nodeport-addresses={text}")


def test_after_two_dashes_come_arguments_which_there_are_none_of():
    command = parse_command_line([*MANIFESTS, "--masquerade-all", "--"])
    assert isinstance(command, Serve)
    assert command.config.masquerade_all
    assert refusal(*MANIFESTS, "--", "--masquerade-all").startswith('unexpected argument "--masquerade-all": ')


def test_underscores_stand_for_dashes_in_names_alone():
    assert config_of("--proxy_mode=ipvs", "--masquerade_all").masquerade_all
    for word in ("-_proxy-mode=ipvs", "__proxy-mode=ipvs", "_-proxy-mode=ipvs", "--_proxy-mode=ipvs"):
        assert refusal(word).startswith(("unknown flag", "unexpected argument"))


def test_help_is_a_switch_that_can_be_off():
    assert config_of("--help=false", "-h=false").mode is ProxyMode.IPVS
    assert isinstance(parse_command_line(["--help=true"]), Show)
    assert refusal("--help=maybe") == '--help: invalid value "maybe": must be true or false'
