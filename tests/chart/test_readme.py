"""The README of the chart, followed to the letter on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.chart.conftest import NODES
from tests.chart.pages import Terminal
from tests.chart.test_installs import Release, eventually, release_of
from tests.documented import documented
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

pytestmark = pytest.mark.timeout(600)

PAGE = "charts/ipvsproxy/README.md"
INSTALL = documented(PAGE, "Chart of ipvsproxy", in_block=True)
CONFIGURATION = documented(PAGE, "Configuration", in_block=True)
CHECK = documented(PAGE, "Check a node without changing it", in_block=True)
CLEAN_UP = documented(PAGE, "Clean up", block=1)
UNINSTALL = documented(PAGE, "Clean up", block=2)
(BACK,) = {command.text for command in documented(pattern=".* ipvsproxy.io/clean-up-", in_block=False)}
THE_SAME = documented("docs/install.md", "In a cluster", in_block=True)
DAY_BY_DAY = documented("docs/operate.md", pattern="helm test .*")


@pytest.fixture(params=get_args(helm.Helm))
def at_work(
    cluster: ControlPlane, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Release, Terminal]]:
    """A release to be, by each Helm, and where its commands are typed."""
    with release_of(cluster, request.param) as release:
        yield release, Terminal(cluster, request.param, tmp_path)
        cluster.kubectl("label", "nodes", "--all", "ipvsproxy.io/clean-up-", "ipvsproxy.io/check-")


def test_it_is_installed_checked_and_cleaned_up(at_work: tuple[Release, Terminal]):
    release, terminal = at_work
    terminal.follow(INSTALL)
    assert release.pods().keys() == set(NODES)
    terminal.follow([*DAY_BY_DAY, *CHECK])
    assert release.pods().keys() == set(NODES)
    terminal.follow(CLEAN_UP)
    eventually(lambda: (release.pods().keys(), release.pods("clean-up").keys()) == ({"n2", "n3"}, {"n1"}))
    terminal.run(BACK)
    eventually(lambda: release.pods().keys() == set(NODES))
    terminal.follow(UNINSTALL)
    assert release.run("status").code != 0
    nodes = release.get("node", *NODES)["items"]
    assert not any("ipvsproxy.io/clean-up" in node["metadata"]["labels"] for node in nodes)


def test_the_page_on_installing_has_the_same_commands():
    assert [command.text for command in THE_SAME] == [command.text for command in INSTALL]


def test_it_is_installed_with_kubeadms_configuration(at_work: tuple[Release, Terminal]):
    release, terminal = at_work
    terminal.follow(CONFIGURATION)
    eventually(lambda: release.pods().keys() == set(NODES))
