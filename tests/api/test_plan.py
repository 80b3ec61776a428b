"""`ipvsproxy plan --from-cluster` against a real API server."""

from __future__ import annotations

import pytest

from ipvsproxy import cli
from ipvsproxy.config.command_line import ExitCode
from tests.api.node import NODE, Objects
from tests.lab.apiserver import ControlPlane


def test_plan_shows_what_is_in_the_cluster(plane: ControlPlane, objects: Objects, capsys: pytest.CaptureFixture[str]):
    name, address = objects.service()
    objects.slice(name, "10.244.1.5")
    argv = [
        "plan",
        "-o",
        "ipvsadm",
        "--from-cluster",
        f"--kubeconfig={plane.kubeconfig}",
        f"--hostname-override={NODE}",
    ]
    assert cli.run(argv, cli.Programs()) == ExitCode.INCOMPLETE
    assert capsys.readouterr().err.startswith(f"Node {NODE}: is not in the cluster")
    objects.node(NODE, "192.0.2.11")
    assert cli.run(argv, cli.Programs()) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if f" {address}:" in line]
    assert lines == [f"-A -t {address}:80 -s rr", f"-a -t {address}:80 -r 10.244.1.5:8080 -m -w 1"]


def test_plan_without_a_server_says_so_and_ends_with_1(plane: ControlPlane, capsys: pytest.CaptureFixture[str]):
    argv = ["plan", "-o", "json", "--from-cluster", f"--kubeconfig={plane.kubeconfig}", "--master=https://127.0.0.1:9"]
    assert cli.run(argv, cli.Programs()) == 1
    assert capsys.readouterr().err.startswith("Error: cannot list Services: unreachable: ECONNREFUSED")
