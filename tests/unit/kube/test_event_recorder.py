from __future__ import annotations

import threading
from datetime import UTC, datetime

import msgspec
import pytest

from ipvsproxy.kube.event_recorder import EventRecorder, Limiter, event_body
from ipvsproxy.kube.recovery import Cause, Interruption
from ipvsproxy.model.notices import Notice
from tests.builders import FakeClock

TAKEN = Notice("Service", "default", "web", "u-1", "FrontendTaken", "Program", "203.0.113.10:80/TCP is taken")
NOON = datetime(2026, 11, 30, 12, 0, 0, 250, tzinfo=UTC)


def other(number: int) -> Notice:
    return msgspec.structs.replace(TAKEN, name=f"web-{number}")


class Sink:
    """Keeps Events, or breaks."""

    def __init__(self, trouble: Interruption | None = None) -> None:
        self.created: list[tuple[str, dict]] = []
        self._trouble = trouble

    def create(self, namespace: str, event: dict) -> None:
        if self._trouble:
            trouble, self._trouble = self._trouble, None
            raise trouble
        self.created.append((namespace, event))


def test_an_event_names_its_object_and_us():
    event = event_body(TAKEN, "ipvsproxy-n1", NOON)
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "web", "uid": "u-1",
    }  # fmt: skip
    assert event["eventTime"] == "2026-11-30T12:00:00.000250Z"
    assert (event["reportingController"], event["reportingInstance"]) == ("ipvsproxy", "ipvsproxy-n1")
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "FrontendTaken", "Program")
    assert event["note"] == "203.0.113.10:80/TCP is taken"
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("web.")


def test_an_event_about_a_node_stands_in_the_namespace_default():
    event = event_body(Notice("Node", "", "n1", "", "Starting", "Start", ""), "ipvsproxy-n1", NOON)
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


def test_every_node_gives_the_same_warning_the_same_name_and_each_other_one_another():
    names = [event_body(TAKEN, f"ipvsproxy-{node}", NOON)["metadata"]["name"] for node in ("n1", "n2")]
    assert names[0] == names[1]
    assert (
        event_body(msgspec.structs.replace(TAKEN, text="another"), "ipvsproxy-n1", NOON)["metadata"]["name"] != names[0]
    )


def test_a_moment_in_the_life_of_a_node_is_normal_and_no_two_have_one_name():
    start = Notice("Node", "", "n1", "", "Starting", "StartKubeProxy", "", is_warning=False)
    events = [event_body(start, "ipvsproxy-n1", NOON.replace(minute=minute)) for minute in (0, 1)]
    assert [event["type"] for event in events] == ["Normal", "Normal"]
    assert events[0]["metadata"]["name"] != events[1]["metadata"]["name"]


def test_last_words_are_told_before_the_call_returns_whatever_waits():
    sink = Sink()
    recorder = EventRecorder(sink, "n1", FakeClock())
    recorder.record(other(1))
    recorder.record_now(TAKEN)
    assert [event["regarding"]["name"] for _, event in sink.created] == ["web"]


def test_a_note_is_as_long_as_the_api_server_takes():
    long = msgspec.structs.replace(TAKEN, text="x" * 5000)
    assert len(event_body(long, "ipvsproxy-n1", NOON)["note"]) == 1024


def test_the_same_is_told_once_in_ten_minutes():
    clock = FakeClock()
    limiter = Limiter(clock)
    assert [limiter.lets_pass(TAKEN), limiter.lets_pass(TAKEN)] == [True, False]
    clock.now += 599
    assert not limiter.lets_pass(TAKEN)
    clock.now += 1
    assert limiter.lets_pass(TAKEN)


@pytest.mark.parametrize("changes", [{"text": "another"}, {"name": "api"}, {"uid": "u-2"}, {"reason": "Other"}])
def test_what_differs_in_anything_is_not_the_same(changes):
    limiter = Limiter(FakeClock())
    limiter.lets_pass(TAKEN)
    assert limiter.lets_pass(msgspec.structs.replace(TAKEN, **changes))


def test_many_are_told_at_once_and_then_one_in_ten_seconds():
    clock = FakeClock()
    limiter = Limiter(clock)
    assert sum(limiter.lets_pass(other(number)) for number in range(1000)) == 25
    clock.now += 10
    assert [limiter.lets_pass(other(1000)), limiter.lets_pass(other(1001))] == [True, False]


def run(recorder: EventRecorder, *notices: Notice) -> None:
    for notice in notices:
        recorder.record(notice)
    thread = threading.Thread(target=recorder.run)
    thread.start()
    while recorder.waiting:
        thread.join(0.01)
    recorder.stop()
    thread.join()


def test_what_cannot_be_told_is_lost_and_the_next_is_told():
    sink = Sink(Interruption(Cause.UNREACHABLE, "no answer in time"))
    run(EventRecorder(sink, "n1", FakeClock()), other(1), other(2))
    assert [event["regarding"]["name"] for _, event in sink.created] == ["web-2"]


def test_recording_never_waits_however_many_there_are():
    sink = Sink()
    recorder = EventRecorder(sink, "n1", FakeClock())
    for number in range(10_000):
        recorder.record(other(number))
    run(recorder)
    assert [namespace for namespace, _ in sink.created] == ["default"] * 25


def test_it_can_be_stopped_while_more_waits_than_it_holds():
    recorder = EventRecorder(Sink(), "n1", FakeClock())
    for number in range(1000):
        recorder.record(other(number))
    recorder.stop()
    thread = threading.Thread(target=recorder.run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
