"""The README of the chart, followed to the letter on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.chart.conftest import NODES
from tests.chart.pages import Terminal, sections
from tests.chart.test_installs import Release, eventually, release_of
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

pytestmark = pytest.mark.timeout(600)

BLOCKS = sections("charts/ipvsproxy/README.md")


@pytest.fixture(params=get_args(helm.Helm))
def at_work(
    cluster: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Release, Terminal]]:
    """A release to be, by each Helm, and where its commands are typed."""
    with release_of(cluster, request.param) as release:
        yield release, Terminal(cluster, request.param, tmp_path)
        cluster.kubectl("label", "nodes", "--all", "ipvsproxy.io/clean-up-", "ipvsproxy.io/check-")


def test_every_block_is_run_here():
    assert {heading for heading, blocks in BLOCKS.items() if blocks} == {
        "Chart of ipvsproxy",
        "Configuration",
        "Check a node without changing it",
        "Clean up",
    }


def test_it_is_installed_checked_and_cleaned_up(at_work: tuple[Release, Terminal]):
    release, terminal = at_work
    for block in BLOCKS["Chart of ipvsproxy"]:
        terminal.run(block)
    assert release.pods().keys() == set(NODES)
    for block in BLOCKS["Check a node without changing it"]:
        terminal.run(block)
    assert release.pods().keys() == set(NODES)
    one, all_of_them = BLOCKS["Clean up"]
    terminal.run(one)
    eventually(lambda: (release.pods().keys(), release.pods("clean-up").keys()) == ({"n2", "n3"}, {"n1"}))
    terminal.run(all_of_them)
    assert release.run("status").code != 0
    nodes = release.get("node", *NODES)["items"]
    assert not any("ipvsproxy.io/clean-up" in node["metadata"]["labels"] for node in nodes)


def test_the_page_on_installing_has_the_same_commands():
    assert sections("docs/install.md")["In a cluster"] == BLOCKS["Chart of ipvsproxy"]


def test_it_is_installed_with_kubeadms_configuration(at_work: tuple[Release, Terminal]):
    release, terminal = at_work
    for block in BLOCKS["Configuration"]:
        terminal.run(block)
    eventually(lambda: release.pods().keys() == set(NODES))
