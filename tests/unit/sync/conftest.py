"""What the tests of the sync thread share."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs


@pytest.fixture
def events():
    """Every log event of the test, of all levels."""
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found
