"""`ipvsproxy status` and the name ipvsadm beside the real ipvsadm, on what only a real kernel has.

Foreign virtual servers with the proxy stopped, live connections with the proxy at work, and a user who may not look.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipvsproxy import cli
from ipvsproxy.kernel import ipvs, ipvs_presence  # noqa: F401  # read while everything may be read
from tests.clusters import Svc
from tests.lab import no_ipvs, traffic
from tests.lab.hosts import Namespace
from tests.nobody import NOBODY, as_nobody
from tests.vm.nodes import ProxyNode, program
from tests.vm.places import A1, A2, ready

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "ipvsadm"
FOREIGN = """\
-A -t 10.96.0.20:80 -s rr
-a -t 10.96.0.20:80 -r 10.244.1.5:8080 -m -w 1
-a -t 10.96.0.20:80 -r 10.244.2.5:8080 -m -w 0 -x 200 -y 100
-A -u 10.96.0.10:53 -s rr -o
-A -t [2001:db8:96::20]:80 -s mh -b mh-port
-a -t [2001:db8:96::20]:80 -r [2001:db8:244:1::5]:8080 -m -w 1
-A --sctp-service 192.168.0.1:5060 -s wlc -p 300 -M 255.255.255.0
-A -t 203.0.113.99:443 -s wlc -p 300
-a -t 203.0.113.99:443 -r 198.51.100.9:443 -i -w 3 --tun-type gue --tun-port 6080 --tun-csum
-a -t 203.0.113.99:443 -r 198.51.100.10:443 -g -w 65535
-A -f 1 -s lc
-a -f 1 -r 198.51.100.9:0 -g -w 1
-A -f 7 -6 -s rr
"""
# By number: who knows which server is asked for the names of such addresses, and how long it takes.
LISTS = [
    ("-L", "-n"),
    ("-ln", "--stats"),
    ("-Ln", "--stats", "-X"),
    ("-Ln", "--rate"),
    ("-Ln", "--rate", "--exact"),
    ("-Ln", "--thresholds"),
    ("-Ln", "--persistent-conn"),
    ("-Ln", "--tun-info"),
    ("-Ln", "--nosort"),
    ("-L", "--timeout"),
    ("-L", "--daemon"),
    ("-Lnc",),
    ("-Lnc", "--persistent-conn"),
    ("-S", "-n"),
]
ONE = [
    ("-Ln", "-t", "203.0.113.99:443"),
    ("-Ln", "--stats", "-u", "10.96.0.10:53"),
    ("-Ln", "--thresholds", "-t", "[2001:db8:96::20]:80"),
    ("-Ln", "-f", "1"),
    ("-Ln", "-f", "7", "-6"),
    ("-Ln", "--sctp-service", "192.168.0.1:5060"),
]
REFUSED = [
    ("-Ln", "-t", "10.96.0.99:80"),
    ("-Ln", "-f", "2"),
    ("-L", "--bogus"),
    ("-n", "-L"),
    ("-L", "-Z"),
    ("-L", "--timeout", "--daemon"),
    ("-S", "--stats"),
]
NAMED = [
    ("-L",),
    ("-L", "--stats"),
    ("-S",),
    ("-L", "-t", "localhost:http"),
    ("-L", "-t", "kube-dns:shell"),
    ("-L", "-t", "web-0:https"),
]
VIPS = ("10.96.7.1", "2001:db8:96::701")
UNDER_NAMES = """\
for name in hosts services; do mount --bind "$0/$name" "/etc/$name"; done
mount --bind "$0/nsswitch" /etc/nsswitch.conf
exec "$@"
"""
ATTEMPTS, MOVES_S = 30, 0.5  # the kernel estimates rates every other second

Result = tuple[int, str, str]


def ids(words: tuple[str, ...]) -> str:
    return " ".join(words) or "no arguments"


def theirs(host: Namespace, *words: str) -> Result:
    """What the real program answers; unlike `host.run` with its exit code and its errors."""
    with host.inside():
        done = subprocess.run(("ipvsadm", *words), capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def ours(host: Namespace, *words: str) -> Result:
    """The same of ours, in this process: a start of Python takes seconds under emulation."""
    out, err = io.StringIO(), io.StringIO()
    with host.inside(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(("ipvsadm", *words), cli.Programs())
    return code, out.getvalue(), err.getvalue()


def without_expiry(result: Result) -> Result:
    """Connections grow older between two calls."""
    code, out, err = result
    return code, re.sub(r"^(\S+ +)\d+:\d\d +", r"\1", out, flags=re.MULTILINE), err


@pytest.fixture
def host(empty_host: Namespace) -> Namespace:
    """With virtual servers of all kinds, none made by us."""
    empty_host.run("ipvsadm", "-R", given=FOREIGN)
    return empty_host


@pytest.mark.parametrize("words", [*LISTS, *ONE, *REFUSED], ids=ids)
def test_what_others_made_is_told_as_by_the_real_program(host, words):
    assert ours(host, *words) == theirs(host, *words)


def test_status_is_the_same_under_our_own_name(host):
    assert program(host, "status", "-L", "-n") == (0, host.run("ipvsadm", "-L", "-n"))


def test_what_status_saves_ipvsadm_restores(host):
    _, saved = program(host, "status", "-S", "-n")
    with Namespace("other") as other:
        other.run("ipvsadm", "-R", given=saved)
        assert other.run("ipvsadm", "-S", "-n") == host.run("ipvsadm", "-S", "-n")


@pytest.mark.parametrize("words", [(), ("-L",), ("-S",), *LISTS], ids=ids)
def test_an_empty_kernel_is_told_as_by_the_real_program(empty_host, words):
    assert ours(empty_host, *words) == theirs(empty_host, *words)


def test_sync_daemons_and_time_outs_are_those_that_were_set(empty_host):
    empty_host.ip("link add m0 type dummy", "addr add 192.0.2.77/24 dev m0", "link set m0 up")
    empty_host.run("ipvsadm", "--set", "901", "121", "301")
    empty_host.run("ipvsadm", "--start-daemon", "master", "--mcast-interface", "m0", "--syncid", "7")
    try:
        for words in (("-L", "--daemon"), ("-L", "--timeout")):
            assert ours(empty_host, *words) == theirs(empty_host, *words)
        assert "mcast=m0, syncid=7" in ours(empty_host, "-L", "--daemon")[1]
    finally:
        empty_host.run("ipvsadm", "--stop-daemon", "master")


@pytest.fixture
def live(node: ProxyNode):
    """The node's namespace while connections through a Service are open, and others have just ended."""
    node.sync(Svc("live", VIPS, endpoints=ready(A1, A2)))
    with contextlib.ExitStack() as stack:
        for client in ("a3", "outside"):
            for address in VIPS:
                traffic.ask(node.hosts[client], address, 80)
                stack.enter_context(traffic.stream_to("a1", node.hosts[client], address, 80))
        yield node.host


def test_live_connections_and_what_they_count_are_told_as_by_the_real_program(live):
    """Nothing passes meanwhile, yet states and estimates change by themselves: what moved is looked at once more."""
    assert ours(live, "-Lnc")[1].count("ESTABLISHED") >= 4
    for words in (*LISTS, ("-Ln", "--stats", "-t", f"{VIPS[0]}:80")):
        for _ in range(ATTEMPTS):
            before, seen, after = (without_expiry(told(live, *words)) for told in (theirs, ours, theirs))
            if before == after:
                break
            time.sleep(MOVES_S)
        assert before == after, f"{words} never stands still"
        assert seen == before


def test_names_are_those_of_the_system(empty_host):
    """The tables of the fixtures stand in /etc, for these programs alone."""
    empty_host.run("ipvsadm", "-R", given=(DATA / "names.save-n.out").read_text())

    def told(words: tuple[str, ...], *command: str) -> Result:
        inside = ("unshare", "--mount", "sh", "-c", UNDER_NAMES, str(DATA), *command, *words)
        with empty_host.inside():
            done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
        return done.returncode, done.stdout, done.stderr

    for words in NAMED:
        expected = told(words, "ipvsadm")
        assert told(words, sys.executable, "-m", "ipvsproxy", "ipvsadm") == expected
    assert told(("-S",), "ipvsadm")[1].count("frontend.shop.example.test")


@pytest.mark.parametrize("words", [("-L", "-n"), (), ("-h",), ("--bogus",)], ids=ids)
def test_who_may_not_look_is_told_so_as_by_the_real_program(host, words):
    with host.inside():
        done = subprocess.run(
            ("ipvsadm", *words), capture_output=True, text=True, check=False, timeout=120, user=NOBODY, group=NOBODY
        )
    out, err = io.StringIO(), io.StringIO()
    with host.inside(), as_nobody(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(("ipvsadm", *words), cli.Programs())
    assert (code, out.getvalue(), err.getvalue()) == (done.returncode, done.stdout, done.stderr)
    assert err.getvalue().startswith("Can't initialize ipvs: Permission denied (you must be root)\n")


def test_a_kernel_without_ipvs_is_told_as_by_the_real_program():
    """What root is told; without root it is another reason, see tests/unit/status/test_without_ipvs.py."""
    ipvsadm, program_of_ours = ("ipvsadm",), (sys.executable, "-m", "ipvsproxy", "ipvsadm")
    theirs, ours = (no_ipvs.run((*program, "-L", "-n")) for program in (ipvsadm, program_of_ours))
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert "Can't initialize ipvs: Protocol not available\n" in ours.stderr
