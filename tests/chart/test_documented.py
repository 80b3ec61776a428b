"""What the pages say to type where the cluster is asked; and names of commands, which their programs know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from ipvsproxy import cli
from ipvsproxy.config.command_line import ExitCode
from tests.api.node import Objects
from tests.chart.pages import Terminal
from tests.chart.release import release_of
from tests.chart.test_installs import environment_of
from tests.documented import documented
from tests.lab import helm
from tests.lab.apiserver import ControlPlane

pytestmark = pytest.mark.timeout(600)

NAMES = {command.text for command in documented(pattern=r"helm [a-z]+|kubectl [a-z]+( [a-z]+)?", in_block=False)}
EVENTS = documented("docs/events.md", program="kubectl")
LISTS = {command.text for command in documented("docs/troubleshoot.md", pattern=r"kubectl .*\bget .*")}
LOOKS = documented("docs/troubleshoot.md", pattern=r"kubectl .*\b(describe|logs) .*")
WITH_VALUES = documented(pattern=r"helm (install|upgrade) --.*", in_block=False)
(OBJECTS,) = documented("README.md", program="kubectl")


@pytest.fixture
def terminal(cluster: ControlPlane, tmp_path: Path) -> Terminal:
    (tmp_path / "tools").mkdir()
    return Terminal(cluster, "helm4", tmp_path / "tools")


@pytest.mark.parametrize("program", get_args(helm.Helm))
def test_helm_has_the_commands_that_pages_name(program: helm.Helm):
    for name in (name for name in NAMES if name.startswith("helm ")):
        answer = helm.run(program, *name.split()[1:], "--help")
        assert (answer.code, f"  {name} " in answer.out) == (0, True), name


def test_kubectl_has_the_commands_that_pages_name(terminal: Terminal):
    for name in (name for name in NAMES if name.startswith("kubectl ")):
        _, verb, *kinds = name.split()
        assert f"  kubectl {verb} " in terminal.run(f"kubectl {verb} --help")
        for kind in kinds:
            terminal.run(f"kubectl explain {kind}")


def test_events_of_a_service_are_shown(terminal: Terminal, objects: Objects):
    name, _ = objects.service()
    shown = [terminal.run(command.text) for command in EVENTS]
    assert f"Name:                     {name}\n" in shown[1]


def test_values_are_given_in_each_of_the_ways(cluster: ControlPlane, terminal: Terminal, tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text("apiServer: {host: 192.0.2.10}\n")
    what = {verb: f"{verb} ipvsproxy charts/ipvsproxy --namespace kube-system" for verb in ("install", "upgrade")}
    with release_of(cluster, "helm4") as release:
        for command in sorted(WITH_VALUES, key=lambda found: "upgrade" in found.text):
            if "install" in command.text:
                release.run("uninstall", "--ignore-not-found", "--wait")
            terminal.run(command.filled(what | {"VALUE": "apiServer.host=192.0.2.10", "FILE": str(file)}))
            assert environment_of(release)["KUBERNETES_SERVICE_HOST"] == "192.0.2.10"


def test_nodes_and_the_pods_on_them_are_listed_and_shown(cluster: ControlPlane, terminal: Terminal):
    with release_of(cluster, "helm4") as release:
        release.do("install", str(helm.CHART), "--wait", "--timeout=4m")
        for command in LISTS:
            assert "n1" in terminal.run(command)
        pod = release.pods()["n1"]
        for command in LOOKS:
            assert "ipvsproxy" in terminal.run(command.filled({"POD": pod["metadata"]["name"]}))
        containers = [name for command in LOOKS for name in re.findall(r"--container (\S+)", command.text)]
        assert containers == [pod["spec"]["initContainers"][0]["name"]]


def test_what_kubectl_writes_is_a_folder_of_manifests(
    terminal: Terminal, objects: Objects, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name, address = objects.service()
    objects.slice(name, "10.244.1.5")
    folder = tmp_path / "objects"
    folder.mkdir()
    text = terminal.run(OBJECTS.filled({"…": "services,endpointslices,nodes"}))
    (folder / "all.yaml").write_text(text)
    assert cli.run(["plan", "-o", "ipvsadm", f"--manifests={folder}", "--hostname-override=n1"], cli.Programs()) in {
        ExitCode.OK, ExitCode.INCOMPLETE,
    }  # fmt: skip
    assert f"-a -t {address}:80 -r 10.244.1.5:8080 -m -w 1\n" in capsys.readouterr().out
