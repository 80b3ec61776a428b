"""Numbers in files of /proc and /sys that are set once at start, outside the desired state (plan/host_settings.py)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ipvsproxy.kernel.sysctls import PROC_SYS_NET, write_existing
from ipvsproxy.plan.host_settings import parse_cpu_list

_ONLINE = "sys/devices/system/cpu/online"
_NET = "proc/sys/net/"


class RootFiles:
    """Meets `kernel.api.HostFiles`, below `root`, settings of the network below `net` as in sysctls.py."""

    def __init__(self, root: Path = Path("/"), net: Path = PROC_SYS_NET) -> None:
        self._root = root
        self._net = net

    def read(self, path: str) -> int | None:
        """The number in the file; None where there is no such file, no right to read it or no number in it."""
        try:
            return int(self._path(path).read_text("ascii"))
        except (OSError, ValueError):
            return None

    def write(self, path: str, value: int) -> int:
        """Write it; the error number, 0 for success."""
        try:
            write_existing(self._path(path), str(value))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def online_cpus(self) -> int:
        """The host's online CPUs, whatever share of them a container has."""
        try:
            count = parse_cpu_list((self._root / _ONLINE).read_text("ascii"))
        except (OSError, ValueError):
            count = 0
        return count or os.cpu_count() or 1

    def _path(self, path: str) -> Path:
        return self._net / path.removeprefix(_NET) if path.startswith(_NET) else self._root / path
