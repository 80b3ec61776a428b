"""The three questions about our health, and the bytes of their answers."""

from __future__ import annotations

import json

import pytest

from ipvsproxy.model.enums import Family
from ipvsproxy.model.vitals import FamilyVitals, Heard, Moment, Vitals
from ipvsproxy.serve.health_pages import health_pages
from ipvsproxy.serve.http_messages import Request

NOON = 1796040000.0  # 2026-11-30 12:00:00 UTC
NOW = Moment(monotonic=1000.0, unix=NOON)
FINE = FamilyVitals(updated_at=NOON - 90.25)
NEW = FamilyVitals()
LATE = FamilyVitals(updated_at=NOON - 90.25, asked_at=900.0)
FAILING = FamilyVitals(updated_at=NOON - 300, asked_at=900.0, is_failing=True)
GOOD = {"Service": Heard(is_connected=True, at=NOON - 3), "EndpointSlice": Heard(is_connected=True, at=NOON - 1)}
LOST = {**GOOD, "Service": Heard(is_connected=False, at=NOON - 500)}


def vitals(four=FINE, six=FINE, *, eligible=True, progressed_at=999.0) -> Vitals:
    return Vitals({Family.IPV4: four, Family.IPV6: six}, 60.0, progressed_at, eligible)


def ask(path, found, heard=None):
    pages = health_pages(lambda: found, lambda: heard or {}, lambda: NOW, lambda *_: None)
    answer = pages[path](Request("GET"))
    return answer.status.value, json.loads(answer.body)


@pytest.mark.parametrize(
    "found,heard,codes",
    [
        pytest.param(vitals(), GOOD, (200, 200, 200), id="all is well"),
        pytest.param(vitals(), {}, (200, 200, 200), id="without an API server there is none to lose"),
        pytest.param(vitals(), LOST, (200, 200, 503), id="the API server is lost: in readyz alone"),
        pytest.param(vitals(eligible=False), GOOD, (503, 200, 200), id="the node is going: in healthz alone"),
        pytest.param(vitals(NEW, NEW), GOOD, (503, 200, 503), id="before the first full pass"),
        pytest.param(vitals(six=FAILING), GOOD, (503, 503, 503), id="one family fails for long"),
        pytest.param(vitals(LATE, LATE), GOOD, (503, 200, 503), id="slow but at work"),
        pytest.param(vitals(LATE, LATE, progressed_at=930.0), GOOD, (503, 503, 503), id="hangs"),
    ],
)
def test_healthz_livez_and_readyz_answer_when(found, heard, codes):
    assert tuple(ask(path, found, heard)[0] for path in ("/healthz", "/livez", "/readyz")) == codes


def test_the_body_of_healthz_is_kube_proxys():
    pages = health_pages(lambda: vitals(six=FAILING), dict, lambda: NOW, lambda *_: None)
    answer = pages["/healthz"](Request("GET"))
    assert answer.body == (
        b'{"lastUpdated":"2026-11-30T11:58:29.750000Z","currentTime":"2026-11-30T12:00:00.000000Z",'
        b'"nodeEligible":true,"healthy":false,"status":{'
        b'"IPv4":{"lastUpdated":"2026-11-30T11:58:29.750000Z","healthy":true},'
        b'"IPv6":{"lastUpdated":"2026-11-30T11:55:00.000000Z","healthy":false}}}'
    )
    assert answer.headers == {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}


def test_the_body_of_livez_has_no_node_eligibility():
    assert list(ask("/livez", vitals())[1]) == ["lastUpdated", "currentTime", "healthy", "status"]


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_where_all_is_well_the_last_update_is_now_as_it_has_always_been(path):
    assert ask(path, vitals(), GOOD)[1]["lastUpdated"] == "2026-11-30T12:00:00.000000Z"


def test_a_family_that_never_was_in_force_has_gos_zero_time():
    _, body = ask("/healthz", vitals(NEW, NEW))
    assert (body["lastUpdated"], body["status"]["IPv6"]["lastUpdated"]) == ("0001-01-01T00:00:00Z",) * 2


def test_a_node_that_is_going_is_healthy_and_not_eligible():
    _, body = ask("/healthz", vitals(eligible=False))
    assert (body["healthy"], body["nodeEligible"]) == (True, False)


def test_the_body_of_readyz_says_what_is_heard_of_the_api_server():
    _, body = ask("/readyz", vitals(), LOST)
    assert (body["ready"], body["healthy"]) == (False, True)
    assert body["apiServer"] == {
        "reachable": False,
        "watches": {
            "EndpointSlice": {"connected": True, "lastHeard": "2026-11-30T11:59:59.000000Z"},
            "Service": {"connected": False, "lastHeard": "2026-11-30T11:51:40.000000Z"},
        },
    }


def test_every_answer_is_counted():
    counted: list[tuple[str, int]] = []
    pages = health_pages(lambda: vitals(eligible=False), dict, lambda: NOW, lambda *what: counted.append(what))
    for page in pages.values():
        page(Request("GET"))
    assert counted == [("/healthz", 503), ("/livez", 200), ("/readyz", 200)]
