"""The chart's role has no right too many: without any single one of them something is refused, and it is said.

That it has none too few is shown by the tests of Events and of following, which run as the chart's ServiceAccount.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ipvsproxy import cli
from tests.api.chart_role import Right, grant, kubeconfig, rights, without
from tests.api.node import NODE, Objects, node_with
from tests.kube.following import eventually
from tests.lab.apiserver import ControlPlane

KINDS = {"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node"}
BY_VERB = {verb: [right for right in rights() if right.verb == verb] for verb in ("list", "watch", "create")}


def access_without(plane: ControlPlane, folder: Path, right: Right) -> Path:
    account = f"no-{right.verb}-{right.resource}"
    grant(plane, account, without(right))
    return kubeconfig(plane, folder / "kubeconfig", account)


def test_each_right_is_tried():
    assert sum(map(len, BY_VERB.values())) == len([*rights()])


@pytest.mark.parametrize("right", BY_VERB["watch"], ids=str)
def test_without_a_watch_its_kind_is_not_followed(plane: ControlPlane, tmp_path: Path, right: Right):
    with capture_logs() as logs, node_with(access_without(plane, tmp_path, right)):
        eventually(lambda: any(entry["event"] == "watch_lost" for entry in logs))
        eventually(lambda: sum(entry["event"] == "watch_connected" for entry in logs) == len(KINDS) - 1)
    lost = {entry["kind"]: entry["reason"] for entry in logs if entry["event"] == "watch_lost"}
    assert lost.keys() == {KINDS[right.resource]}
    assert lost[KINDS[right.resource]].startswith(f"refused (403): {right.resource}")


@pytest.mark.parametrize("right", BY_VERB["list"], ids=str)
def test_without_a_list_a_plan_of_the_cluster_cannot_be_made(
    plane: ControlPlane, tmp_path: Path, right: Right, capsys: pytest.CaptureFixture[str]
):
    access = access_without(plane, tmp_path, right)
    argv = ["plan", "-o", "json", "--from-cluster", f"--kubeconfig={access}", f"--hostname-override={NODE}"]
    assert cli.run(argv, cli.Programs()) == 1
    assert f"cannot list {KINDS[right.resource]}s: refused (403)" in capsys.readouterr().err


@pytest.mark.parametrize("right", BY_VERB["create"], ids=str)
def test_without_events_owners_are_not_told_and_all_else_goes_on(
    plane: ControlPlane, objects: Objects, tmp_path: Path, right: Right
):
    name, address = objects.service(ports=[{"name": "web", "port": 80, "protocol": "TCP"}])
    objects.slice(name, "10.244.1.5")  # its port is called http
    with capture_logs() as logs, node_with(access_without(plane, tmp_path, right)) as node:
        node.wait_for(address, f"-A -t {address}:80 -s rr")
        eventually(lambda: any(entry["event"] == "event_refused" for entry in logs))
    assert {entry["status"] for entry in logs if entry["event"] == "event_refused"} == {403}
