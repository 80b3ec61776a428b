"""Which of the same complaints is a warning."""

from __future__ import annotations

import structlog

from ipvsproxy.kernel.complaints import Complaints


def test_a_reason_is_a_warning_once_for_its_object_until_it_is_settled():
    complaints = Complaints("it_failed")
    with structlog.testing.capture_logs() as logs:
        complaints.tell("a", "busy", number=16)
        complaints.tell("a", "busy")
        complaints.tell("b", "busy")
        complaints.tell("a", "gone")
        complaints.tell("a", "busy")
        complaints.settle("a")
        complaints.settle("a")
        complaints.tell("a", "busy")
    assert [entry["log_level"] for entry in logs] == ["warning", "debug", "warning", "warning", "warning", "warning"]
    assert logs[0] == {"event": "it_failed", "log_level": "warning", "reason": "busy", "number": 16}
