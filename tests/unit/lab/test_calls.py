from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.calls import END, Caller, CallError, serve


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Caller]:
    """Somebody answers at the other side."""
    thread = threading.Thread(target=serve, args=(tmp_path, {"add": lambda a, b: a + b, "divide": lambda a, b: a / b}))
    thread.start()
    caller = Caller(tmp_path, thread.is_alive)
    yield caller
    caller(END)
    thread.join()


def test_calls_are_answered_in_their_order(call: Caller):
    assert [call("add", a=1, b=2), call("add", a="x", b="y")] == [3, "xy"]


def test_what_goes_wrong_at_the_other_side_is_told_here_and_does_not_end_it(call: Caller):
    with pytest.raises(CallError, match="divide: ZeroDivisionError: division by zero"):
        call("divide", a=1, b=0)
    assert call("add", a=1, b=1) == 2


def test_where_nobody_is_alive_nobody_waits(tmp_path: Path):
    with pytest.raises(CallError, match="add: nobody answers"):
        Caller(tmp_path, lambda: False)("add")
