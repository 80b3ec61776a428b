"""What a new snapshot changes in where we listen."""

from __future__ import annotations

import pytest

from ipvsproxy.cluster.health_check import HealthCheck, HealthSnapshot
from ipvsproxy.model.enums import Family
from ipvsproxy.model.names import ServiceName
from ipvsproxy.serve.places import Place, moved
from tests.builders import addr

A, B = ServiceName("default", "a"), ServiceName("default", "b")
ANY = ("0.0.0.0", "::")
FOUR, SIX = Family.IPV4, Family.IPV6


def snapshot(*addresses: str, **checks: HealthCheck) -> HealthSnapshot:
    return HealthSnapshot({ServiceName("default", n): c for n, c in checks.items()}, tuple(map(addr, addresses)))


def shown(places):
    return sorted(map(str, places))


ONE = snapshot(*ANY, a=HealthCheck(32100, {FOUR: 1}))


@pytest.mark.parametrize(
    "after,gone,new",
    [
        pytest.param(ONE, [], [], id="nothing"),
        pytest.param(snapshot(*ANY, a=HealthCheck(32100, {FOUR: 7})), [], [], id="another count"),
        pytest.param(snapshot(*ANY), ["default/a at 0.0.0.0:32100"], [], id="the Service is gone"),
        pytest.param(
            snapshot(*ANY, a=HealthCheck(32101, {FOUR: 1})),
            ["default/a at 0.0.0.0:32100"],
            ["default/a at 0.0.0.0:32101"],
            id="another port",
        ),
        pytest.param(
            snapshot(*ANY, a=HealthCheck(32100, {FOUR: 1, SIX: 0})),
            [],
            ["default/a at [::]:32100"],
            id="a second family",
        ),
        pytest.param(
            snapshot(*ANY, a=ONE.checks[A], b=HealthCheck(32101, {SIX: 1})),
            [],
            ["default/b at [::]:32101"],
            id="a second Service",
        ),
        pytest.param(
            snapshot("192.0.2.11", "192.0.2.50", a=HealthCheck(32100, {FOUR: 1})),
            ["default/a at 0.0.0.0:32100"],
            ["default/a at 192.0.2.11:32100", "default/a at 192.0.2.50:32100"],
            id="other addresses",
        ),
    ],
)
def test_the_places_that_change_with(after, gone, new):
    assert tuple(map(shown, moved(ONE, after))) == (gone, new)


def test_an_address_that_comes_leaves_the_others_alone():
    check = HealthCheck(32100, {FOUR: 1})
    before, after = snapshot("192.0.2.11", a=check), snapshot("192.0.2.11", "192.0.2.50", a=check)
    assert moved(before, after) == (set(), {Place(A, addr("192.0.2.50"), 32100)})


def test_a_service_that_has_not_changed_is_not_looked_into():
    class Untouched(dict):
        def __contains__(self, key: object) -> bool:
            raise AssertionError("looked into")

    still = HealthCheck(32101, Untouched())
    before = snapshot(*ANY, a=HealthCheck(32100, {FOUR: 1}), b=still)
    after = snapshot(*ANY, a=HealthCheck(32100, {FOUR: 2}), b=still)
    assert moved(before, after) == (set(), set())
