"""An initrd that loads a kernel's modules for virtio-fs, mounts the guest's root by it and goes on there.

Debian's cloud kernels have virtio-fs built in since 6.12; for them none is needed, and none is made.
"""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

NEEDED = ("virtio_pci", "virtiofs")
KMOD = {"PATH": "/usr/sbin:/sbin"}
"""The environment of kmod's programs: none of the options that this machine's may have."""

# /dev/console and the folder /root are in every kernel's own, empty initrd. The move of the mount to / is what
# switch_root does; PID 1 shares its root with the kernel's threads, so that modprobe is found by them too.
INIT_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char module[16];
    for (int number = 0;; number++) {
        snprintf(module, sizeof module, "/%d.ko", number);
        int file = open(module, O_RDONLY | O_CLOEXEC);
        if (file < 0) break;
        if (syscall(SYS_finit_module, file, "", 0)) perror(module);
        close(file);
    }
    if (mount("root", "/root", "virtiofs", MS_RDONLY, "")) perror("mount /root");
    if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".")) perror("change to /root");
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return argc;
}
"""


def needed_modules(base: Path, release: str) -> list[Path]:
    """The files of modules that virtio-fs at PCI needs, in the order to load them; none where it is built in.

    `base` holds lib/modules/`release`, which gets its index if it has none, as in a package that was but unpacked.
    Raises subprocess.CalledProcessError if a module is not there.
    """
    if not (base / "lib/modules" / release / "modules.dep").exists():
        subprocess.run(["depmod", f"--basedir={base}", release], capture_output=True, text=True, check=True, env=KMOD)
    command = ["modprobe", f"--dirname={base}", f"--set-version={release}", "--show-depends", "--all", *NEEDED]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=KMOD).stdout
    lines = (line.split() for line in shown.splitlines())  # "insmod FILE" or "builtin NAME"
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


def make(modules: list[Path]) -> bytes:
    """An initrd whose /init loads `modules` and continues with the program that its first argument names."""
    files = {f"{number}.ko": module.read_bytes() for number, module in enumerate(modules)}
    return archive({"init": compiled(INIT_C)} | files)


def compiled(source: str) -> bytes:
    """A static program from C. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        command = ["gcc", "-static", "-O1", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=source, capture_output=True, text=True, check=True)
        return program.read_bytes()


def archive(files: Mapping[str, bytes]) -> bytes:
    """Programs as a cpio archive of the kind that the kernel takes ("newc": early-userspace/buffer-format of Linux)."""
    entries = [*files.items(), ("TRAILER!!!", b"")]
    return b"".join(_entry(number, name, content) for number, (name, content) in enumerate(entries, 1))


def _entry(number: int, name: str, content: bytes) -> bytes:
    mode, links, name_size = 0o100755, 1, len(name) + 1
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, name_size, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name.encode() + b"\0") + _padded(content)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
