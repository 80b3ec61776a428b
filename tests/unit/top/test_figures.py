"""From samples to figures: rates, sums, order."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.figures import Undone
from ipvsproxy.model.flows import TableUsage, TrackingErrors
from ipvsproxy.model.observed import ObservedRealServer, ObservedVirtualServer, Statistics
from ipvsproxy.top.figures import Figures, Order, Row, Sample, ServerSample, figures, in_order, sample_of
from tests.builders import addr

COUNTED = Statistics(100, 1000, 900, 50_000, 90_000, 7, 11, 12, 13, 14)
WEB = ServerSample("10.96.0.20:80/TCP", COUNTED, servers=3, serving=2, draining=1, active=5, inactive=6)


def virtual(**given):
    fields = {"family": Family.IPV4, "protocol": 6, "address": addr("10.96.0.20"), "port": 80, "fwmark": 0}
    return ObservedVirtualServer(**fields | given, scheduler="rr", flags=0, timeout_s=0, netmask=bytes(4))


def real(ip, weight=1, active=0, inactive=0):
    return ObservedRealServer(addr(ip), 8080, weight=weight, active=active, inactive=inactive)


def later(sample: ServerSample, **gained) -> ServerSample:
    counters = {name: getattr(sample.statistics, name) + more for name, more in gained.items()}
    return msgspec.structs.replace(sample, statistics=msgspec.structs.replace(sample.statistics, **counters))


def the_row(found: Figures) -> Row:
    (row,) = found.rows
    return row


def test_real_servers_are_counted_by_what_they_do():
    found = sample_of(virtual(), [real("10.244.1.5", 1, 4, 1), real("10.244.1.6", 0, 1, 2), real("10.244.1.7", 0)])
    assert (found.servers, found.serving, found.draining, found.active, found.inactive) == (3, 1, 1, 5, 3)


@pytest.mark.parametrize(
    "given,name",
    [
        pytest.param({}, "10.96.0.20:80/TCP", id="IPv4"),
        pytest.param({"protocol": Protocol.UDP}, "10.96.0.20:80/UDP", id="UDP"),
        pytest.param({"family": Family.IPV6, "address": addr("2001:db8::1")}, "[2001:db8::1]:80/TCP", id="IPv6"),
        pytest.param({"fwmark": 7, "protocol": 0, "port": 0}, "FWM 7 IPv4", id="a firewall mark"),
        pytest.param({"protocol": 50}, "10.96.0.20:80/50", id="a protocol that no Service has"),
    ],
)
def test_a_virtual_server_is_called(given, name):
    assert sample_of(virtual(**given), []).name == name


def test_rates_are_what_was_gained_between_two_samples():
    now = later(WEB, connections=30, packets_in=200, packets_out=100, bytes_in=4000, bytes_out=8000)
    row = the_row(figures(Sample(12.0, (now,)), Sample(10.0, (WEB,))))
    assert (row.connections, row.packets, row.bytes_in, row.bytes_out) == (15, 150, 2000, 4000)
    assert (row.servers, row.serving, row.draining, row.active, row.inactive) == (3, 2, 1, 5, 6)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="there is no earlier sample"),
        pytest.param(Sample(10.0, ()), id="it was not there"),
        pytest.param(Sample(10.0, (later(WEB, connections=1),)), id="its counters were zeroed"),
        pytest.param(Sample(10.0, (later(WEB, packets_in=1),)), id="it was made anew"),
        pytest.param(Sample(12.0, (WEB,)), id="no time has passed"),
    ],
)
def test_the_kernels_estimate_stands_in_where(before):
    row = the_row(figures(Sample(12.0, (WEB,)), before))
    assert (row.connections, row.packets, row.bytes_in, row.bytes_out) == (7, 23, 13, 14)


def test_a_virtual_server_without_a_serving_one_is_empty():
    found = figures(Sample(0.0, (WEB, msgspec.structs.replace(WEB, name="x", serving=0))))
    assert ([row.is_empty for row in found.rows], found.empty) == ([False, True], 1)


def test_sums_are_of_all_rows():
    other = msgspec.structs.replace(WEB, name="other")
    total = figures(Sample(0.0, (WEB, other))).total
    assert (total.servers, total.serving, total.draining, total.active, total.inactive) == (6, 4, 2, 10, 12)
    assert (total.connections, total.packets, total.bytes_in, total.bytes_out) == (14, 46, 26, 28)


def test_what_connection_tracking_loses_is_a_rate():
    usage = TableUsage(10, 100)
    before = Sample(10.0, (), usage, TrackingErrors(5, 1))
    found = figures(Sample(12.0, (), usage, TrackingErrors(9, 1)), before)
    assert (found.usage, found.insert_failed, found.dropped) == (usage, 2, 0)


@pytest.mark.parametrize(
    "now,before",
    [
        pytest.param(TrackingErrors(1, 1), None, id="there is one sample"),
        pytest.param(None, TrackingErrors(1, 1), id="the kernel does not tell any more"),
    ],
)
def test_what_connection_tracking_loses_is_unknown_where(now, before):
    former = Sample(10.0, (), None, before) if before else None
    found = figures(Sample(12.0, (), None, now), former)
    assert (found.insert_failed, found.dropped) == (None, None)


ROWS = (
    Row("b", 1, 1, 0, 3, 1, 5.0, 1.0, 10.0, 1.0),
    Row("a", 1, 0, 2, 3, 9, 1.0, 7.0, 1.0, 90.0),
    Row("c", 1, 1, 1, 1, 2, 9.0, 3.0, 5.0, 5.0),
)


@pytest.mark.parametrize(
    "order,names",
    [
        (Order.ACTIVE, "abc"),
        (Order.INACTIVE, "acb"),
        (Order.CONNECTIONS, "cba"),
        (Order.PACKETS, "acb"),
        (Order.BYTES, "abc"),
        (Order.DRAINING, "acb"),
        (Order.EMPTY, "abc"),
        (Order.NAME, "abc"),
    ],
)
def test_rows_are_sorted_by(order, names):
    assert "".join(row.name for row in in_order(ROWS, order)) == names


def test_reversed_the_least_comes_first_and_equals_still_stand_by_name():
    assert [row.name for row in in_order(ROWS, Order.ACTIVE, reverse=True)] == ["c", "a", "b"]
    assert [row.name for row in in_order(ROWS, Order.NAME, reverse=True)] == ["c", "b", "a"]


def test_what_has_a_service_stands_by_that_one_and_what_has_none_comes_last():
    rows = (
        Row("a"),
        Row("b", service="shop/web:http"),
        Row("c", service="shop/cart:http"),
        Row("d", service="shop/web:http"),
    )
    assert [row.name for row in in_order(rows, Order.NAME)] == ["c", "b", "d", "a"]


def test_what_was_told_is_kept():
    sample = Sample(0.0, (sample_of(virtual(), [], "shop/web:http"),), undone=Undone(1, 2))
    found = figures(sample)
    assert (the_row(found).service, found.are_named, found.undone) == ("shop/web:http", True, Undone(1, 2))
    assert not figures(Sample(0.0, (WEB,))).are_named


def test_every_order_has_a_key_of_its_own():
    assert len({order.letter for order in Order}) == len(Order)
