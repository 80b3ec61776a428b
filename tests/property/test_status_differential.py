"""Random IPVS states shown to the real ipvsadm and to us: the bytes are the same.

The real one needs neither root nor IPVS here (tests/data/ipvsadm_oracle). Where it is not installed the test fails: a
comparison that is left out would look like one that passed.
"""

from __future__ import annotations

import socket
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.status.listing import list_table, save
from tests.data.ipvsadm_oracle.oracle import Oracle, OracleError
from tests.unit.status.ipvs_states import observed_table

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
    Family.IPV6: st.sampled_from([128, 64, 1]).map(lambda length: length.to_bytes(4, sys.byteorder).hex()),
}
_SCHEDULERS = st.sampled_from(["rr", "wrr", "lc", "wlc", "sh", "mh", "dh", "lblc", "lblcr", "sed", "nq", "fo", "ovf"])


def _real_servers(family: Family) -> st.SearchStrategy[dict[str, object]]:
    """Mostly of `family`; tunnel flags stop at 2, since ipvsadm -S crashes beyond."""
    families = st.sampled_from([family, family, family, Family.IPV4, Family.IPV6])
    return families.flatmap(
        lambda own: st.fixed_dictionaries(
            {"af": st.just(int(own)), "addr": _ADDRESSES[own], "port": _PORTS},
            optional={
                "fwd": st.integers(0, 3) | _U32,
                "weight": st.integers(0, 100) | _U32,
                "active": st.integers(0, 100) | _U32,
                "inactive": st.integers(0, 100) | _U32,
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
        },
    )
    return st.builds(lambda identity, rest: identity | rest, ordinary | ordinary | marked, settings_of_both)


def _identity(service: dict[str, object]) -> tuple[object, ...]:
    return tuple(service.get(name) for name in ("af", "fwmark", "protocol", "addr", "port"))


def _services(fewest: int, most: int) -> st.SearchStrategy[list[dict[str, object]]]:
    any_family = st.sampled_from(Family).flatmap(_virtual_servers)
    return st.lists(any_family, min_size=fewest, max_size=most, unique_by=_identity)


_STATES = st.fixed_dictionaries(
    {
        # Hypothesis draws mostly short lists, while the order shows in long ones.
        "services": _services(1, 12) | _services(1, 12) | _services(20, 40),
        "version": st.integers(0x10104, 0xFFFFFF),
        "conn_tab_size": st.integers(8, 27).map(lambda bits: 1 << bits),
    }
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """The real ipvsadm, or a failure that says what is missing."""
    try:
        return Oracle(tmp_path_factory.mktemp("shim"))
    except OracleError as error:
        pytest.fail(str(error))


@pytest.mark.timeout(400)  # a counterexample may be shrunk for the five minutes that hypothesis allows itself
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(state=_STATES)
def test_any_state_is_listed_and_saved_as_the_real_ipvsadm_does(oracle, state):
    table = observed_table(state)
    for arguments, render in ((["-L", "-n"], list_table), (["-S", "-n"], save)):
        answer = oracle.run(state, arguments)
        assert (answer.returncode, answer.stderr) == (0, b"")
        assert "".join(f"{line}\n" for line in render(table)) == answer.stdout.decode()
