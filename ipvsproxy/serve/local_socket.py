"""The Unix socket at which this node's root may ask a daemon: where it is, who may use it, listening at it.

There is one for each network namespace, as there is one IPVS and at most one daemon in each; so `status` finds the
daemon whose kernel objects it lists. The file's mode lets in nobody but its owner, who is root; a TCP port would be
open to every pod on the host's network.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

FOLDER: Final = "/run/ipvsproxy"
KNOWN: Final = "/known"  # the page with what cluster/known.py writes
UNDONE: Final = "/undone"  # the page with model/figures.py's Undone

_OWN_NAMESPACE = "/proc/thread-self/ns/net"  # a thread may be in another one than its process
_MODE = 0o600
_BACKLOG = 16
_HINTS = {
    errno.EADDRINUSE: "Another daemon answers there",
    errno.EEXIST: "Something that is no socket is there: remove it",
    errno.EROFS: f"Mount a writable {FOLDER} (a tmpfs, or an emptyDir in a pod) for `status --names`",
    errno.EACCES: f"Let this user write to {FOLDER}, for `status --names`",
}


def socket_path(folder: str = FOLDER) -> str:
    """The socket of this process' network namespace. Raises OSError without /proc."""
    return f"{folder}/net-{os.stat(_OWN_NAMESPACE).st_ino}.sock"  # noqa: PTH116  # a link that leads to no path


def local_hint(number: int, path: str) -> str:
    """What the operator can do about an errno of `listen_at`."""
    return _HINTS.get(number, f"`status --names` needs {path}; it is tried again")


def listen_at(path: str) -> socket.socket:
    """A non-blocking socket that listens at `path`; its folder is made. Raises OSError; EADDRINUSE: somebody answers.

    Nobody can connect before it listens, and by then the mode is right: the umask, which is all threads', stays.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _remove_what_is_left(path)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.bind(path)
        Path(path).chmod(_MODE)
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    opened.settimeout(0)
    return opened


def _remove_what_is_left(path: str) -> None:
    """A socket file outlives its process, and nobody answers there any more."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0)
        if asking.connect_ex(path) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    Path(path).unlink()
