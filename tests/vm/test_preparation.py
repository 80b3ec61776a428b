"""What is put in order before, and apart from, Services: --init-only, and time-outs that can be seen at work."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy import cli
from ipvsproxy.config.command_line import ExitCode
from ipvsproxy.kernel.modules import load
from tests.clusters import Svc
from tests.lab.hosts import Cluster, Namespace
from tests.vm.nodes import (
    FLAGS,
    ProxyNode,
    bound,
    program,
    proxy_node,
    proxy_on,
    rules,
    sets,
    small_cluster,
    virtual_servers,
    without_chains,
)
from tests.vm.places import A1, A2, ready

CONNTRACK = "net/netfilter/nf_conntrack_"
DNS = Svc("dns", ("10.96.0.10", "2001:db8:96::10"), ((53, "UDP"),), ready(A1, A2))
UDP_TIMEOUT_S = 5

# As a container runtime starts it: /proc/sys read-only, the host's folder of network settings at $1, two capabilities.
AS_A_CONTAINER = """
mount --bind /proc/sys/net "$1" && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit 99
shift
exec setpriv --bounding-set=-all,+net_admin,+net_raw --inh-caps=-all,+net_admin,+net_raw --no-new-privs "$@"
"""


def timeouts(host: Namespace) -> list[int]:
    """TCP, TCP after a FIN, UDP, as ipvsadm shows them."""
    return [int(number) for number in re.findall(r"[0-9]+", host.run("ipvsadm", "-L", "--timeout"))]


def test_init_only_prepares_the_node_without_an_api_server_and_programs_nothing(empty_host):
    asked = ("--ipvs-tcp-timeout=2h5m", "--conntrack-udp-timeout=7s", "--conntrack-udp-timeout-stream=9s")
    code, _ = program(empty_host, "--init-only", *FLAGS, *asked)
    assert code == ExitCode.OK
    assert empty_host.sysctl("net/ipv4/vs/conntrack") == empty_host.sysctl("net/ipv4/vs/expire_nodest_conn") == "1"
    assert (empty_host.sysctl(f"{CONNTRACK}udp_timeout"), empty_host.sysctl(f"{CONNTRACK}udp_timeout_stream")) == (
        "7", "9",
    )  # fmt: skip
    assert empty_host.sysctl(f"{CONNTRACK}tcp_timeout_established") == "86400"
    assert timeouts(empty_host)[0] == 7500
    assert (bound(empty_host), sets(empty_host), virtual_servers(empty_host)) == (set(), [], [])
    assert all(without_chains(rules(empty_host, version)) for version in (4, 6))


def test_a_start_behind_init_only_writes_no_sysctl(empty_host, tmp_path):
    program(empty_host, "--init-only", *FLAGS)
    with proxy_on(empty_host, tmp_path, DNS, flags=(*FLAGS, "-v=2")) as proxy:
        proxy.wait_for_services()
        applied = [line["operation"] for line in proxy.lines() if line["event"] == "operation_applied"]
        assert proxy.stop() == ExitCode.OK
    assert applied
    assert not [operation for operation in applied if " sysctl " in operation]


@pytest.mark.parametrize("is_named, code", [(True, ExitCode.OK), (False, ExitCode.ERROR)])
def test_two_capabilities_are_enough_for_sysctls_where_the_hosts_folder_is_mounted_and_named(
    empty_host, tmp_path, is_named, code
):
    named = [f"--proc-sys-net={tmp_path}"] if is_named else []
    words = [sys.executable, "-m", "ipvsproxy", "--init-only", *FLAGS, "--ipvs-strict-arp", *named]
    with empty_host.inside():
        container = ["unshare", "--mount", "sh", "-c", AS_A_CONTAINER, "container", str(tmp_path)]
        done = subprocess.run([*container, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert empty_host.sysctl("net/ipv4/conf/all/arp_ignore") == ("1" if is_named else "0")


def test_k45_init_only_answers_unsupported_for_a_scheduler_that_the_kernel_lacks(empty_host):
    code, _ = program(empty_host, "--init-only", *FLAGS, "--ipvs-scheduler=nosuch")
    assert code == ExitCode.UNSUPPORTED


LIMIT = Path("/proc/sys/net/netfilter/nf_conntrack_max")
BUCKETS = Path("/sys/module/nf_conntrack/parameters/hashsize")


@pytest.fixture
def limit() -> Iterator[int]:
    """Entries that connection tracking may have, in the first network namespace, whose limit alone can be set."""
    load(["nf_conntrack"])
    before, buckets = LIMIT.read_text(), BUCKETS.read_text()
    try:
        LIMIT.write_text(before)
    except OSError:
        pytest.skip("not in the machine's first network namespace: its limits are nobody's to set here")
    yield int(before)
    LIMIT.write_text(before)
    BUCKETS.write_text(buckets)


def init_only(*flags: str) -> int:
    """The exit code of --init-only, in this process and its own network namespace."""
    return cli.run(("--init-only", *FLAGS, *flags), cli.Programs())


def test_k41_the_limit_of_connection_tracking_is_raised_with_its_hash_table_never_lowered_and_0_leaves_it(limit: int):
    more = limit + 4096
    assert init_only("--conntrack-max-per-core=1", f"--conntrack-min={more}") == ExitCode.OK
    assert (int(LIMIT.read_text()), int(BUCKETS.read_text()) >= more // 4) == (more, True)
    assert init_only("--conntrack-max-per-core=1", f"--conntrack-min={limit}") == ExitCode.OK
    assert int(LIMIT.read_text()) == more
    assert init_only("--conntrack-max-per-core=0", f"--conntrack-min={2 * more}") == ExitCode.OK
    assert int(LIMIT.read_text()) == more


def test_k41_where_the_limit_cannot_be_set_a_node_serves_all_the_same(empty_host, tmp_path):
    """A network namespace but the first is like a container with a read-only tree."""
    flags = (*FLAGS, "--conntrack-max-per-core=1000000", "--conntrack-min=2000000")
    with proxy_on(empty_host, tmp_path, DNS, flags=flags) as proxy:
        assert proxy.wait_for_services()["refused"] == 0
        told = [line for line in proxy.lines() if line["event"] == "host_setting_refused"]
        assert proxy.stop() == ExitCode.OK
    assert {line["file"] for line in told} == {str(LIMIT), str(BUCKETS)}
    assert {line["level"] for line in told} == {"warning"}


def test_k39_estimation_is_off_where_it_is_asked_for_and_else_as_it_was_or_it_is_said_that_there_is_no_switch(
    empty_host, capsys
):
    for flags, value in (((), "1"), (("--ipvs-estimation=off",), "0"), ((), "0")):
        assert program(empty_host, "--init-only", *FLAGS, *flags)[0] == ExitCode.OK
        is_told = "run_estimation" in capsys.readouterr().err
        try:
            assert (empty_host.sysctl("net/ipv4/vs/run_estimation"), is_told) == (value, value == "0" and bool(flags))
        except FileNotFoundError:  # as before Linux 5.16
            assert is_told == bool(flags)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    """A cluster of its own: in the shared one a proxy runs already."""
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def node(hosts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyNode]:
    """Its node, where UDP clients are forgotten soon."""
    flags = (f"--ipvs-udp-timeout={UDP_TIMEOUT_S}s", "--ipvs-drain-timeout=0")
    with proxy_node(hosts, tmp_path_factory.mktemp("proxy"), *flags) as node:
        node.sync(DNS)
        yield node


def remembered(node: ProxyNode, client_port: int) -> list[int]:
    """For how many seconds more IPVS remembers the UDP client at this port."""
    lines = node.host.run("ipvsadm", "-L", "-n", "-c").splitlines()
    found = [re.search(rf"UDP +([0-9]+):([0-9]+) .*:{client_port} ", line) for line in lines]
    return [60 * int(match[1]) + int(match[2]) for match in found if match]


def test_k07_a_quiet_udp_client_is_forgotten_after_the_time_out_and_given_the_other_server(node: ProxyNode):
    """With rr two servers take turns, so that only a client that was forgotten comes to the other one."""
    with node.hosts["a3"].socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(30)
        client.bind(("", 0))
        port = client.getsockname()[1]

        def asked() -> str:
            client.sendto(b"?", ("10.96.0.10", 53))
            return client.recvfrom(512)[0].split()[0].decode()

        first = asked()
        assert [0 <= left <= UDP_TIMEOUT_S for left in remembered(node, port)] == [True]
        assert asked() == first
        node.proxy.wait_until(lambda: remembered(node, port) == [])
        assert {first, asked()} == {"a1", "a2"}
