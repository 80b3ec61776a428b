"""What --init-only does, and the daemon again at its start; on a kernel: tests/vm/test_preparation.py."""

from __future__ import annotations

import errno

from structlog.testing import capture_logs

from ipvsproxy import preparation
from ipvsproxy.config.command_line import Prepare, parse_command_line, read_config
from ipvsproxy.kernel.fake import FakeHostFiles, FakeKernel
from ipvsproxy.model.kernel_objects import Kind, Verb
from ipvsproxy.plan.host_settings import CONNTRACK_MAX, HASHSIZE, OOM_SCORE_ADJ, RUN_ESTIMATION

NEW_KERNEL = (6, 12)
NF = "proc/sys/net/netfilter/nf_conntrack_"
HOST = {
    CONNTRACK_MAX: 65536,
    HASHSIZE: 16384,
    f"{NF}tcp_timeout_established": 432000,
    f"{NF}tcp_timeout_close_wait": 60,
    f"{NF}udp_timeout": 30,
    f"{NF}udp_timeout_stream": 120,
    OOM_SCORE_ADJ: 0,
    RUN_ESTIMATION: 1,
}


def after(**flags: str) -> tuple[FakeHostFiles, FakeKernel]:
    """The host that a start with these flags, dashes as underscores, leaves."""
    files, kernel = FakeHostFiles(HOST, cpus=8), FakeKernel()
    config = read_config({f"--{name.replace('_', '-')}": value for name, value in flags.items()})
    assert preparation.put_host_in_order(config, kernel.kernel.ipvs, files) == 0
    return files, kernel


def test_a_start_without_flags_raises_the_limits_and_sets_kube_proxys_time_outs_and_nothing_else():
    files, kernel = after()
    assert files.files == HOST | {
        CONNTRACK_MAX: 262144,
        HASHSIZE: 65536,
        f"{NF}tcp_timeout_established": 86400,
        f"{NF}tcp_timeout_close_wait": 3600,
    }
    assert kernel.timeouts == (900, 120, 300)


def test_udp_time_outs_are_set_in_connection_tracking_and_in_ipvs_each_by_its_own_flags():
    files, kernel = after(conntrack_udp_timeout="10s", conntrack_udp_timeout_stream="20s", ipvs_udp_timeout="30s")
    assert (files.files[f"{NF}udp_timeout"], files.files[f"{NF}udp_timeout_stream"]) == (10, 20)
    assert kernel.timeouts == (900, 120, 30)


def test_k39_estimation_is_the_nodes_unless_it_is_asked_to_be_off():
    assert after()[0].files[RUN_ESTIMATION] == 1
    assert after(ipvs_estimation="off")[0].files[RUN_ESTIMATION] == 0


def test_an_oom_score_that_may_not_be_lowered_is_a_warning():
    files = FakeHostFiles({OOM_SCORE_ADJ: 0}, read_only=[OOM_SCORE_ADJ])
    with capture_logs() as lines:
        preparation.set_oom_score(read_config({}), files)
    assert [(line["log_level"], line["wanted"]) for line in lines] == [("warning", -999)]


def test_init_only_is_asked_for_by_its_flag_and_needs_no_api_server_to_be_named():
    assert isinstance(parse_command_line(["--init-only", "--proxy-mode=ipvs"]), Prepare)


def test_the_schedulers_module_is_loaded_before_the_scheduler_is_used(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(preparation.modules, "load", asked.extend)
    preparation.load_modules(read_config({"--ipvs-scheduler": "lblc"}))
    assert asked == ["ip_vs", "ip_vs_lblc"]


def test_what_opens_the_legacy_tables_is_loaded_where_they_are_asked_for(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(preparation.modules, "load", asked.extend)
    preparation.load_modules(read_config({"--iptables-backend": "legacy"}))
    assert asked == ["ip_vs", "ip_vs_rr", "ip_tables", "ip6_tables"]


def test_sysctls_that_are_set_already_are_not_written_so_that_read_only_ones_do_no_harm():
    kernel = FakeKernel()
    assert preparation.write_sysctls(read_config({}), kernel.kernel.sysctls, NEW_KERNEL) == 0
    written = kernel.messages
    assert written > 0
    assert preparation.write_sysctls(read_config({}), kernel.kernel.sysctls, NEW_KERNEL) == 0
    assert kernel.messages == written


def test_a_sysctl_that_is_refused_is_counted_and_said_with_what_to_do():
    kernel = FakeKernel()
    kernel.faults = {(Verb.EDIT, Kind.SYSCTL, "net.ipv4.ip_forward"): errno.EROFS}
    with capture_logs() as lines:
        assert preparation.write_sysctls(read_config({}), kernel.kernel.sysctls, NEW_KERNEL) == 1
    (line,) = lines
    assert line["operation"] == "edit sysctl net.ipv4.ip_forward"
    assert "read-only" in line["hint"]
