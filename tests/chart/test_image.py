"""The image by the commands of docs/install.md: built, and brought onto a node that has no registry."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

import ipvsproxy
from tests.documented import ROOT, documented
from tests.lab import image

pytestmark = pytest.mark.timeout(900)

PAGE = "docs/install.md"
(BUILD,) = documented(PAGE, program="docker")
(IMPORT,) = documented(PAGE, program="ctr")
VERSION = "0.0.1"
READY_S = 60.0
CONTAINERD = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/socket"
"""


def run(command: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_docker_build_makes_the_image_that_make_image_makes(tmp_path: Path):
    """By buildah, which takes docker's arguments, on the bases that are here."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nverb=$1\nshift\nexec buildah "$verb" --quiet {shlex.join(image.options())} "$@"\n')
    docker.chmod(0o755)
    name = f"localhost/ipvsproxy:{VERSION}"
    run(BUILD.filled({"X.Y.Z": VERSION}), {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    try:
        made = json.loads(run(f"buildah inspect --type image {name}", {}))["OCIv1"]["config"]
    finally:
        run(f"buildah rmi {name}", {})
    assert made["Labels"]["org.opencontainers.image.version"] == VERSION
    other = json.loads((image.OUT / "config.json").read_text())
    assert [made[key] for key in ("Env", "Entrypoint")] == [other[key] for key in ("Env", "Entrypoint")]


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A node's containerd; the environment by which its programs find it."""
    (tmp_path / "config.toml").write_text(CONTAINERD.format(folder=tmp_path))
    command = ["setpriv", "--pdeathsig", "KILL", "containerd", "--config", str(tmp_path / "config.toml")]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            deadline = time.monotonic() + READY_S
            while not (tmp_path / "socket").exists():
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield {"CONTAINERD_ADDRESS": str(tmp_path / "socket")}
        finally:
            process.kill()


def test_an_imported_image_has_the_name_by_which_the_kubelet_looks_for_the_charts(containerd: dict[str, str]):
    values = yaml.safe_load((ROOT / "charts/ipvsproxy/values.yaml").read_text())["image"]
    assert not values["tag"]  # the chart's appVersion
    run(IMPORT.filled({"FILE": str(image.OUT / "ipvsproxy.tar")}), containerd)
    (name,) = run("ctr --namespace k8s.io images list --quiet", containerd).splitlines()
    assert name == f"{values['repository']}:{ipvsproxy.__version__}"
    assert "." in (host := name.split("/")[0]) or host == "localhost"  # else it means another one to a kubelet
