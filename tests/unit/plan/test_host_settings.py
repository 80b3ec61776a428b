from __future__ import annotations

import pytest

from ipvsproxy.plan.host_settings import (
    CONNTRACK_MAX,
    HASHSIZE,
    HostSetting,
    conntrack_max,
    conntrack_settings,
    parse_cpu_list,
)
from tests.builders import conntrack

NETFILTER = "proc/sys/net/netfilter"


@pytest.mark.parametrize(
    "per_core,minimum,cpus,entries",
    [
        pytest.param(32768, 131072, 2, 131072, id="few cores: the minimum"),
        pytest.param(32768, 131072, 4, 131072, id="as many as the minimum"),
        pytest.param(32768, 131072, 8, 262144, id="so many a core"),
        pytest.param(32768, 131072, 64, 1048576, id="64 cores: the cap of what is scaled"),
        pytest.param(32768, 2000000, 64, 2000000, id="a minimum above the cap holds"),
        pytest.param(32768, 0, 1, 32768, id="no minimum"),
        pytest.param(0, 131072, 64, 0, id="0 a core leaves what is there, whatever the minimum"),
    ],
)
def test_k41_as_many_connections_are_trackable_as_cores_and_minimum_say(per_core, minimum, cpus, entries):
    assert conntrack_max(per_core, minimum, cpus) == entries


def test_k41_the_table_grows_with_the_limit():
    assert conntrack_settings(conntrack(max_per_core=32768, min=131072), 2) == (
        HostSetting(CONNTRACK_MAX, 131072, at_least=True),
        HostSetting(HASHSIZE, 32768, at_least=True),
    )


def test_k41_a_higher_limit_stays():
    limit = HostSetting(CONNTRACK_MAX, 131072, at_least=True)
    assert [limit.is_met_by(found) for found in (131071, 131072, 262144, None)] == [False, True, True, False]


def test_nothing_is_asked_for_by_zeros():
    assert conntrack_settings(conntrack(), 64) == ()


@pytest.mark.parametrize(
    "options,path,value",
    [
        pytest.param(
            {"tcp_established_timeout_s": 86400}, "nf_conntrack_tcp_timeout_established", 86400, id="established"
        ),
        pytest.param({"tcp_close_wait_timeout_s": 3600}, "nf_conntrack_tcp_timeout_close_wait", 3600, id="close wait"),
        pytest.param({"tcp_be_liberal": True}, "nf_conntrack_tcp_be_liberal", 1, id="liberal"),
        pytest.param({"udp_timeout_s": 10}, "nf_conntrack_udp_timeout", 10, id="UDP"),
        pytest.param({"udp_stream_timeout_s": 20}, "nf_conntrack_udp_timeout_stream", 20, id="UDP in both directions"),
    ],
)
def test_each_option_is_a_sysctl_of_its_own(options, path, value):
    assert conntrack_settings(conntrack(**options), 2) == (HostSetting(f"{NETFILTER}/{path}", value),)


def test_a_time_is_set_whether_the_present_one_is_longer_or_shorter():
    setting = HostSetting("any", 10)
    assert [setting.is_met_by(found) for found in (9, 10, 11)] == [False, True, False]


@pytest.mark.parametrize(
    "text,count",
    [("0-63\n", 64), ("0\n", 1), ("0-3,8,10-11", 7), ("", 0), ("all", 0), ("0-", 1), ("-1", 0), ("1-x", 0)],
)
def test_a_list_of_cpus_is_counted(text, count):
    assert parse_cpu_list(text) == count
