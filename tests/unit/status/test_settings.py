"""Settings as ipvsadm prints them, where the random states of tests/property seldom come."""

from __future__ import annotations

from ipvsproxy.status.settings import timeout_line


def test_a_time_out_from_2_to_the_31st_on_is_negative_as_ipvsadm_prints_it():
    line = timeout_line(900, 2**31 - 1, 2**31)

    assert line == "Timeout (tcp tcpfin udp): 900 2147483647 -2147483648"
