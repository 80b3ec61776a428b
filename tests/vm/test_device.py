"""What others do to kube-ipvs0 while ipvsproxy runs: it notices, and puts back what is missing (K42)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clusters import Svc
from tests.lab.traffic import ask
from tests.vm.nodes import ProxyNode, bound

VIPS = ("10.96.0.20", "2001:db8:96::20")
BOUND = {"10.96.0.20/32", "2001:db8:96::20/128"}
WEB = Svc("web", VIPS, endpoints=(("10.244.1.5", True), ("2001:db8:244:1::5", True)))


def change_device(node: ProxyNode, *commands: str, done: Callable[[], bool]) -> None:
    """Let somebody change the device, and wait for syncs until `done`."""
    node.proxy.mark()
    node.host.ip(*commands)
    while not done():
        node.proxy.wait_for("sync_finished")


def has_vips(node: ProxyNode) -> bool:
    """Whether both are bound; those of an earlier test may stay for a minute."""
    return bound(node.host) >= BOUND


def link_is_down(node: ProxyNode) -> bool:
    return "state DOWN" in node.host.run("ip", "link", "show", "dev", "kube-ipvs0")


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(["addr del 10.96.0.20/32 dev kube-ipvs0"], id="an IPv4 address is deleted"),
        pytest.param(["addr del 2001:db8:96::20/128 dev kube-ipvs0"], id="an IPv6 address is deleted"),
        pytest.param(["addr flush dev kube-ipvs0"], id="all addresses are flushed"),
        pytest.param(
            ["link set kube-ipvs0 up", "link set kube-ipvs0 down"],
            id="the link goes up and down, at which the kernel drops all IPv6 addresses",
        ),
        pytest.param(["link del kube-ipvs0"], id="the link is deleted"),
    ],
)
def test_addresses_come_back_when(node: ProxyNode, commands):
    node.sync(WEB)
    assert has_vips(node)
    change_device(node, *commands, done=lambda: has_vips(node))
    for vip in VIPS:
        assert ask(node.hosts["a2"], vip, 80).server == "a1"
    assert link_is_down(node)


def test_addresses_work_on_a_link_that_somebody_took_up(node: ProxyNode):
    node.sync(WEB)
    node.host.ip("link set kube-ipvs0 up")
    try:
        for vip in VIPS:
            assert ask(node.hosts["a2"], vip, 80).server == "a1"
    finally:
        change_device(node, "link set kube-ipvs0 down", done=lambda: has_vips(node))


def test_no_route_and_no_neighbour_entry_comes_with_an_address(node: ProxyNode):
    node.sync(WEB)
    assert "kube-ipvs0" not in node.host.run("ip", "-6", "route", "show", "table", "main")
    assert "tentative" not in node.host.run("ip", "addr", "show", "dev", "kube-ipvs0")
