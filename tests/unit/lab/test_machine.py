import shlex
import subprocess
from pathlib import Path

import pytest

from tests.lab import machine

PARTS = machine.Parts(
    qemu="qemu",
    virtiofsd="virtiofsd",
    kernel=Path("/boot/vmlinuz-6.12.1-cloud-amd64"),
    modules=Path("/lib/modules"),
)


@pytest.mark.parametrize(
    "names,expected",
    [
        pytest.param([], None, id="none"),
        pytest.param(["vmlinuz-6.12.9-amd64"], None, id="other kernels have virtio-fs as a module"),
        pytest.param(
            ["vmlinuz-6.12.9+deb12-cloud-amd64", "vmlinuz-6.12.10+deb12-cloud-amd64"],
            "vmlinuz-6.12.10+deb12-cloud-amd64",
            id="numbers are compared as numbers",
        ),
        pytest.param(
            ["vmlinuz-6.12.9+deb12-cloud-amd64", "vmlinuz-6.16.3+deb13-cloud-amd64"],
            "vmlinuz-6.12.9+deb12-cloud-amd64",
            id="6.12 goes before newer ones",
        ),
        pytest.param(
            ["vmlinuz-6.1.0-50-cloud-amd64", "vmlinuz-6.16.3+deb13-cloud-amd64"],
            "vmlinuz-6.16.3+deb13-cloud-amd64",
            id="without 6.12 the newest",
        ),
    ],
)
def test_kernel_that_is_booted(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()

    kernel = machine.newest_kernel(tmp_path)

    assert (kernel and kernel.name) == expected


@pytest.mark.parametrize("root,hint", [("/", "make setup"), ("/linux-5.10", "dpkg -x")])
def test_missing_kernel_is_named_with_its_package(monkeypatch, root, hint):
    monkeypatch.setattr(machine, "newest_kernel", lambda _boot: None)

    with pytest.raises(machine.LabError, match=rf"linux-image-6\.12\.\*-cloud-amd64.*{hint}"):
        machine.find_parts(Path(root))


@pytest.mark.parametrize("lib", ["lib", "usr/lib"])
def test_kernel_and_modules_are_those_of_the_folder(tmp_path, monkeypatch, lib):
    monkeypatch.setattr(machine.shutil, "which", lambda name, path: f"{path.partition(':')[0]}/{name}")
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    for folder in ("boot", f"{lib}/modules"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "boot/vmlinuz-5.10.0-46-cloud-amd64").touch()

    parts = machine.find_parts(tmp_path)

    assert (parts.release, parts.modules) == ("5.10.0-46-cloud-amd64", tmp_path / lib / "modules")


def test_command_runs_in_this_folder_with_its_words_and_environment_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "ours")

    script = machine.command_script(["sh", "-c", 'echo "$A|$SECRET|$1|$PWD"', "sh", "two words"], {"A": "x y"})

    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"x y||two words|{tmp_path}\n"


@pytest.mark.parametrize(
    "shape,present,absent",
    [
        pytest.param(machine.Shape(), "-nic none", "-icount", id="no network unless asked"),
        pytest.param(machine.Shape(network=True), "-nic user,model=virtio-net-pci", "-nic none", id="network"),
        pytest.param(machine.Shape(icount=True), "-icount shift=0,sleep=on -smp 1", "thread=multi", id="icount"),
        pytest.param(machine.Shape(memory="5G"), "size=5G,share=on", "3G", id="memory"),
    ],
)
def test_qemu_command_has_what_the_shape_asks_for(shape, present, absent):
    line = shlex.join(machine.qemu_command(PARTS, shape, Path("/run-dir")))

    assert present in line
    assert absent not in line


def test_root_is_mounted_by_the_kernel_or_by_its_initrd(tmp_path):
    by_kernel = machine.qemu_command(PARTS, machine.Shape(), tmp_path)
    (tmp_path / machine.INITRD).touch()
    by_initrd = machine.qemu_command(PARTS, machine.Shape(), tmp_path)

    assert f"rootfstype=virtiofs root=root ro init={tmp_path}/init" in by_kernel[-1]
    assert by_initrd[-4:-1] == ["-initrd", str(tmp_path / machine.INITRD), "-append"]
    assert by_initrd[-1].endswith(f" -- {tmp_path}/init")
    assert "root=" not in by_initrd[-1]


@pytest.mark.parametrize("chosen,ran_on", [(None, "host"), ("linux-5.10", "VM")])
def test_a_chosen_kernel_is_taken_even_if_this_one_would_do(monkeypatch, tmp_path, chosen, ran_on):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAB_KERNEL", raising=False)
    if chosen:
        monkeypatch.setenv("LAB_KERNEL", chosen)
    found_in = []
    monkeypatch.setattr(machine, "find_parts", lambda root: found_in.append(root) or PARTS)
    monkeypatch.setattr(machine, "host_has", lambda _probe: True)
    ran = {"host": 1, "VM": 2}
    monkeypatch.setattr(machine, "_run_on_host", lambda *_: ran["host"])
    monkeypatch.setattr(machine, "_run_in_vm", lambda *_: ran["VM"])

    assert machine.run(["true"], tmp_path / "out", host_probe=machine.IPVS) == ran[ran_on]
    assert found_in == ([tmp_path / chosen] if chosen else [])


def test_options_of_the_command_are_not_taken_for_ours():
    arguments = machine.parse(["--icount", "--out", "o", "--", "pytest", "--icount", "-x"])

    assert (arguments.icount, arguments.out, arguments.command) == (True, Path("o"), ["pytest", "--icount", "-x"])


class Boots:
    """Stands for VMs: how each boot ends, one after the other; None: before the guest is up."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = list(codes)

    def __call__(self, _command, out_dir, *_) -> int | None:
        code = self.codes.pop(0)
        if code is not None:
            (out_dir / machine.STARTED).touch()
        return code


@pytest.fixture
def without_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(machine, "find_parts", lambda _root: PARTS)


@pytest.mark.usefixtures("without_lock")
def test_a_guest_that_dies_before_it_is_up_is_booted_again(monkeypatch, tmp_path):
    boots = Boots(None, 7, 0)
    monkeypatch.setattr(machine, "boot_once", boots)

    assert machine.run(["true"], tmp_path / "out") == 7
    assert boots.codes == [0]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("without_lock")
def test_a_guest_that_never_comes_up_is_no_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "boot_once", Boots(None, None, None, 0))

    with pytest.raises(machine.LabError, match="no VM came up in 3 boots"):
        machine.run(["true"], tmp_path / "out")


@pytest.mark.usefixtures("without_lock")
def test_a_guest_that_dies_under_the_command_is_not_booted_again(monkeypatch, tmp_path):
    def die(_command, out_dir, *_):
        (out_dir / machine.STARTED).touch()

    monkeypatch.setattr(machine, "boot_once", die)
    with pytest.raises(machine.LabError, match="ended before the command"):
        machine.run(["true"], tmp_path / "out")
