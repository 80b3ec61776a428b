"""Kernel settings, through the files below /proc/sys.

A key is `net.ipv4.ip_forward`; where a part has a dot of its own (an interface's name) the key is written with
slashes, `net/ipv4/conf/eth0.100/arp_ignore`, as in sysctl(8). What /proc/sys shows depends on the reading thread's
network namespace.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ipvsproxy.errors import KernelError
from ipvsproxy.model.kernel_objects import Key, Kind, Operation, Settings, State, Verb

PROC_SYS = Path("/proc/sys")
PROC_SYS_NET = PROC_SYS / "net"
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)", re.ASCII)


class ProcSysctls:
    """Meets `kernel.api.Sysctls`; `names` are the keys that `read` returns where they exist.

    `net` is where those of the network are: a container whose /proc/sys is read-only may have the host's folder mounted
    at another place, and write there with NET_ADMIN alone.
    """

    kinds = frozenset({Kind.SYSCTL})

    def __init__(self, names: Iterable[str], root: Path = PROC_SYS, net: Path | None = None) -> None:
        self._names = tuple(sorted(names))
        self._root = root
        self._net = net or root / "net"

    def apply(self, operations: Sequence[Operation]) -> list[int]:
        """Write each value; one error number each. Nothing can be deleted: EPERM."""
        return [self._apply_one(operation) for operation in operations]

    def read(self) -> State:
        """The values of those of our names that exist, surrounding blanks removed. Raises KernelError."""
        found: dict[Key, Settings] = {}
        for name in self._names:
            try:
                found[name] = self._path(name).read_text("utf-8", "replace").strip()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise KernelError(f"cannot read sysctl {name}", error.errno or errno.EIO) from error
        return {Kind.SYSCTL: found}

    def fingerprint(self) -> bytes:
        """The values themselves: they are few. Raises KernelError."""
        return repr(sorted(self.read()[Kind.SYSCTL].items(), key=str)).encode()

    def _apply_one(self, operation: Operation) -> int:
        if operation.verb is Verb.DELETE:
            return errno.EPERM
        try:
            write_existing(self._path(str(operation.key)), str(operation.settings))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _path(self, name: str) -> Path:
        return sysctl_path(name, self._root, self._net)


def write_existing(path: Path, value: str) -> None:
    """Write a value into a setting's file, which must exist. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never O_CREAT, which hides that there is no such setting
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def sysctl_path(name: str, root: Path = PROC_SYS, net: Path = PROC_SYS_NET) -> Path:
    """The file of a setting, those of the network below `net`: dots separate, unless there is a slash in the name."""
    first, _, rest = (name if "/" in name else name.replace(".", "/")).partition("/")
    return net / rest if first == "net" else root / first / rest


def kernel_release(root: Path = PROC_SYS) -> tuple[int, int]:
    """Major and minor version of the running kernel. Raises KernelError where they cannot be read."""
    path = root / "kernel/osrelease"
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise KernelError(f"cannot read the kernel's version from {path}", error.errno or errno.EIO) from error
    match = _RELEASE.match(text)
    if not match:
        raise KernelError(
            f"cannot read the kernel's version from {path}", errno.EINVAL, why=f"it says {text.strip()!r}"
        )
    return int(match[1]), int(match[2])
