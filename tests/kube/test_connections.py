"""How a watch survives what happens to connection and server: cuts, silence, refusals, restarts."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.events import Changed, ClusterEvent, Listed
from ipvsproxy.cluster.tracker import Tracker
from ipvsproxy.errors import IpvsproxyError
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.recovery import Cause, Interruption
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES, SERVICES
from ipvsproxy.kube.snapshot import read_cluster
from ipvsproxy.kube.watch import Watch
from ipvsproxy.kube.wire import MAX_LINE_BYTES
from ipvsproxy.model.enums import Family
from tests.builders import FakeClock
from tests.kube.access import SECRET, kubeconfig
from tests.kube.following import LIMIT_S, QUICK, eventually, following
from tests.kube.scripted_server import (
    CUT,
    HOLD,
    RESET,
    Gate,
    ScriptedServer,
    Trickle,
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

A1, B2 = service("a", 1), service("b", 2)
LIST_A = (added(A1), bookmark(9, ends_list=True))
IMPATIENT = dataclasses.replace(QUICK, silence_s=0.2)


class HastyClock:
    """Each look at it is two seconds later: whatever ends has lasted."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        self.now += 2
        return self.now


def resume_points(server: ScriptedServer) -> list[str]:
    return [request.query.get("resourceVersion", "list") for request in server.requests]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([], id="its time is over"),
        pytest.param([CUT], id="cut in the middle of a line"),
        pytest.param([RESET], id="reset"),
        pytest.param([line("ERROR", status(500, "InternalError"))], id="an ERROR that is no 410"),
        pytest.param([line("ERROR", status(429, "TooManyRequests", retryAfterSeconds=1))], id="too many requests"),
        pytest.param([line("SURPRISE", {})], id="a type that does not exist"),
        pytest.param([b"\xff\xfe\n"], id="no JSON"),
    ],
)
def test_watch_that_ends_goes_on_from_the_last_event(end):
    script = [stream(*LIST_A, added(service("b", 12)), *end), stream(line("DELETED", service("a", 13)), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b", "-a")
        assert resume_points(server) == ["list", "12"]


def test_events_before_a_bad_line_of_the_same_chunk_are_told():
    chunk = added(service("b", 12)) + line("ERROR", status(500, "InternalError")) + added(service("c", 13))
    script = [stream(*LIST_A, chunk), stream(HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b")
        eventually(lambda: resume_points(server) == ["list", "12"])


def test_line_may_come_in_many_chunks_and_many_lines_in_one():
    lines = added(service("b", 12), service("c", 13), service("d", 14))
    pieces = [lines[at : at + 7] for at in range(0, len(lines), 7)]
    with serving([stream(*LIST_A, *pieces, HOLD)]) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b", "+c", "+d")


def test_line_without_an_end_is_given_up_and_the_watch_goes_on():
    script = [stream(*LIST_A, *[b"x" * MAX_OBJECT_BYTES] * 20, HOLD), stream(added(service("b", 12)), HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b")
        assert resume_points(server) == ["list", "9"]
    assert [entry["reason"] for entry in logs if entry["event"] == "watch_lost"] == [
        f"not understood: a line of more than {MAX_LINE_BYTES} bytes, and no object is so long"
    ]


def test_bookmark_moves_the_place_to_go_on_from():
    script = [stream(*LIST_A, bookmark(40), CUT), stream(HOLD)]
    with serving(script) as server, following(server.url):
        eventually(lambda: resume_points(server) == ["list", "40"])


def test_late_event_does_not_set_the_place_back():
    script = [stream(*LIST_A, added(service("b", 15)), added(service("c", 14)), CUT), stream(HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b", "+c")
        eventually(lambda: resume_points(server) == ["list", "15"])


def test_events_that_come_twice_are_told_once():
    again = added(A1, service("b", 12)) + line("DELETED", service("a", 13)) + line("DELETED", service("a", 13))
    script = [stream(*LIST_A, added(service("b", 12)), CUT), stream(again, added(A1, service("c", 14)), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b", "-a", "+c")


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(refusal(410, "Expired"), id="410 as the answer"),
        pytest.param(stream(line("ERROR", status(410, "Expired"))), id="410 as an event"),
        pytest.param(stream(line("ERROR", status(410, "Gone"))), id="410 in an older wording"),
    ],
)
def test_expired_version_is_listed_again_and_missed_deletions_are_told(expired):
    script = [stream(added(A1, B2), bookmark(9, ends_list=True), CUT), expired]
    script += [stream(added(B2), bookmark(30, ends_list=True), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "+b", "Listed", "-a", "Listed")
        assert resume_points(server) == ["list", "9", "list"]


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(refusal(500, "InternalError"), id="500"),
        pytest.param(refusal(503, "ServiceUnavailable"), id="503"),
        pytest.param(refusal(504, "Timeout"), id="504"),
        pytest.param(refusal(401, "Unauthorized"), id="401 until the token is a new one"),
        pytest.param(refusal(403, "Forbidden"), id="403 until the role is there"),
        pytest.param(refusal(404, "NotFound"), id="404"),
        pytest.param(broken(RESET), id="no answer"),
    ],
)
def test_refused_watch_is_tried_again_from_the_same_place(refused):
    script = [stream(*LIST_A), refused, refused, stream(added(service("b", 12)), HOLD)]
    with serving(script) as server, following(server.url) as found:
        found.wait_for("+a", "Listed", "+b")
        assert resume_points(server) == ["list", "9", "9", "9"]


def test_retry_after_is_waited_for():
    patient = dataclasses.replace(QUICK, longest_retry_after_s=0.3)
    script = [refusal(429, "TooManyRequests", retry_after="1"), stream(*LIST_A, HOLD)]
    with serving(script) as server:
        started = time.monotonic()
        with following(server.url, timing=patient) as found:
            found.wait_for("+a", "Listed")
            assert time.monotonic() - started >= 0.3


def test_k16_silent_watch_is_given_up_and_goes_on_elsewhere():
    script = [stream(*LIST_A, HOLD), stream(added(service("b", 12)), HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url, timing=IMPATIENT) as found:
        found.wait_for("+a", "Listed", "+b")
    (lost,) = [entry for entry in logs if entry["event"] == "watch_lost"][:1]
    assert lost["reason"].startswith("silent")


def test_k16_watch_in_which_nothing_whole_is_said_is_given_up():
    """A proxy that keeps its side alive with blanks, while the server behind it is gone."""
    script = [stream(*LIST_A, Trickle(b"\n", 0.05)), stream(added(service("b", 12)), HOLD)]
    with serving(script) as server, following(server.url, timing=IMPATIENT) as found:
        found.wait_for("+a", "Listed", "+b")
        assert resume_points(server) == ["list", "9"]


def test_k16_server_that_never_answers_is_given_up():
    script = [broken(HOLD), stream(*LIST_A, HOLD)]
    with serving(script) as server, following(server.url, timing=IMPATIENT) as found:
        found.wait_for("+a", "Listed")


def test_k16_tables_stay_while_the_server_is_away_and_follow_when_it_is_back():
    tracker = Tracker("n1", {Family.IPV4})
    with serving([stream(added(A1, B2), bookmark(9, ends_list=True), HOLD)]) as server:
        port = server.server_address[1]
        with capture_logs() as logs, following(server.url) as found:
            found.wait_for("+a", "+b", "Listed")
            server.ended.set()
            server.shutdown()
            server.server_close()
            eventually(lambda: sum(entry["event"] == "watch_lost" for entry in logs) > 5)
            assert len(found.told) == 3
            with socket.create_server(("127.0.0.1", port), reuse_port=False) as listener:
                threading.Thread(target=_answer_once, args=(listener,)).start()
                found.wait_for("+a", "+b", "Listed", "-a")
    for event in (event for batch in found.batches for event in batch):
        tracker.note(event)
    assert [str(name) for name in tracker.names()] == ["default/b"]


def _answer_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        event = line("DELETED", service("a", 12))
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"%x\r\n" % len(event) + event + b"\r\n0\r\n\r\n")


def test_k52_watch_tells_whether_the_server_answers():
    with serving([stream(*LIST_A, HOLD)]) as server, following(server.url) as found:
        found.wait_for("+a", "Listed")
        assert found.watch.is_connected
        server.ended.set()
        server.shutdown()
        server.server_close()
        eventually(lambda: not found.watch.is_connected)


def test_watch_that_ends_as_asked_counts_as_connected_meanwhile():
    states = []
    watch = Watch(ApiServer(Access(master="http://127.0.0.1:1")), SERVICES, SystemClock())
    for interruption in (Interruption(Cause.ENDED), Interruption(Cause.SILENT)):
        watch.is_connected = True
        watch._recover(interruption)
        states.append(watch.is_connected)
    assert states == [True, False]


def test_same_trouble_is_loud_once_and_counted_after():
    script = [stream(*LIST_A), *[refusal(503, "ServiceUnavailable")] * 4, stream(bookmark(20), HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url, clock=HastyClock()):
        eventually(lambda: len(server.requests) == 6)
        eventually(lambda: [entry["event"] for entry in logs].count("watch_connected") == 2)
    lost = [entry for entry in logs if entry["event"] == "watch_lost"]
    assert [(entry["log_level"], entry["tries"]) for entry in lost] == [
        ("warning", 1),
        ("debug", 2),
        ("debug", 3),
        ("debug", 4),
    ]
    assert lost[0]["reason"] == "refused (503): ServiceUnavailable was the message"
    assert [entry["tries"] for entry in logs if entry["event"] == "watch_connected"] == [0, 4]


def test_each_recovery_from_another_trouble_is_told():
    expired = refusal(410, "Expired")
    script = [stream(*LIST_A), broken(RESET), stream(CUT), expired, stream(*LIST_A, CUT), stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url, clock=HastyClock()):
        eventually(lambda: len(server.requests) == 6)
        eventually(lambda: [entry["event"] for entry in logs].count("watch_connected") == 4)
    assert {entry["log_level"] for entry in logs if entry["event"] == "watch_connected"} == {"info"}
    assert [entry["reason"] for entry in logs if entry["event"] == "watch_lost"] == [
        "cut: ECONNRESET (Connection reset by peer)",
        "cut: closed in the middle of an answer",
        "too old a resourceVersion (410): Expired was the message",
        "cut: closed in the middle of an answer",
    ]


def test_trouble_that_comes_again_after_news_is_loud_again():
    script = [stream(*LIST_A), refusal(503, "X"), stream(bookmark(20)), refusal(503, "X"), stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url, clock=HastyClock()):
        eventually(lambda: len(server.requests) == 5)
    assert [entry["log_level"] for entry in logs if entry["event"] == "watch_lost"] == ["warning", "warning"]


def test_watch_that_ends_as_asked_is_opened_again_without_a_word_of_loss():
    script = [stream(*LIST_A), stream(bookmark(20)), stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url, clock=HastyClock()):
        eventually(lambda: resume_points(server) == ["list", "9", "20"])
    assert {entry["event"] for entry in logs} == {"watch_connected"}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([], id="with nothing told"),
        pytest.param([b"\n"], id="after a blank line"),
        pytest.param([bookmark(9)], id="after a bookmark that is known"),
        pytest.param([added(A1)], id="after an event that is known"),
    ],
)
def test_watch_that_always_ends_at_once_is_not_opened_in_a_loop(told):
    script = [stream(*LIST_A, CUT), *[stream(*told)] * 3, stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url):
        eventually(lambda: len(server.requests) == 5)
    assert [entry["tries"] for entry in logs if entry["event"] == "watch_lost"] == [1, 2, 3, 4]


def test_watch_that_ends_at_once_after_news_is_not_opened_in_a_loop_either():
    patient = dataclasses.replace(QUICK, first_retry_s=600.0, longest_retry_s=900.0)
    with serving([stream(*LIST_A)]) as server, capture_logs() as logs, following(server.url, timing=patient):
        eventually(lambda: any(entry["event"] == "watch_lost" for entry in logs))
    (lost,) = [entry for entry in logs if entry["event"] == "watch_lost"]
    assert (lost["reason"], lost["retry_in_s"]) == ("ended by the server too soon", 600.0)


def test_list_that_is_cut_again_and_again_is_not_begun_in_a_loop():
    """Each list is costly for the server, so the wait grows although something was heard."""
    script = [refusal(422, "Invalid"), *[page([A1], 9, "more"), broken(RESET)] * 3]
    with serving(script) as server, capture_logs() as logs, following(server.url):
        eventually(lambda: len(server.requests) == 8)
    assert [entry["tries"] for entry in logs if entry["event"] == "watch_lost"] == [1, 2, 3]


def test_streaming_list_that_is_cut_again_is_waited_for_longer():
    script = [stream(added(A1), CUT)] * 2 + [stream(HOLD)]
    with serving(script) as server, capture_logs() as logs, following(server.url):
        eventually(lambda: len(server.requests) == 3)
    assert [entry["tries"] for entry in logs if entry["event"] == "watch_lost"] == [1, 2]


def test_time_of_the_newest_news_moves_with_bookmarks_too():
    clock, gate = FakeClock(), Gate()
    clock.now = 5.0
    script = [stream(*LIST_A, gate, bookmark(20), HOLD)]
    with serving(script) as server, following(server.url, clock=clock) as found:
        found.wait_for("+a", "Listed")
        eventually(lambda: found.watch.heard_at == 5.0)
        clock.now = 65.0
        gate.open.set()
        eventually(lambda: found.watch.heard_at == 65.0)


def test_stop_ends_a_read_that_waits():
    with serving([stream(*LIST_A, HOLD)]) as server, following(server.url) as found:
        found.wait_for("+a", "Listed")
        _assert_stops(found.watch)


def test_stop_ends_a_wait_for_the_next_try():
    endless = dataclasses.replace(QUICK, first_retry_s=600.0, longest_retry_s=900.0)
    with serving([broken(RESET)]) as server, following(server.url, timing=endless) as found:
        eventually(lambda: len(server.requests) == 1)
        _assert_stops(found.watch)


def test_stop_before_the_start_ends_it_at_once():
    watch = Watch(ApiServer(Access(master="http://127.0.0.1:9")), SERVICES, SystemClock())
    watch.stop()
    watch.run(lambda _events: None)


def _assert_stops(watch: Watch) -> None:
    started = time.monotonic()
    watch.stop()
    eventually(lambda: all(thread.name != "watch" for thread in threading.enumerate()))
    assert time.monotonic() - started < LIMIT_S / 5


def test_snapshot_tells_every_kind_in_pages_and_returns():
    told: list[ClusterEvent] = []
    slices = page([], 9, kind="EndpointSliceList")
    nodes = page([{"metadata": {"name": "n1", "resourceVersion": "3"}}], 9, kind="NodeList")
    with serving([page([A1], 9, "more"), page([B2], 9), slices, nodes]) as server:
        read_cluster(ApiServer(Access(master=server.url)), "n1", told.extend)
        assert [request.query.get("continue") for request in server.requests] == [None, "more", None, None]
    assert [event.kind for event in told if isinstance(event, Listed)] == ["Service", "EndpointSlice", "Node"]
    assert len(told) == 6


def test_snapshot_goes_on_without_a_refused_selector():
    answers = [refusal(400, "BadRequest"), page([A1, service("headless", 2, "None")], 9)]
    nodes = [{"metadata": {"name": name, "resourceVersion": "3"}} for name in ("n1", "n2")]
    answers += [page([], 9, kind="EndpointSliceList"), page(nodes, 9, kind="NodeList")]
    told: list[ClusterEvent] = []
    with serving(answers) as server:
        read_cluster(ApiServer(Access(master=server.url)), "n1", told.extend)
    assert [event.ref.name for event in told if isinstance(event, Changed)] == ["a", "n1"]
    assert len(told) == 5


@pytest.mark.parametrize(
    "answer, why, hint",
    [
        pytest.param(refusal(401, "Unauthorized"), "refused (401)", "Look at the credentials", id="401"),
        pytest.param(refusal(403, "Forbidden"), "refused (403)", "Let its user list", id="403"),
        pytest.param(refusal(404, "NotFound"), "refused (404)", "Look at --kubeconfig and --master", id="404"),
        pytest.param(refusal(410, "Expired"), "too old a resourceVersion (410)", "Try again", id="410"),
        pytest.param(refusal(429, "TooManyRequests"), "refused (429)", "Try again", id="429"),
        pytest.param(refusal(500, "InternalError"), "refused (500)", "Try again", id="500"),
        pytest.param(broken(CUT), "cut", "Try again", id="cut"),
        pytest.param(body("<html>"), "not understood", "Look at --kubeconfig and --master", id="no API at all"),
    ],
)
def test_snapshot_says_why_it_failed_and_what_helps(answer, why, hint):
    with serving([answer]) as server, pytest.raises(IpvsproxyError) as raised:
        read_cluster(ApiServer(Access(master=server.url)), "n1", lambda _events: None)
    assert raised.value.what == "cannot list Services"
    assert raised.value.why.startswith(why)
    assert raised.value.hint.startswith(hint)


def test_snapshot_of_a_server_that_is_not_there_says_where_to_look():
    with pytest.raises(IpvsproxyError) as raised:
        read_cluster(ApiServer(Access(master="http://127.0.0.1:1")), "n1", lambda _events: None)
    assert raised.value.hint.startswith("Look at --kubeconfig and --master")


def test_snapshot_without_a_usable_configuration_gives_one_hint(tmp_path: Path):
    access = kubeconfig(tmp_path, "https://192.0.2.1:6443", {"token": SECRET})
    server = ApiServer(access)
    Path(access.kubeconfig).unlink()
    with pytest.raises(IpvsproxyError) as raised:
        read_cluster(server, "n1", lambda _events: None)
    assert raised.value.why.startswith("no usable configuration")
    assert raised.value.hint == ""


def test_snapshot_of_a_list_without_an_end_is_an_error():
    wanted = "cannot list Services: not understood: a list that begins again"
    with serving([page([A1], 9, "same")] * 20) as server, pytest.raises(IpvsproxyError, match=wanted):
        read_cluster(ApiServer(Access(master=server.url)), "n1", lambda _events: None)
    assert len(server.requests) == 2


def test_snapshot_of_what_is_no_list_is_an_error_and_tells_nothing():
    told: list[ClusterEvent] = []
    wanted = "cannot list Services: not understood"
    with serving([body({})]) as server, pytest.raises(IpvsproxyError, match=wanted):
        read_cluster(ApiServer(Access(master=server.url)), "n1", told.extend)
    assert told == []
