from __future__ import annotations

import pytest

from ipvsproxy.kube.recovery import (
    Asks,
    Backoff,
    Cause,
    Interruption,
    Timing,
    parse_retry_after,
    without_cut_stream,
    without_refused,
)

NOTHING = Asks(streaming=False, fields=False, labels=False)
TIMING = Timing(first_retry_s=1.0, longest_retry_s=30.0, longest_unreachable_s=4.5, longest_retry_after_s=60.0)


@pytest.mark.parametrize(
    "asks, status, left",
    [
        pytest.param(Asks(), 422, Asks(streaming=False), id="a forbidden parameter is the streaming list's"),
        pytest.param(Asks(), 400, Asks(fields=False), id="an unknown selector is the field selector"),
        pytest.param(Asks(fields=False), 400, Asks(fields=False, labels=False), id="or else the label selector"),
        pytest.param(Asks(fields=False, labels=False), 400, NOTHING, id="or else the streaming list"),
        pytest.param(
            Asks(streaming=False), 422, Asks(streaming=False, fields=False), id="forbidden again: the field selector"
        ),
        pytest.param(NOTHING, 400, None, id="nothing is left to leave out"),
        pytest.param(NOTHING, 422, None, id="nothing is left to leave out at 422 either"),
        pytest.param(Asks(), 0, None, id="no status"),
        pytest.param(Asks(), 403, None, id="403 is about rights"),
        pytest.param(Asks(), 410, None, id="410 is about versions"),
        pytest.param(Asks(), 500, None, id="500 is about the server"),
    ],
)
def test_what_is_refused_is_not_asked_for_again(asks: Asks, status: int, left: Asks | None):
    assert without_refused(asks, status) == left


@pytest.mark.parametrize("cuts, streaming", [(0, True), (1, True), (2, False), (3, False)])
def test_streaming_list_is_given_up_after_two_cuts(cuts: int, *, streaming: bool):
    assert without_cut_stream(Asks(), cuts) == Asks(streaming=streaming)


def waits(cause: Cause, count: int, random: float, retry_after_s: float | None = None) -> list[float]:
    backoff = Backoff(TIMING, lambda: random)
    return [backoff.next_s(Interruption(cause, retry_after_s=retry_after_s)) for _ in range(count)]


@pytest.mark.parametrize(
    "cause, random, expected",
    [
        pytest.param(Cause.ENDED, 0.5, [0, 0, 0], id="a watch that ended in good order is opened at once"),
        pytest.param(Cause.REFUSED, 0.5, [1, 2, 4, 8, 16, 20, 20], id="doubling up to the limit"),
        pytest.param(Cause.REFUSED, 0.0, [0.5, 1, 2, 4, 8, 10, 10], id="half as long at the least"),
        pytest.param(Cause.REFUSED, 1.0, [1.5, 3, 6, 12, 24, 30, 30], id="half as long again at the most"),
        pytest.param(Cause.UNREACHABLE, 1.0, [1.5, 3, 4.5, 4.5], id="shorter where nobody answers"),
        pytest.param(Cause.EXPIRED, 0.5, [1, 2, 4], id="expired again and again"),
        pytest.param(Cause.ENDED_EARLY, 0.5, [1, 2, 4], id="ended at once again and again"),
    ],
)
def test_wait_before_the_next_try(cause: Cause, random: float, expected: list[float]):
    assert waits(cause, len(expected), random) == expected


def test_what_the_server_asks_for_is_waited_for_first():
    assert waits(Cause.REFUSED, 2, 0.5, retry_after_s=10) == [11, 12]


@pytest.mark.parametrize("asked", [-0.1, -100.0, float("-inf")])
def test_server_cannot_ask_for_less_than_nothing(asked: float):
    assert waits(Cause.REFUSED, 3, 0.5, retry_after_s=asked) == [1, 2, 4]


def test_server_cannot_ask_for_hours():
    assert waits(Cause.REFUSED, 1, 0.5, retry_after_s=7200) == [61]


def test_wait_does_not_overflow_after_days():
    assert max(waits(Cause.REFUSED, 5000, 1.0)) == 30


def test_k16_silence_is_taken_for_a_dead_server_after_90_seconds():
    """Bookmarks come each minute, and a watch must be known to be dead within two."""
    assert Timing().silence_s == 90.0


def test_good_connection_begins_the_waits_anew():
    backoff = Backoff(TIMING, lambda: 0.5)
    first = [backoff.next_s(Interruption(Cause.CUT)) for _ in range(3)]
    backoff.reset()
    assert (first, backoff.next_s(Interruption(Cause.CUT))) == ([1, 2, 4], 1)


@pytest.mark.parametrize(
    "text, expected",
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param(None, None, id="none"),
        pytest.param("", None, id="empty"),
        pytest.param("-1", None, id="negative"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", None, id="a date"),
        pytest.param("٣", None, id="digits that are not ASCII"),
    ],
)
def test_retry_after(text: str | None, expected: float | None):
    assert parse_retry_after(text) == expected


def test_interruption_reads_as_one_sentence():
    assert str(Interruption(Cause.REFUSED, "forbidden", status=403)) == "refused (403): forbidden"
    assert str(Interruption(Cause.SILENT)) == "silent"
