"""What the composition root makes of the configuration; that the daemon works with it is shown in tests/vm."""

from __future__ import annotations

from ipvsproxy.config.command_line import read_config
from ipvsproxy.daemon import periods
from ipvsproxy.sync.runner import Periods


def test_audits_come_at_the_sync_period_and_syncs_no_faster_than_the_minimum():
    config = read_config({"--ipvs-min-sync-period": "2s", "--ipvs-sync-period": "45s"})
    assert periods(config) == Periods(min_sync_s=2.0, audit_s=45.0)
