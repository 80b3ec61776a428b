"""Start, end and start again: on what others and earlier runs left, and where it must not start at all."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import Listed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.kernel.modules import load
from ipvsproxy.model.enums import Family
from ipvsproxy.modes.ipvs.mode import IpvsMode, IpvsOptions
from ipvsproxy.modes.ipvs.rules import RuleOptions
from ipvsproxy.modes.ipvs.service import ServiceOptions
from ipvsproxy.sync.reconciler import Reconciler, SyncResult
from tests.clusters import NODE, Svc, cluster, events
from tests.lab.hosts import Namespace
from tests.lab.proxies import Proxy
from tests.vm.nodes import (
    FLAGS,
    CountingKernel,
    KilledError,
    bound,
    cleaned_up,
    flags_with,
    kernel_of,
    proxy_on,
    rules,
    sets,
    virtual_servers,
    without_chains,
)

WEB = Svc("web", ("10.96.0.20", "2001:db8:96::20"), endpoints=(("10.244.1.5", True), ("2001:db8:244:1::5", True)))
DNS = Svc("dns", ("10.96.0.10",), ((53, "UDP"), (53, "TCP")), (("10.244.1.6", True), ("10.244.2.6", True)))
SERVED = (WEB, DNS)

# What is not ours and must survive everything.
FOREIGN_SERVERS = [
    "-A -t 203.0.113.99:443 -s wlc",
    "-a -t 203.0.113.99:443 -r 198.51.100.9:443 -m -w 3",
    "-A -f 7 -s rr",
]
FOREIGN_SET = "create THEIRS hash:ip family inet hashsize 1024 maxelem 65536"
FOREIGN_RULES = ["-A THEIRS -p tcp -j ACCEPT", "-A INPUT -j THEIRS"]

# What an earlier run, or a kube-proxy, may have left: wrong settings, stale objects, junk in our chains and sets.
STALE_SERVERS = """\
-A -t 10.96.0.20:80 -s wlc -p 60
-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 0
-a -t 10.96.0.20:80 -r 10.244.9.9:8080 -m -w 1
-A -t 10.96.0.99:80 -s rr
-a -t 10.96.0.99:80 -r 10.244.9.9:8080 -m -w 1
"""
STALE_SETS = """\
create KUBE-CLUSTER-IP hash:ip,port family inet
add KUBE-CLUSTER-IP 10.96.0.99,tcp:80
add KUBE-CLUSTER-IP 10.96.0.20,udp:9
create KUBE-IPVS-IPS hash:ip family inet
add KUBE-IPVS-IPS 10.96.0.99
"""


def put_foreign(host: Namespace) -> None:
    """Objects of somebody else."""
    host.run("ipvsadm", "-R", given="\n".join(FOREIGN_SERVERS) + "\n")
    host.run("ipset", "restore", given=FOREIGN_SET + "\n")
    restore = ":THEIRS - [0:0]\n" + "\n".join(FOREIGN_RULES)
    host.run("iptables-legacy-restore", "--noflush", given=f"*filter\n{restore}\nCOMMIT\n")


def assert_foreign_stands(host: Namespace) -> None:
    """All of it, as it was."""
    assert set(virtual_servers(host)) >= set(FOREIGN_SERVERS)
    assert FOREIGN_SET in sets(host)
    filter_chains = rules(host, 4)["filter"]
    assert filter_chains["THEIRS"] == FOREIGN_RULES[:1]
    assert FOREIGN_RULES[1] in filter_chains["INPUT"]


def put_stale(host: Namespace) -> None:
    """Leftovers of ours."""
    host.ip(
        "link add kube-ipvs0 type dummy",
        "addr add 10.96.0.20/32 dev kube-ipvs0",
        "addr add 10.96.0.99/32 dev kube-ipvs0",
        "addr add 2001:db8:96::99/128 dev kube-ipvs0",
    )
    host.run("ipset", "restore", given=STALE_SETS)
    host.run("ipvsadm", "-R", given=STALE_SERVERS)
    junk = ":KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.96.0.20/32 -j ACCEPT\n-A OUTPUT -j KUBE-SERVICES"
    host.run("iptables-legacy-restore", "--noflush", given=f"*nat\n{junk}\nCOMMIT\n")


def snapshot(host: Namespace) -> tuple[object, ...]:
    """All that we may program."""
    return virtual_servers(host), bound(host), sets(host), rules(host, 4), rules(host, 6)


@pytest.fixture(scope="module")
def wanted() -> tuple[object, ...]:
    """What an undisturbed start on an empty host gives."""
    with Namespace("reference") as host:
        sync(host)
        return snapshot(host)


def sync(host: Namespace, limit: int | None = None) -> tuple[SyncResult, CountingKernel]:
    """A start and a sync in this process; KilledError after `limit` operations."""
    families = frozenset(Family)
    with kernel_of(host) as real:
        kernel = CountingKernel(real, limit)
        tracker = Tracker(NODE, families)
        mode = IpvsMode(IpvsOptions(ServiceOptions(families), RuleOptions()))
        reconciler = Reconciler(kernel, tracker, mode, SystemClock())
        reconciler.start()
        for event in (*events({}, cluster(*SERVED)), *map(Listed, ("Service", "EndpointSlice", "Node"))):
            tracker.note(event)
        return reconciler.sync(), kernel


def test_a_second_start_sends_nothing(empty_host):
    first, _ = sync(empty_host)
    assert first.operations > 0
    _, kernel = sync(empty_host)
    assert kernel.operations == []


def test_stale_and_wrong_leftovers_converge_in_one_sync_and_foreign_objects_stay(empty_host, wanted):
    put_foreign(empty_host)
    put_stale(empty_host)
    result, _ = sync(empty_host)
    assert (result.refused, result.waiting) == (0, 0)
    assert_foreign_stands(empty_host)
    servers, addresses, *_ = wanted
    assert [line for line in virtual_servers(empty_host) if line not in FOREIGN_SERVERS] == servers
    assert bound(empty_host) == addresses


@pytest.mark.parametrize("limit", [3, 20, 40, 60])
def test_a_start_after_a_crash_in_the_middle_of_a_sync_converges(empty_host, wanted, limit):
    with pytest.raises(KilledError):
        sync(empty_host, limit)
    sync(empty_host)
    assert snapshot(empty_host) == wanted


def test_sigterm_leaves_everything_and_the_next_daemon_writes_nothing(empty_host, tmp_path):
    with proxy_on(empty_host, tmp_path, *SERVED) as proxy:
        proxy.wait_for_services()
        before = snapshot(empty_host)
        assert proxy.stop(signal.SIGTERM) == ExitCode.OK
    assert before == snapshot(empty_host)
    with proxy_on(empty_host, tmp_path, *SERVED) as proxy:
        assert proxy.wait_for("sync_finished", lambda line: line["services"] > 0)["operations"] == 0
    assert before == snapshot(empty_host)


def test_a_running_daemon_audits_every_sync_period_and_puts_right_what_somebody_changed(empty_host, tmp_path):
    """A virtual server and an entry of a set: nobody tells us of either, so that nothing but an audit can find them."""
    flags = (*FLAGS, "--ipvs-sync-period=1s")
    with proxy_on(empty_host, tmp_path, *SERVED, flags=flags) as proxy:
        proxy.wait_for_services()
        before = snapshot(empty_host)
        empty_host.run("ipvsadm", "-D", "-t", "10.96.0.20:80")
        empty_host.run("ipset", "del", "KUBE-CLUSTER-IP", "10.96.0.20,tcp:80")
        proxy.wait_for("drift_found", lambda line: line["kind"] == "virtual server")
        proxy.wait_until(lambda: snapshot(empty_host) == before)
        assert proxy.stop(signal.SIGTERM) == ExitCode.OK


@pytest.mark.parametrize("backend", ["legacy", "nft"])
def test_k36_k43_rules_that_somebody_flushes_are_back_though_no_audit_is_due(empty_host, tmp_path, backend):
    """By which time: tests/unit/sync/test_glance.py; here the real program does it, in tables of both families."""

    def saved() -> list[str]:
        text = empty_host.run(f"iptables-{backend}-save") + empty_host.run(f"ip6tables-{backend}-save")
        return [line for line in text.splitlines() if line.startswith("-A ")]

    with proxy_on(empty_host, tmp_path, *SERVED, flags=(*flags_with(backend), "--ipvs-sync-period=1h")) as proxy:
        proxy.wait_for_services()
        before = saved()
        assert before
        for name in ("iptables", "ip6tables"):
            empty = "".join(f"*{table}\nCOMMIT\n" for table in ("filter", "mangle", "nat"))
            empty_host.run(f"{name}-{backend}-restore", given=empty)  # each table, chains too, in one commit
        proxy.wait_for("rules_put_right")
        proxy.wait_until(lambda: saved() == before)
        assert proxy.stop(signal.SIGTERM) == ExitCode.OK


def test_k07_time_outs_that_a_reload_of_the_module_has_forgotten_are_set_again(empty_host, tmp_path):
    """The module itself is in use by other namespaces here; what is left of a reload is its own time-outs."""
    flags = (*FLAGS, "--ipvs-sync-period=1s", "--ipvs-tcp-timeout=2h5m", "--ipvs-udp-timeout=60s")
    with proxy_on(empty_host, tmp_path, *SERVED, flags=flags) as proxy:
        proxy.wait_for_services()
        empty_host.run("ipvsadm", "--set", "900", "120", "300")
        proxy.wait_for("timeouts_lost")
        proxy.wait_until(lambda: "7500 120 60" in empty_host.run("ipvsadm", "-L", "--timeout"))
        assert proxy.stop(signal.SIGTERM) == ExitCode.OK


def test_k07_time_outs_are_set_and_stay_after_a_restart_that_asks_for_none(empty_host, tmp_path):
    def shown() -> str:
        return empty_host.run("ipvsadm", "-L", "--timeout")

    asked = ("--ipvs-tcp-timeout=5s", "--ipvs-tcpfin-timeout=3s", "--ipvs-udp-timeout=4s")
    for flags, timeouts in ((asked, "5 3 4"), ((), "5 3 4"), (("--ipvs-udp-timeout=9s",), "5 3 9")):
        with proxy_on(empty_host, tmp_path, *SERVED, flags=(*FLAGS, *flags)) as proxy:
            proxy.wait_for_services()
            assert shown().strip() == f"Timeout (tcp tcpfin udp): {timeouts}"
            assert proxy.stop(signal.SIGTERM) == ExitCode.OK


def test_a_start_after_sigkill_converges(empty_host, tmp_path):
    many = [Svc(f"s{n}", (f"10.96.1.{n}",), endpoints=((f"10.244.1.{n}", True),)) for n in range(1, 150)]
    with proxy_on(empty_host, tmp_path, *many) as proxy:
        wait_for_a_virtual_server(empty_host, proxy)
        assert proxy.stop(signal.SIGKILL) == -signal.SIGKILL
    with proxy_on(empty_host, tmp_path, *many) as proxy:
        proxy.wait_for_services()
    assert len(virtual_servers(empty_host)) == 2 * len(many)
    assert len(bound(empty_host)) == len(many)


def wait_for_a_virtual_server(host: Namespace, proxy: Proxy) -> None:
    while not virtual_servers(host):
        assert proxy.exit_code is None, proxy.text()
        time.sleep(0.01)


def test_cleanup_removes_what_is_ours_and_nothing_else_and_may_be_repeated(empty_host, tmp_path):
    put_foreign(empty_host)
    foreign_alone = snapshot(empty_host)
    sync(empty_host)
    assert snapshot(empty_host) != foreign_alone
    for _ in range(2):
        proxy = cleaned_up(empty_host, tmp_path)
        assert proxy.exit_code == ExitCode.OK, proxy.text()
        assert snapshot(empty_host)[:3] == foreign_alone[:3]
        assert_foreign_stands(empty_host)
        assert not [chain for table in rules(empty_host, 4).values() for chain in table if chain.startswith("KUBE")]
        assert without_chains(rules(empty_host, 6))


def test_a_second_daemon_in_the_same_network_namespace_refuses_to_start(empty_host, tmp_path):
    with proxy_on(empty_host, tmp_path / "first") as first:
        first.wait_for("sync_finished")
        with proxy_on(empty_host, tmp_path / "second") as second:
            assert second.wait() == ExitCode.ALREADY_RUNNING
        assert re.search(r"another ipvsproxy \(process \d+\) runs in this network namespace", second.text())
        assert first.exit_code is None


def test_an_unknown_scheduler_is_refused_at_start_with_what_to_do(empty_host, tmp_path):
    with proxy_on(empty_host, tmp_path, flags=[*FLAGS, "--ipvs-scheduler=nosuch"]) as proxy:
        assert proxy.wait() == ExitCode.UNSUPPORTED
    assert 'cannot use the scheduler "nosuch"' in proxy.text()
    assert "Load ip_vs_nosuch on the node, or set --ipvs-scheduler to rr" in proxy.text()
    assert virtual_servers(empty_host) == []


def test_without_permission_it_says_so_and_ends(empty_host, tmp_path):
    with proxy_on(empty_host, tmp_path, before=become_nobody) as proxy:
        assert proxy.wait() == ExitCode.UNSUPPORTED
    assert [line for line in proxy.text().splitlines() if line.startswith("Error: ") and "NET_ADMIN" in line]
    assert "Traceback" not in proxy.text()


def become_nobody() -> None:
    """Give up every capability."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_with_ipv6_switched_off_it_serves_ipv4_and_says_so_once_k55(empty_host, tmp_path):
    for name in ("all", "default"):
        empty_host.set_sysctl(f"net/ipv6/conf/{name}/disable_ipv6", "1")
    with proxy_on(empty_host, tmp_path, *SERVED) as proxy:
        proxy.wait_for_services()
    told = [line for line in proxy.lines() if line["level"] in {"warning", "error"}]
    assert [(line["event"], line.get("family")) for line in told] == [("family_unavailable", "IPv6")]
    assert bound(empty_host) == {"10.96.0.20/32", "10.96.0.10/32"}
    assert "-A -t 10.96.0.20:80 -s rr" in virtual_servers(empty_host)
    assert not [line for line in sets(empty_host) if "KUBE-6" in line]


def test_modules_can_be_loaded_ahead(empty_host):
    with empty_host.inside():
        assert load(["ip_vs", "ip_vs_rr", "dummy"]) == []
