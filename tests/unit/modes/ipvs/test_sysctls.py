from __future__ import annotations

import pytest

from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.modes.ipvs.sysctls import ALL_SYSCTLS, sysctl_objects

REUSE = "net.ipv4.vs.conn_reuse_mode"
ALWAYS = {
    "net.ipv4.vs.conntrack": "1",
    "net.ipv4.vs.expire_nodest_conn": "1",
    "net.ipv4.vs.expire_quiescent_template": "1",
    "net.ipv4.ip_forward": "1",
}


def values(*, strict_arp=False, kernel_release=None):
    objects = sysctl_objects(strict_arp=strict_arp, kernel_release=kernel_release)
    assert {kind for kind, _ in objects} == {Kind.SYSCTL}
    return {key: value for (_, key), value in objects.items()}


@pytest.mark.parametrize(
    "release,written",
    [
        pytest.param((4, 0), {}, id="4.0 does not have it in this form"),
        pytest.param((4, 1), {REUSE: "0"}, id="4.1 drops the SYN of a reused port"),
        pytest.param((4, 19), {REUSE: "0"}, id="4.19 too"),
        pytest.param((5, 8), {REUSE: "0"}, id="5.8 too"),
        pytest.param((5, 9), {}, id="5.9 does not, and is left as found"),
        pytest.param((6, 12), {}, id="6.12 is left as found"),
        pytest.param(None, {}, id="an unknown kernel is taken for new"),
    ],
)
def test_k01_reuse_mode_is_switched_off_only_where_it_costs_a_second(release, written):
    assert values(kernel_release=release) == ALWAYS | written


def test_strict_arp_answers_for_the_asked_interface_only():
    strict = {"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2"}
    assert values(strict_arp=True) == ALWAYS | strict


def test_every_sysctl_that_may_be_written_is_read_at_start():
    assert set(values(strict_arp=True, kernel_release=(5, 4))) == ALL_SYSCTLS
