"""Loading kernel modules ahead of their first use, as far as this process may.

Best effort on purpose: a module can be built in, have another name, or load by itself on first use, and a container
may lack modprobe or the right to load (K45). What the kernel can do is found out by asking it to do it, never from a
list of modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # where modprobe stands; a service's PATH may lack them
_TIMEOUT_S = 30


def load(names: Sequence[str], search_path: str | None = None) -> list[str]:
    """Run modprobe for each name; returns those it reported an error for, all of them where there is no modprobe."""
    if search_path is None:
        search_path = os.pathsep.join([os.environ.get("PATH", ""), _SYSTEM_FOLDERS])
    found = shutil.which("modprobe", path=search_path)
    if not found:
        return list(names)
    program = str(Path(found).absolute())
    return [name for name in names if not _loads(program, name)]


def _loads(program: str, name: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - an absolute path and a fixed list of names, no shell
            [program, "--quiet", "--", name], check=False, capture_output=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
