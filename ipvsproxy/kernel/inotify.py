"""Waiting for changes of one folder, on pyroute2's inotify reader.

An event only says that something changed; what the folder holds then is for the caller to read. So a burst is one
change, and so is an event that cannot be read.

The folder may go and come back, or be a symbolic link that is renamed over (a ConfigMap volume swaps `..data` inside
the folder, others swap the folder itself). So every folder above it is watched too, for the one entry that leads down,
and all watches are set again after each change: the kernel keeps those that are there.

Importing pyroute2 takes 0.3 s: import this module only where a folder is watched.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyroute2.inotify.inotify_fd import Inotify

from ipvsproxy.errors import KernelError

# include/uapi/linux/inotify.h
_IN_ATTRIB = 0x004
_IN_CLOSE_WRITE = 0x008
_IN_MOVED_FROM = 0x040
_IN_MOVED_TO = 0x080
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_IGNORED = 0x8000
_ENTRIES = _IN_CREATE | _IN_DELETE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_ATTRIB
_CONTENT = _ENTRIES | _IN_CLOSE_WRITE | _IN_DELETE_SELF | _IN_MOVE_SELF

_BURST_READS = 100  # some 10,000 events; a folder in which something always happens must not hold its reader up


class FolderWatch:
    """Watches a folder, there or not, from when it is made. Raises KernelError where inotify's limits are reached."""

    def __init__(self, path: Path) -> None:
        self._folder = path.absolute()
        self._way_down = {self._folder, *self._folder.parents}
        self._reader = _Reader(libc=ctypes.CDLL(None, use_errno=True), path=[])  # its own default runs ldconfig
        try:
            self._reader.bind()
        except ValueError as error:  # it takes the kernel's -1 for a descriptor
            raise _explain(ctypes.get_errno()) from error
        self._set_watches()

    def wait(self) -> bool:
        """Block until something has changed since the last return (True) or `stop` was called (False)."""
        try:
            while not self._read():
                pass
            for _ in range(_BURST_READS):
                if not self._is_more_queued():
                    break
                self._read()
        except _Stopped:
            return False
        self._set_watches()
        return True

    def stop(self) -> None:
        """Make `wait` return False, now and from then on; from any thread."""
        os.write(self._reader.ctlw, b"\0")

    def close(self) -> None:
        """Give the descriptors back, once nobody waits."""
        self._reader.close()

    def _read(self) -> bool:
        """Wait for events and read them; whether one concerns the folder. Raises _Stopped."""
        events = list(self._reader.get())
        if None in events:
            raise _Stopped
        return bool([event for event in events if event is not None and self._concerns_folder(event)])

    def _concerns_folder(self, event: dict[str, Any]) -> bool:
        if not event:
            return True
        if event["mask"] & _IN_IGNORED:
            self._reader.wd.pop(event["wd"], None)
        watched = Path(event["path"])
        return watched == self._folder or (event["name"] != "" and watched / event["name"] in self._way_down)

    def _is_more_queued(self) -> bool:
        return bool(select.select([self._reader.fd], [], [], 0)[0])

    def _set_watches(self) -> None:
        """Top down, so that what appears below a folder after its watch is set is either seen now or told later."""
        for folder in reversed(self._folder.parents):
            self._watch(folder, _ENTRIES)
        self._watch(self._folder, _CONTENT)

    def _watch(self, folder: Path, mask: int) -> None:
        try:
            self._reader.register_path(str(folder), mask)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.ENOMEM}:
                raise _explain(error.errno) from error
            # not there, or not to be read: a watch above tells when that changes


class _Stopped(Exception):  # noqa: N818  # no error
    """`stop` was called."""


class _Reader(Inotify):
    """pyroute2's reader, which neither looks at the kernel's refusals nor survives events that it cannot place."""

    def register_path(self, path: str, mask: int = _ENTRIES) -> None:
        """Set a watch. Raises OSError."""
        super().register_path(path, mask)
        if self.wd.pop(-1, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)

    def parse(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events in what was read; an empty one for what cannot be read."""
        try:
            yield from super().parse(data)
        except (KeyError, UnicodeDecodeError):  # a queue overflow, which has no watch; a name that is not UTF-8
            yield {}


def _explain(number: int) -> KernelError:
    hint = "Raise fs.inotify.max_user_instances or fs.inotify.max_user_watches"
    return KernelError("cannot watch a folder", number, hint)
