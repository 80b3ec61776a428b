import subprocess
from pathlib import Path

import pytest

from tests.lab import initrd


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Stands for kmod: the lines of `modprobe --show-depends`, and the commands that were run."""

    class Shown:
        lines = ""
        commands: list[str] = []  # noqa: RUF012  # one a test

        def __call__(self, command, **_):
            self.commands.append(command[0])
            return subprocess.CompletedProcess(command, 0, stdout=self.lines)

    monkeypatch.setattr(initrd.subprocess, "run", shown := Shown())
    (tmp_path / "lib/modules/6.1").mkdir(parents=True)
    return shown


def test_modules_are_loaded_once_and_in_the_order_of_modprobe(shown, tmp_path):
    shown.lines = "insmod /m/virtio.ko \ninsmod /m/virtio_pci.ko \ninsmod /m/virtio.ko \ninsmod /m/virtiofs.ko \n"

    needed = initrd.needed_modules(tmp_path, "6.1")

    assert needed == [Path("/m/virtio.ko"), Path("/m/virtio_pci.ko"), Path("/m/virtiofs.ko")]


def test_a_kernel_with_virtio_fs_built_in_needs_none(shown, tmp_path):
    shown.lines = "builtin virtio_pci\nbuiltin virtiofs\n"

    assert initrd.needed_modules(tmp_path, "6.1") == []


@pytest.mark.parametrize("indexed,commands", [(False, ["depmod", "modprobe"]), (True, ["modprobe"])])
def test_modules_of_a_package_that_was_only_unpacked_are_indexed(shown, tmp_path, indexed, commands):
    shown.commands = []
    if indexed:
        (tmp_path / "lib/modules/6.1/modules.dep").touch()

    initrd.needed_modules(tmp_path, "6.1")

    assert shown.commands == commands


def test_archive_has_the_programs_at_offsets_that_the_kernel_takes():
    archive = initrd.archive({"init": b"12345", "0.ko": b"6789"})

    size, name_size = 54, 94  # where those two fields begin
    found, at = {}, 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        content_length = int(archive[at + size : at + size + 8], 16)
        name_length = int(archive[at + name_size : at + name_size + 8], 16)
        name = archive[at + 110 : at + 110 + name_length]
        at += (110 + name_length + 3) // 4 * 4
        found[name] = archive[at : at + content_length]
        at += (content_length + 3) // 4 * 4
    assert found == {b"init\0": b"12345", b"0.ko\0": b"6789", b"TRAILER!!!\0": b""}
