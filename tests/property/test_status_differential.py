"""Random IPVS states and command lines, shown to the real ipvsadm and to us: bytes and exit codes are the same.

The real one needs neither root nor IPVS here (tests/data/ipvsadm_oracle). Where it is not installed the test fails: a
comparison that is left out would look like one that passed.
"""

from __future__ import annotations

import contextlib
import io
import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ipvsproxy import status_command
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.resolver import SystemResolver
from ipvsproxy.status.arguments import written_by
from tests.data.ipvsadm_oracle.oracle import Oracle, OracleError
from tests.unit.status.fixture_cases import around

_U32 = st.integers(0, 2**32 - 1)
_PORTS = st.sampled_from([0, 53, 80, 443, 65535]) | st.integers(0, 65535)
_EDGES = ["0.0.0.1", "10.0.0.1", "10.244.1.7", "127.255.255.255", "128.0.0.0", "172.16.0.1", "192.168.0.1", "253.0.0.0"]
_IPV4 = st.sampled_from(_EDGES) | _U32.map(lambda number: socket.inet_ntoa(number.to_bytes(4)))
_IPV6_EDGES = ["::1", "2001:db8::1", "2001:db8::8000:1", "fd00::1", "fd00:0:0:8000::1", "::ffff:10.0.0.1", "::10.0.0.1"]
_IPV6 = st.sampled_from(_IPV6_EDGES) | st.binary(min_size=16, max_size=16).map(
    lambda packed: socket.inet_ntop(socket.AF_INET6, packed)
)
_ADDRESSES = {Family.IPV4: _IPV4, Family.IPV6: _IPV6}
_MASKS = {
    Family.IPV4: st.sampled_from(["ffffffff", "ffffff00", "00000000"]) | _U32.map("{:08x}".format),
    Family.IPV6: (st.sampled_from([128, 64, 1]) | _U32).map(lambda length: length.to_bytes(4, sys.byteorder).hex()),
}
_SCHEDULERS = st.sampled_from(["rr", "wrr", "lc", "wlc", "sh", "mh", "dh", "lblc", "lblcr", "sed", "nq", "fo", "ovf"])
# Every limit of the columns' scales, and what 32 bits make of it.
_EDGES_OF_COUNTERS = [edge + step for edge in (10**8, 10**9, 10**11, 10**14, 2**32) for step in (-1, 0)]
_COUNTERS = ("conns", "inpkts", "outpkts", "inbytes", "outbytes", "cps", "inpps", "outpps", "inbps", "outbps")


def _statistics(seed: int) -> dict[str, int]:
    """Counters of all sizes; drawn one by one by hypothesis they would cost more than everything else together."""
    chance = random.Random(seed)  # noqa: S311  # numbers to compare, no secrets
    sizes = [chance.randrange(5000), chance.choice(_EDGES_OF_COUNTERS), chance.randrange(1 << chance.randrange(1, 65))]
    return {name: chance.choice([*sizes, 2**64 - 1]) for name in _COUNTERS}


_STATISTICS = _U32.map(_statistics)


def _real_servers(family: Family) -> st.SearchStrategy[dict[str, object]]:
    """Mostly of `family`; tunnel flags stop at 2, since ipvsadm -S crashes beyond."""
    families = st.sampled_from([family, family, family, Family.IPV4, Family.IPV6])
    return families.flatmap(
        lambda own: st.fixed_dictionaries(
            {"af": st.just(int(own)), "addr": _ADDRESSES[own], "port": _PORTS},
            optional={
                "fwd": st.sampled_from([0, 1, 2, 2, 2, 3]) | _U32,
                "weight": st.integers(0, 100) | _U32,
                "active": st.integers(0, 100) | _U32,
                "inactive": st.integers(0, 100) | _U32,
                "persist": st.integers(0, 100) | _U32,
                "u_thresh": st.integers(0, 100) | _U32,
                "l_thresh": st.integers(0, 100) | _U32,
                "stats64": _STATISTICS,
                "tun_type": st.integers(0, 3),
                "tun_port": _PORTS,
                "tun_flags": st.integers(0, 2),
            },
        )
    )


def _virtual_servers(family: Family) -> st.SearchStrategy[dict[str, object]]:
    ordinary = st.fixed_dictionaries(
        {
            "protocol": st.sampled_from(Protocol).map(int) | st.integers(1, 255),
            "addr": _ADDRESSES[family],
            "port": _PORTS,
        }
    )
    marked = st.fixed_dictionaries(
        {"fwmark": st.sampled_from([1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(1, 2**32 - 1)}
    )
    settings_of_both = st.fixed_dictionaries(
        {"af": st.just(int(family)), "dests": st.lists(_real_servers(family), max_size=4)},
        optional={
            "sched": _SCHEDULERS,
            "flags": st.integers(0, 0x3F),
            "timeout": st.integers(1, 10800) | _U32,
            "netmask_hex": _MASKS[family],
            "pe": st.just("sip"),
            "stats64": _STATISTICS,
        },
    )
    return st.builds(lambda identity, rest: identity | rest, ordinary | ordinary | marked, settings_of_both)


def _identity(service: dict[str, object]) -> tuple[object, ...]:
    return tuple(service.get(name) for name in ("af", "fwmark", "protocol", "addr", "port"))


def _services(fewest: int, most: int) -> st.SearchStrategy[list[dict[str, object]]]:
    any_family = st.sampled_from(Family).flatmap(_virtual_servers)
    return st.lists(any_family, min_size=fewest, max_size=most, unique_by=_identity)


_DAEMONS = st.fixed_dictionaries(
    {
        "state": st.sampled_from([1, 2]),
        "mcast_ifn": st.sampled_from(["eth0", "bond0.100"]),
        "syncid": st.integers(0, 255),
    },
    optional={
        "sync_maxlen": st.integers(0, 65507),
        "port": st.integers(0, 65535),
        "ttl": st.integers(0, 255),
        "group": st.just("224.0.0.81"),
    },
)


def _states(services: st.SearchStrategy[list[dict[str, object]]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "services": services,
            "version": st.integers(0x10000, 0xFFFFFF),
            "conn_tab_size": st.integers(8, 27).map(lambda bits: 1 << bits) | _U32,
        },
        optional={
            "daemons": st.lists(_DAEMONS, max_size=2),
            "timeouts": st.fixed_dictionaries({"tcp": _U32, "tcp_fin": _U32, "udp": _U32}),
        },
    )


# Hypothesis draws mostly short lists, while the order shows in long ones.
_STATES = _states(_services(1, 12) | _services(1, 12) | _services(20, 40))
_SMALL_STATES = _states(_services(1, 4))


def _packed_text(family: Family, text: str) -> str:
    """As /proc/net/ip_vs_conn writes an address."""
    packed = socket.inet_pton(family, text).hex()
    return packed.upper() if family is Family.IPV4 else ":".join(packed[i : i + 4] for i in range(0, 32, 4))


def _connections(family: Family) -> st.SearchStrategy[str]:
    address = _ADDRESSES[family].map(lambda text: _packed_text(family, text))
    other = st.sampled_from(Family).flatmap(
        lambda own: _ADDRESSES[own].map(lambda text: _packed_text(own, text))
    )  # a tunnel's
    port = _PORTS.map("{:04X}".format)
    protocol = st.sampled_from(["TCP", "UDP", "SCTP", "IP"])
    state = st.sampled_from(["ESTABLISHED", "SYN_RECV", "UDP", "NONE", "SHUTDOWN_ACK_SENT"[:15]])
    engine = st.sampled_from([(), ("sip", "a84b4c76e66710@pc33.example.test")])
    expiry = (st.integers(0, 10800) | _U32).map(str)
    columns = st.tuples(protocol, address, port, address, port, other, port, state, expiry)
    return st.builds(lambda plain, more: " ".join((*plain, *more)), columns, engine)


_CONNECTIONS = st.lists(st.sampled_from(Family).flatmap(_connections), max_size=6).map(
    lambda rows: "".join(
        f"{row}\n" for row in ("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires", *rows)
    )
)

_LISTS = st.sampled_from([["-Ln"], ["-ln"], ["-L", "-n"], ["--list", "--numeric"]])
_VIEWS = st.sampled_from(["--stats", "--rate", "--thresholds", "--persistent-conn", "--tun-info"])
_MANNERS = st.sampled_from([["-X"], ["--nosort"], ["--sort"], ["--syncid", "7"], ["--syncid=0"]])
_OTHERS = st.sampled_from([["-c"], ["--connection"], ["--timeout"], ["--daemon"], ["-c", "--persistent-conn"]])
_SAVES = st.sampled_from([["-Sn"], ["-S", "-n"], ["--save", "--numeric"], ["-Sn", "--sort"]])
_TEXTS = st.sampled_from([["-h"], ["--help"], ["-v"], ["--version"], ["-hx"], ["-v", "-L"]])
# What belongs to commands that write, what is no option at all, and values that fit no option. No host names.
_WRONG = st.sampled_from(
    [
        *(["-s", "rr"], ["-s", "sh"], ["-p"], ["-p", "30"], ["-p30"], ["-p", "0"], ["-p", "2678401"], ["-M", "255.0"]),
        *(["-r", "10.0.0.1:80"], ["-r", "80"], ["-r", "[::1]"], ["-m"], ["-i"], ["-g"], ["--ipip"], ["-w", "1"]),
        *(["-w", "-1"], ["-w", "70000"], ["-x", "1"], ["-x", ""], ["-y", "2"], ["--mcast-interface", "eth0"], ["-o"]),
        *(["--pe", "sip"], ["-b", "flag-1"], ["-b", "sh-port"], ["-b", "mh-port,x"], ["-b", ""], ["--mcast-port=0"]),
        *(["--mcast-group", "224.0.0.1"], ["--mcast-group", "1.1.1.1"], ["--mcast-group", "ff02::1"]),
        *(["--mcast-group", "fe80::1"], ["--mcast-port", "1"], ["--mcast-ttl", "256"], ["--mcast-ttl", "255"]),
        *(["--sync-maxlen", "65507"], ["--sync-maxlen", "65508"], ["--tun-type", "gue"], ["--tun-type", "GUE"]),
        *(["--tun-port", "1"], ["--tun-port", "65536"], ["--tun-nocsum"], ["--tun-csum"], ["--tun-remcsum"]),
        *(["-A"], ["-Z"], ["-L"], ["-S"], ["-h"], ["--version"], ["--start-daemon", "x"], ["--stop-daemon"]),
        *(["--"], ["-"], ["foo"], [""], ["--bogus"], ["--bogus=1"], ["-q"], ["-nq"], ["--stats=1"], ["-n=1"], ["---"]),
        *(["-6"], ["-n"], ["-f", "0"], ["-f", "4294967296"], ["-f", "1", "-6"], ["-f", "x"], ["-t"], ["-t", ""]),
        *(["-t", "80"], ["-t", "[::1"], ["-t", "[::1]"], ["-t", "::1"], ["-t", "[10.0.0.1]:80"], ["-t10.1:80"]),
        *(["-u", "10.0.0.1:65536"], ["-t", "10.0.0.1:+80"], ["-t", "10.0.0.1:-1"], ["-t=10.0.0.1:80"]),
        *(["--sctp-service", "10.0.0.1:80"], ["--tcp-service=10.0.0.1"], ["--syncid", "256"], ["--syncid"]),
    ]
)


def _selector(service: dict[str, Any]) -> list[str]:
    """The option that names a service, where there is one."""
    if "fwmark" in service:
        return ["-f", str(service["fwmark"]), *(["-6"] if service["af"] == Family.IPV6 else [])]
    host = f"[{service['addr']}]" if service["af"] == Family.IPV6 else service["addr"]
    option = {6: "-t", 17: "-u", 132: "--sctp-service"}.get(service["protocol"])
    return [option, f"{host}:{service['port']}"] if option else []


def _joined(*parts: list[str]) -> list[str]:
    return [word for part in parts for word in part]


def _sound(state: dict[str, Any]) -> st.SearchStrategy[list[str]]:
    """Command lines that list something."""
    views = st.lists(_VIEWS, max_size=2, unique=True)
    manners = st.lists(_MANNERS, max_size=2, unique_by=lambda words: words[0].strip("-")[:4]).map(
        lambda chosen: _joined(*chosen)
    )
    chosen = st.just([]) | st.sampled_from([_selector(service) for service in state["services"]])
    return st.builds(_joined, _LISTS, views, manners, chosen) | st.builds(_joined, _LISTS, _OTHERS) | _SAVES


_FAULTY = st.builds(
    lambda start, parts, at: _joined(*parts[:at], start, *parts[at:]),
    _LISTS | _LISTS | _SAVES | _TEXTS,
    st.lists(_WRONG | _OTHERS | _VIEWS.map(lambda view: [view]), max_size=4),
    st.sampled_from([0, 0, 0, 1]),
)
_NAMED = st.sampled_from(
    [["-L"], [], ["-L", "-t", "localhost:80"], ["-L", "--stats"], ["-L", "--nosort"], ["-S"], ["-L", "-c"]]
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """The real ipvsadm, or a failure that says what is missing."""
    try:
        return Oracle(tmp_path_factory.mktemp("shim"))
    except OracleError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def connections(tmp_path_factory):
    """A file that takes the place of /proc/net/ip_vs_conn."""
    return tmp_path_factory.mktemp("proc") / "ip_vs_conn"


def ours(state: dict[str, Any], words: list[str], connections: Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = status_command.run_as_ipvsadm(words, around(state, connections, SystemResolver()))
    return code, out.getvalue(), err.getvalue()


def theirs(oracle: Oracle, state: dict[str, Any], words: list[str], connections: Path) -> tuple[int, str, str]:
    done = oracle.run(state, words, connections=connections)
    message = done.stderr.decode().replace("/proc/net/ip_vs_conn", str(connections))
    return done.returncode, done.stdout.decode(), message


_SLOW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
_LIMIT = pytest.mark.timeout(400)  # a counterexample may be shrunk for the five minutes that hypothesis allows itself


@_LIMIT
@_SLOW
@given(state=_STATES, rows=_CONNECTIONS, data=st.data())
def test_any_state_is_listed_and_saved_as_the_real_ipvsadm_does(oracle, connections, state, rows, data):
    connections.write_text(rows)
    for words in data.draw(st.lists(_sound(state), min_size=2, max_size=2)):
        expected = theirs(oracle, state, words, connections)
        assert expected[0] == 0
        assert ours(state, words, connections) == expected


@_LIMIT
@_SLOW
@given(state=_SMALL_STATES, lines=st.lists(_FAULTY, min_size=3, max_size=3))
def test_any_command_line_is_understood_or_refused_as_by_the_real_ipvsadm(oracle, connections, state, lines):
    connections.write_text("")
    for words in lines:
        event("writes" if written_by(words) else "reads")
        if not written_by(words):
            assert ours(state, words, connections) == theirs(oracle, state, words, connections)


@_LIMIT
@_SLOW
@given(state=_SMALL_STATES, words=_NAMED)
def test_names_are_the_systems_as_with_the_real_ipvsadm(oracle, connections, state, words):
    """Of the loopback addresses, which every system knows by a name of its own without asking any server."""
    loopback = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
    for service in state["services"]:
        for entry in (service, *service["dests"]):
            if "addr" in entry:
                entry["addr"] = loopback[entry["af"]]
    addresses = [_packed_text(family, text) for family, text in loopback.items()]
    rows = [f"TCP {address} 0050 {address} 01BB {address} 0035 ESTABLISHED 899\n" for address in addresses]
    connections.write_text("".join(["title\n", *rows]))
    assert ours(state, words, connections) == theirs(oracle, state, words, connections)
