"""A watched folder, with the kernel's own inotify: nothing here needs root."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel import inotify
from ipvsproxy.kernel.inotify import FolderWatch

IN_Q_OVERFLOW = 0x4000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "above" / "manifests"
    made.mkdir(parents=True)
    (made / "old.yaml").write_text("old")
    return made


@pytest.fixture
def watch(folder: Path) -> Iterator[FolderWatch]:
    made = FolderWatch(folder)
    yield made
    made.close()


def swap_volume(folder: Path) -> None:
    """As the kubelet updates a ConfigMap volume: a new folder, and a link renamed over the old link to it."""
    (folder / "..2026_11_30").mkdir()
    (folder / "..data_tmp").symlink_to("..2026_11_30")
    (folder / "..data_tmp").rename(folder / "..data")


CHANGES: list = [
    pytest.param(lambda f: (f / "new.yaml").write_text("new"), id="a file is written"),
    pytest.param(lambda f: (f / "old.yaml").write_text("new"), id="a file is rewritten"),
    pytest.param(lambda f: (f / "old.yaml").unlink(), id="a file is deleted"),
    pytest.param(lambda f: (f / "old.yaml").rename(f / "new.yaml"), id="a file is renamed"),
    pytest.param(lambda f: (f / "old.yaml").rename(f.parent / "away.yaml"), id="a file is moved out"),
    pytest.param(lambda f: (f / "old.yaml").chmod(0o600), id="a file's mode changes"),
    pytest.param(lambda f: (f / "link.yaml").symlink_to("/nowhere"), id="a link is made"),
    pytest.param(swap_volume, id="a ConfigMap volume is swapped"),
    pytest.param(shutil.rmtree, id="the folder is deleted"),
    pytest.param(lambda f: f.rename(f.parent / "away"), id="the folder is renamed"),
    pytest.param(lambda f: f.parent.rename(f.parent.parent / "away"), id="the folder above is renamed"),
    pytest.param(lambda f: f.chmod(0o700), id="the folder's mode changes"),
    pytest.param(lambda f: Path(os.fsdecode(os.fsencode(f) + b"/\xff")).touch(), id="a name is not UTF-8"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_folder_is_seen(watch, folder, change):
    change(folder)
    assert watch.wait()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f: (f.parent / "other").mkdir(), id="a neighbour is made"),
        pytest.param(lambda f: (f.parent.parent / "other").touch(), id="something is made further up"),
    ],
)
def test_what_happens_beside_the_folder_is_not_a_change(watch, folder, change):
    change(folder)
    assert not watch._read()


@pytest.mark.parametrize(
    "gone",
    [pytest.param(lambda f: f, id="the folder"), pytest.param(lambda f: f.parent, id="the folder and the one above")],
)
def test_a_folder_that_comes_back_is_followed(watch, folder, gone):
    shutil.rmtree(gone(folder))
    assert watch.wait()
    folder.mkdir(parents=True)
    assert watch.wait()
    (folder / "new.yaml").write_text("new")
    assert watch.wait()


def test_a_folder_need_not_be_there_yet(tmp_path):
    folder = tmp_path / "later" / "manifests"
    watch = FolderWatch(folder)
    folder.mkdir(parents=True)
    assert watch.wait()
    (folder / "new.yaml").write_text("new")
    assert watch.wait()
    watch.close()


def test_a_link_to_a_folder_is_followed_when_it_is_renamed_over(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "manifests"
    link.symlink_to("one")
    watch = FolderWatch(link)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    assert watch.wait()
    (tmp_path / "two" / "new.yaml").write_text("new")
    assert watch.wait()
    watch.close()


def test_a_burst_is_one_change(watch, folder):
    for n in range(300):
        (folder / f"{n}.yaml").write_text("new")
    assert watch.wait()
    assert not watch._is_more_queued()


def test_a_queue_overflow_is_a_change(watch):
    (event,) = watch._reader.parse(struct.pack("=iIII", -1, IN_Q_OVERFLOW, 0, 0))
    assert watch._concerns_folder(event)


def test_watches_of_deleted_folders_are_forgotten(watch, folder):
    before = len(watch._reader.wd)
    for _ in range(5):
        shutil.rmtree(folder)
        assert watch.wait()
        folder.mkdir()
        assert watch.wait()
    assert len(watch._reader.wd) == before


def test_stop_wakes_who_waits_and_stays(watch):
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(watch.wait()))
    thread.start()
    watch.stop()
    thread.join(30)
    assert answers == [False]
    assert not watch.wait()


class Refusing:
    """A C library whose inotify calls fail as the kernel's do at a limit."""

    def __init__(self, real: object, call: str, number: int, set_errno: Callable[[int], int]) -> None:
        self._real, self._call, self._number, self._set_errno = real, call, number, set_errno

    def __getattr__(self, name: str) -> object:
        return self._refuse if name == self._call else getattr(self._real, name)

    def _refuse(self, *_: object) -> int:
        self._set_errno(self._number)
        return -1


@pytest.mark.parametrize(
    "call, number",
    [
        pytest.param("inotify_init", errno.EMFILE, id="instances"),
        pytest.param("inotify_add_watch", errno.ENOSPC, id="watches"),
    ],
)
def test_the_limits_of_inotify_are_an_error_that_names_them(monkeypatch, folder, call, number):
    ctypes = inotify.ctypes
    real = ctypes.CDLL(None, use_errno=True)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refusing(real, call, number, ctypes.set_errno))
    with pytest.raises(KernelError, match=r"cannot watch a folder.*fs\.inotify\.max_user_instances") as refused:
        FolderWatch(folder)
    assert refused.value.number == number
