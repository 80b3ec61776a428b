"""Keys from a terminal, made of a pseudo-terminal's two ends."""

from __future__ import annotations

import os
import pty
import termios

import pytest

from ipvsproxy.top.terminal import Keyboard


@pytest.fixture
def ends():
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(theirs)
    try:
        os.close(ours)
    except OSError:
        return


def test_a_key_comes_without_the_end_of_a_line(ends):
    ours, theirs = ends
    with Keyboard(theirs) as keys:
        os.write(ours, b"d")
        assert keys.wait(30.0) == "d"


def test_no_key_is_none(ends):
    with Keyboard(ends[1]) as keys:
        assert keys.wait(0.0) is None


def test_keys_are_not_echoed_and_ctrl_c_still_interrupts(ends):
    with Keyboard(ends[1]):
        flags = termios.tcgetattr(ends[1])[3]
        assert not flags & (termios.ECHO | termios.ICANON)
        assert flags & termios.ISIG


def test_its_settings_come_back_though_something_fails(ends):
    before = termios.tcgetattr(ends[1])
    with pytest.raises(ZeroDivisionError), Keyboard(ends[1]):
        raise ZeroDivisionError
    assert termios.tcgetattr(ends[1]) == before


def test_a_terminal_that_is_gone_has_no_more_keys(ends):
    ours, theirs = ends
    with Keyboard(theirs) as keys:
        os.close(ours)
        assert keys.wait(30.0) == ""
