from __future__ import annotations

import yaml

from tests.lab import helm, programs


def test_every_wheel_that_the_chart_is_checked_with_is_pinned_by_its_hash():
    assert all("--hash=sha256:" in pin for pin in programs.pins(helm.PINS))
    assert {pin.partition("==")[0] for pin in programs.pins(helm.PINS)} >= set(helm.HELMS.values())


def test_the_chart_is_for_the_versions_that_it_is_checked_for():
    found = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert found["kubeVersion"] == f">=1.{helm.OLDEST}.0-0"
    assert f"Kubernetes 1.{helm.OLDEST} to 1.{helm.NEWEST}" in (helm.CHART / "README.md").read_text()
