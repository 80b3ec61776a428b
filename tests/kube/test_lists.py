"""How a list is read: as a stream or in pages, and what is concluded from one that is not complete: nothing."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ipvsproxy.kube.resources import ENDPOINT_SLICES, own_node
from tests.builders import FakeClock
from tests.kube.following import eventually, following
from tests.kube.scripted_server import (
    CUT,
    HOLD,
    RESET,
    added,
    body,
    bookmark,
    broken,
    line,
    page,
    refusal,
    service,
    serving,
    status,
    stream,
)

A1, B2, C3 = service("a", 1), service("b", 2), service("c", 3)
LIST_AB = (added(A1, B2), bookmark(9, ends_list=True))


def test_list_comes_as_a_stream_and_the_watch_goes_on_in_it():
    script = [stream(*LIST_AB, added(service("c", 10)), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "+c")
        (request,) = server.requests
    assert request.query == {
        "labelSelector": "!service.kubernetes.io/service-proxy-name",
        "fieldSelector": "spec.clusterIP!=None",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "450",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
    }


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refusal(422, "Invalid"), id="the gate is off"),
        pytest.param(refusal(400, "BadRequest"), id="the parameter is not known"),
    ],
)
def test_refused_streaming_list_is_read_in_pages(answer):
    script = [answer] * 3 + [page([A1], 9, "more"), page([B2], 9), stream(added(service("c", 10)), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "+c")
        first, second, watch = [request.query for request in server.requests[-3:]]
    assert first == {"limit": "500"}
    assert second == {"limit": "500", "continue": "more"}
    assert watch["resourceVersion"] == "9"
    assert "sendInitialEvents" not in watch


def test_refused_streaming_list_is_asked_for_only_once():
    script = [refusal(422, "Invalid"), page([A1], 9), stream(line("ERROR", status(410, "Expired"))), page([A1], 12)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "Listed")
        eventually(lambda: len(server.requests) == 5)
        asked = ["sendInitialEvents" in request.query for request in server.requests]
        selected = ["fieldSelector" in request.query for request in server.requests]
    assert asked == [True, False, False, False, False]
    assert all(selected)


def test_refused_field_selector_is_replaced_by_filtering_here():
    headless = service("headless", 3, cluster_ip="None")
    script = [refusal(400, "BadRequest"), stream(added(A1, headless), bookmark(9, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed")
        second = server.requests[1].query
    assert "fieldSelector" not in second
    assert "labelSelector" in second
    assert "sendInitialEvents" in second


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(refusal(400, "BadRequest"), id="as an answer"),
        pytest.param(stream(line("ERROR", status(400, "BadRequest"))), id="as an event"),
    ],
)
def test_refused_selector_is_asked_for_again_after_an_hour(refused):
    """The 400 may have been a gateway's whim; and without its selector, our Node's watch hears of every Node."""
    clock = FakeClock()
    later = [lambda: setattr(clock, "now", 3599.0), lambda: setattr(clock, "now", 3600.0)]
    script = [refused, stream(added(A1), bookmark(9, ends_list=True), CUT), stream(added(service("b", 10)), CUT)]
    script += [stream(added(service("c", 11)), CUT), refused, stream(added(service("d", 12)), HOLD)]
    reactions = dict(zip(("+b", "+c"), later, strict=True))
    with serving(script) as server, capture_logs() as logs:
        with following(server.url, clock=clock, reactions=reactions) as found:
            found.wait_for("+a", "Listed", "+b", "+c", "+d")
        asked = ["fieldSelector" in request.query for request in server.requests]
    assert asked == [True, False, False, False, True, False]
    assert [entry["log_level"] for entry in logs if entry["event"] == "watch_simplified"] == ["info", "debug"]


def test_streaming_list_that_never_ended_is_asked_for_again_after_an_hour():
    clock = FakeClock()
    later = {"+b": lambda: setattr(clock, "now", 3600.0)}
    expired = line("ERROR", status(410, "Expired"))
    script = [stream(added(A1)), stream(added(A1)), page([A1], 9), stream(added(service("b", 10)) + expired)]
    with serving(script) as server, following(server.url, clock=clock, reactions=later) as found:
        found.wait_for("+a", "Listed", "+b")
        eventually(lambda: len(server.requests) == 5)
        assert "sendInitialEvents" in server.requests[4].query


def test_service_that_becomes_headless_is_removed_where_the_server_does_not_select():
    changed = line("MODIFIED", service("a", 10, cluster_ip="None"))
    script = [refusal(400, "BadRequest"), stream(added(A1), bookmark(9, ends_list=True), changed, HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "-a")


def test_slice_of_a_headless_service_is_left_out_where_the_server_does_not_select():
    headless = service("headless", 3, **{"service.kubernetes.io/headless": ""})
    script = [refusal(400, "BadRequest"), stream(added(headless), bookmark(9, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url, ENDPOINT_SLICES) as found:
        found.wait_for("Listed")


def test_other_nodes_are_left_out_where_the_server_does_not_select():
    nodes = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in ("n1", "n2")]
    script = [refusal(400, "BadRequest"), stream(added(*nodes), bookmark(9, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url, own_node("n1")) as found:
        found.wait_for("+n1", "Listed")
        assert server.requests[0].query["fieldSelector"] == "metadata.name=n1"


def test_a_cluster_without_a_node_of_our_name_is_told_apart_from_one_with_it():
    """A node that goes by another name than its Node has no endpoints of its own, and nothing else tells why."""
    with serving([stream(bookmark(9, ends_list=True), HOLD)]) as server, following(server.url, own_node("n9")) as found:
        found.wait_for("!Node n9", "Listed")


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(stream(added(A1), CUT), id="cut in the middle of a line"),
        pytest.param(stream(added(A1), RESET), id="reset"),
        pytest.param(stream(added(A1)), id="ended in good order before the mark"),
        pytest.param(stream(added(A1), line("ERROR", status(500, "InternalError"))), id="an ERROR in it"),
        pytest.param(stream(added(A1), line("ERROR", status(410, "Expired"))), id="expired in it"),
        pytest.param(stream(added(A1), b"<html>\n"), id="something else than JSON in it"),
        pytest.param(broken(RESET), id="no answer"),
        pytest.param(refusal(503, "ServiceUnavailable"), id="refused"),
    ],
)
def test_half_read_list_removes_nothing(cut):
    expired = line("ERROR", status(410, "Expired"))
    script = [stream(*LIST_AB, expired), cut, stream(*LIST_AB, HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "Listed")


def test_half_read_list_in_pages_removes_nothing():
    script = [
        refusal(422, "Invalid"),
        page([A1, B2], 9),
        stream(line("ERROR", status(410, "Expired"))),
        page([A1], 12, "more"),
        refusal(410, "Expired"),
        page([A1], 13, "more"),
        broken(RESET),
        page([A1], 14, "more"),
        page([B2], 14),
    ]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "Listed")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({}, id="an empty object"),
        pytest.param({"error": "x"}, id="what some gateway says"),
        pytest.param(status(500, "InternalError"), id="a Status under 200"),
        pytest.param({"kind": "PodList", "metadata": {"resourceVersion": "12"}, "items": []}, id="another list"),
        pytest.param({"kind": "ServiceList", "metadata": {"resourceVersion": "12"}}, id="a list without items"),
        pytest.param({"kind": "ServiceList", "metadata": {}, "items": []}, id="a list without a version"),
    ],
)
def test_what_is_no_list_of_our_kind_removes_nothing(said):
    script = [refusal(422, "Invalid"), page([A1, B2], 9), stream(CUT), refusal(410, "Expired"), body(said)]
    script += [page([A1, B2], 14), stream(added(C3 | {"metadata": C3["metadata"] | {"resourceVersion": "15"}}), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "Listed", "+c")
        assert server.requests[-1].query["fieldSelector"] == "spec.clusterIP!=None"


def test_list_that_is_complete_without_a_version_is_not_complete():
    nameless = line("BOOKMARK", {"metadata": {"annotations": {"k8s.io/initial-events-end": "true"}}})
    with serving([stream(added(A1), nameless), stream(*LIST_AB, HOLD)]) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed")


def test_list_that_never_ends_is_read_in_pages_after_the_second_time():
    script = [stream(added(A1)), stream(added(A1)), page([A1], 9)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed")
        assert server.requests[2].query["limit"] == "500"


def test_streaming_list_is_still_asked_for_after_a_server_that_was_away():
    script = [broken(RESET), refusal(503, "ServiceUnavailable"), stream(added(A1), CUT), broken(RESET), broken(RESET)]
    script += [stream(*LIST_AB, HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed")
        assert all("sendInitialEvents" in request.query for request in server.requests)


def test_what_is_missing_in_a_complete_list_is_removed_and_what_is_unchanged_is_not_told_again():
    expired = line("ERROR", status(410, "Expired"))
    script = [stream(*LIST_AB, expired), stream(added(B2, C3), bookmark(12, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "+c", "-a", "Listed")


def test_storage_that_was_restored_counts_anew():
    """An older version in a new list is news: the API server's storage was set back."""
    too_new = refusal(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge", "message": "too large"}])
    restored = stream(added(service("a", 0), B2), bookmark(4, ends_list=True), added(service("c", 5)), HOLD)
    script = [stream(*LIST_AB), too_new, restored]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "+a", "Listed", "+c")


def test_object_that_does_not_decode_is_told_by_name_and_keeps_its_last_state():
    bad = service("a", 10)
    bad["spec"]["ports"][0]["port"] = "eighty"
    script = [stream(*LIST_AB, added(bad, service("c", 11)), bookmark(12), line("ERROR", status(410, "Expired")))]
    script += [stream(added(bad, B2), bookmark(13, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "!Service default/a", "+c", "-c", "Listed")


def test_object_that_does_not_decode_does_not_spoil_its_page():
    bad = service("a", 10)
    bad["spec"] = "text"
    with serving([refusal(422, "Invalid"), page([bad, B2], 12)]) as server, following(server.url) as found:
        found.wait_for("!Service default/a", "+b", "Listed")


@pytest.mark.parametrize("tokens", [["same", "same"], ["one", "other", "one"]])
def test_list_whose_token_comes_again_is_given_up_and_waited_for(tokens: list[str]):
    """It would never end; and of what was read, nothing is concluded."""
    round_ = [*[page([A1], 9, token) for token in tokens[:-1]], page([B2], 9, tokens[-1])]
    script = [refusal(422, "Invalid"), *round_, *round_, page([A1, B2], 9), stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed")
        asked = [request.query.get("continue", "") for request in server.requests if "limit" in request.query]
    assert asked == ["", *tokens[:-1], "", *tokens[:-1], ""]
    assert [(entry["reason"], entry["tries"]) for entry in logs if entry["event"] == "watch_lost"] == [
        ("not understood: a list that begins again: its continue token came before", tries) for tries in (1, 2)
    ]


def test_empty_list_is_a_list():
    empty = body({"kind": "ServiceList", "metadata": {"resourceVersion": "3"}, "items": None})
    with serving([refusal(422, "Invalid"), empty]) as server, following(server.url) as found:
        found.wait_for("Listed")
        eventually(lambda: len(server.requests) == 3)
        assert server.requests[2].query["resourceVersion"] == "3"
