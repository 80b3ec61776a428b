"""The rows behind every view, and which of them are selected."""

from __future__ import annotations

from functools import partial

import pytest

from ipvsproxy.cluster.known import Known, KnownDrain, KnownEndpoint, KnownHead, KnownPort, KnownService
from ipvsproxy.model.addr import format_endpoint, parse_cidr
from ipvsproxy.model.enums import Family
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer, full_netmask
from ipvsproxy.status.names import Names
from ipvsproxy.status.rows import VirtualRow, rows
from ipvsproxy.status.select import Frontend, Selection, WantedService, is_wanted, select
from tests.builders import addr


def real(address: str, weight: int = 1) -> ObservedRealServer:
    return ObservedRealServer(addr(address), 8080, weight=weight)


def virtual(address: str, *reals: ObservedRealServer, port: int = 80, fwmark: int = 0) -> ObservedVirtualServer:
    mask = full_netmask(Family.IPV4)
    return ObservedVirtualServer(
        Family.IPV4, 0 if fwmark else 6, addr(address), port, fwmark, "rr", 2, 0, mask, real_servers=reals
    )


WEB, API, FOREIGN, MARK = "10.96.0.20:80", "10.96.0.30:443", "10.99.0.9:80", "mark 7"
TABLE = (
    virtual("10.99.0.9", real("10.9.0.1")),
    virtual("10.96.0.20", real("10.244.1.6", 0), real("10.244.1.5"), real("10.244.1.7"), real("10.244.1.8")),
    virtual("10.96.0.30", real("10.244.1.9", 0), port=443),
    virtual("0.0.0.0", fwmark=7, port=0),
)
SERVICES = (
    KnownService(
        "shop", "web", "2026-01-01T00:00:00Z", ("10.96.0.20",), (KnownPort("TCP", 80, "http"),),
        (
            KnownEndpoint("10.244.1.5", "ready", "web-5"),
            KnownEndpoint("10.244.1.6", "terminating", "web-6"),
            KnownEndpoint("10.244.1.7", "terminating", "web-7"),
        ),
    ),
    KnownService("bank", "api", "2026-01-01T00:00:00Z", ("10.96.0.30",), (KnownPort("TCP", 443),)),
)  # fmt: skip
DRAINS = (KnownDrain("TCP", "10.96.0.20", 80, "10.244.1.6", 8080, 61.5),)
NAMES = Names(Known(KnownHead(1, drains=DRAINS), SERVICES))


def title(row: VirtualRow) -> str:
    return f"mark {row.server.fwmark}" if row.server.fwmark else format_endpoint(row.server.address, row.server.port)


def shown(**conditions) -> dict[str, list[str]]:
    """Each selected virtual server with the last number of its real servers' addresses."""
    found = select(rows(TABLE, NAMES), Selection(**conditions))
    return {title(row): [str(each.server.address[-1]) for each in row.real_rows] for row in found}


def test_rows_come_in_ipvsadms_order_and_so_do_real_servers():
    assert list(shown()) == [WEB, API, FOREIGN, MARK]
    assert shown()[WEB] == ["5", "6", "7", "8"]


def test_k53_each_real_server_says_how_it_is():
    (web, *_) = rows(TABLE, NAMES)
    states = {str(each.server.address[-1]): (each.state, each.left_s) for each in web.real_rows}
    assert states == {
        "5": ("ready", None), "6": ("draining", 61.5), "7": ("terminating", None), "8": ("unknown", None),
    }  # fmt: skip


def test_without_names_only_the_weight_tells_anything():
    (web, *_) = rows(TABLE)
    assert [each.state for each in web.real_rows] == ["", "draining", "", ""]
    assert (web.owner, web.is_ours) == (None, None)


def test_a_pod_that_drains_keeps_its_name():
    (web, *_) = rows(TABLE, NAMES)
    assert [each.endpoint.pod for each in web.real_rows if each.endpoint] == ["web-5", "web-6", "web-7"]


def test_what_no_service_wants_is_not_ours():
    assert {title(row): row.is_ours for row in rows(TABLE, NAMES)} == {
        WEB: True, API: True, FOREIGN: False, MARK: False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "conditions,expected",
    [
        pytest.param({"namespace": "shop"}, [WEB], id="a namespace"),
        pytest.param({"namespace": "nosuch"}, [], id="a namespace without any"),
        pytest.param({"service": WantedService("bank", "api")}, [API], id="a Service"),
        pytest.param({"service": WantedService("bank", "web")}, [], id="a Service of another namespace"),
        pytest.param({"service": WantedService("shop", "web", "http")}, [WEB], id="a port by name"),
        pytest.param({"service": WantedService("shop", "web", "80")}, [WEB], id="a port by number"),
        pytest.param({"service": WantedService("shop", "web", "https")}, [], id="a port that it does not have"),
        pytest.param({"frontend": Frontend(6, addr("10.96.0.30"), 443)}, [API], id="a virtual server"),
        pytest.param({"frontend": Frontend(17, addr("10.96.0.30"), 443)}, [], id="of another protocol"),
        pytest.param({"frontend": Frontend(0, b"", 0, 7)}, [MARK], id="a firewall mark"),
        pytest.param({"empty": True}, [API, MARK], id="nobody behind it who gets connections"),
        pytest.param({"not_ours": True}, [FOREIGN, MARK], id="somebody else's"),
        pytest.param({"not_ours": True, "empty": True}, [MARK], id="two conditions at once"),
    ],
)
def test_virtual_servers_are_selected_by(conditions, expected):
    assert list(shown(**conditions)) == expected


def test_only_of_virtual_servers_that_are_wanted_the_kernel_is_asked_for_real_servers():
    asked = []

    def real_servers_of(server: ObservedVirtualServer) -> tuple[ObservedRealServer, ...]:
        asked.append(server.port)
        return server.real_servers

    wanted = partial(is_wanted, selection=Selection(namespace="bank"))
    assert [title(row) for row in rows(TABLE, NAMES, real_servers_of, wanted)] == [API]
    assert asked == [443]


def test_draining_shows_the_real_servers_that_drain_alone():
    assert shown(draining=True) == {WEB: ["6"], API: ["9"]}


@pytest.mark.parametrize(
    "network,expected",
    [
        pytest.param("10.96.0.20/32", {WEB: ["5", "6", "7", "8"]}, id="its own address: with all behind it"),
        pytest.param("10.244.1.6/31", {WEB: ["6", "7"]}, id="those behind it: with these alone"),
        pytest.param("fd00::/8", {}, id="another family"),
    ],
)
def test_an_address_selects_a_virtual_server_by(network, expected):
    assert shown(networks=(parse_cidr(network),)) == expected


@pytest.mark.parametrize(
    "selection", [Selection(namespace="a"), Selection(service=WantedService("a", "b")), Selection(not_ours=True)]
)
def test_some_conditions_need_names(selection):
    assert selection.needs_names
    assert not Selection(draining=True, empty=True).needs_names
