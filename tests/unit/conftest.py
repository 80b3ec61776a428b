"""What the tests of several commands share."""

from __future__ import annotations

import functools
import re

import pytest
import structlog
from structlog.testing import capture_logs

from tests.explained import Place


@pytest.fixture
def quiet():
    """The log is kept, so that it stands between nothing that is printed."""
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found


@pytest.fixture
def place(tmp_path):
    """Makes a Place of the objects given."""
    return functools.partial(Place, tmp_path)


@pytest.fixture
def said(capsys):
    """What was printed, as lines without the blanks that align them."""
    return lambda: [re.sub(r" +", " ", line).strip() for line in capsys.readouterr().out.splitlines()]
