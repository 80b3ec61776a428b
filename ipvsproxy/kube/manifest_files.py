"""One file of the manifest folder: read without ever blocking, parsed only when it changed, its last good version kept.

What the folder holds is up to others: a FIFO, a device, a file that vanishes between listing and opening. None of
them may hang or end the daemon, so everything that is not a plain, readable, not too large file is told as a note.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ipvsproxy.cluster.endpoints_v1 import mirror_endpoints
from ipvsproxy.cluster.events import ApiObject, ObjectRef
from ipvsproxy.errors import describe_errno
from ipvsproxy.kube.documents import FileContent, ManifestObject, parse_documents
from ipvsproxy.model.api_objects import Endpoints, EndpointSlice
from ipvsproxy.model.names import LABEL_SERVICE_NAME, ServiceName
from ipvsproxy.model.notes import Note, one_line

MAX_FILE_BYTES = 64 * 1024 * 1024
_SETTLED_NS = 2_000_000_000  # file systems' time stamps are up to two seconds coarse: a younger one proves nothing
_KEPT = "Until it can be read, what it last said stays in force"
_HINTS = {
    errno.EACCES: "Give the daemon's user permission to read it",
    errno.EPERM: "Give the daemon's user permission to read it",
    errno.ELOOP: "Remove the loop of symbolic links",
    errno.ENOENT: "Remove the symbolic link, or put the file it points to in its place",
}

_Stamp: TypeAlias = tuple[int, int, int, int, int]


class Declared(NamedTuple):
    """One object of a file: what it tells the tracker (Endpoints tell slices), and where it stands for notes."""

    ref: ObjectRef
    where: str
    tells: tuple[tuple[ObjectRef, ApiObject], ...]
    service: ServiceName | None  # the Service that a slice or Endpoints belong to


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file as last read. `live` is what it says, `kept` what it once said of objects that it now says badly."""

    stamp: _Stamp | None = None
    digest: bytes = b""
    live: tuple[Declared, ...] = ()
    kept: dict[ObjectRef, Declared] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def in_force(self) -> dict[ObjectRef, Declared]:
        """Everything that holds of this file."""
        return self.kept | {declared.ref: declared for declared in reversed(self.live)}


class _NotAFileError(Exception):
    """Why a path that opens is of no use."""


def read_file(path: Path, before: ManifestFile | None, now_ns: Callable[[], int]) -> ManifestFile | None:
    """The file as it is now, `before` where it did not change, None where it is gone. Raises nothing."""
    shown = shown_path(path)
    before = before or ManifestFile()
    try:
        status = path.stat()
        if before.stamp is not None and _stamp(status) == before.stamp:
            return before
        status, data = _read_regular(path, status)
    except _NotAFileError as error:
        return _unreadable(before, Note(shown, str(error), _KEPT))
    except OSError as error:
        if error.errno == errno.ENOENT and not path.is_symlink():
            return None
        number = error.errno or 0
        return _unreadable(before, Note(shown, f"cannot be read: {describe_errno(number)}", _HINTS.get(number, _KEPT)))
    is_settled = now_ns() - status.st_ctime_ns > _SETTLED_NS
    stamp = _stamp(status) if is_settled else None
    digest = hashlib.blake2b(data, digest_size=16).digest()
    if digest == before.digest:
        return replace(before, stamp=stamp)
    return _parsed(shown, data, before, ManifestFile(stamp=stamp, digest=digest))


def shown_path(path: Path) -> str:
    """The path as messages show it, whatever bytes it is made of."""
    return one_line(os.fsencode(path).decode("utf-8", "backslashreplace"))


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_regular(path: Path, status: os.stat_result) -> tuple[os.stat_result, bytes]:
    """Status and bytes of a plain file. Looked at before it is opened, for opening a device may act on it."""
    _check(status)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        status = os.fstat(descriptor)
        _check(status)
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise _NotAFileError(_too_large(len(data)))
    return status, data


def _check(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _NotAFileError("a folder, not a file: subfolders are not read")
    if not stat.S_ISREG(status.st_mode):
        raise _NotAFileError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise _NotAFileError(_too_large(status.st_size))


def _too_large(size: int) -> str:
    return f"{size} bytes or more; the limit is {MAX_FILE_BYTES}: split it into several files"


def _unreadable(before: ManifestFile, note: Note) -> ManifestFile:
    """All that it said is kept; without stamp and digest it is tried again at the next load."""
    return ManifestFile(kept=before.in_force, notes=(note,))


def _parsed(shown: str, data: bytes, before: ManifestFile, fresh: ManifestFile) -> ManifestFile:
    content = parse_documents(data, shown)
    if isinstance(content, Note):
        return replace(fresh, kept=before.in_force, notes=(content,))
    return replace(
        fresh,
        live=tuple(_declare(shown, item) for item in content.objects),
        kept=_kept(content, before.in_force),
        notes=tuple(refusal.note for refusal in content.refusals),
    )


def _kept(content: FileContent, before: dict[ObjectRef, Declared]) -> dict[ObjectRef, Declared]:
    refused = (refusal.ref for refusal in content.refusals)
    return {ref: before[ref] for ref in refused if ref is not None and ref in before}


def _declare(shown: str, item: ManifestObject) -> Declared:
    where = f"{shown}:{item.line}"
    metadata = item.object.metadata
    if isinstance(item.object, Endpoints):
        slices = mirror_endpoints(item.object)
        tells = tuple(
            (ObjectRef("EndpointSlice", piece.metadata.namespace, piece.metadata.name), piece) for piece in slices
        )
        return Declared(item.ref, where, tells, ServiceName(metadata.namespace, metadata.name))
    service = None
    if isinstance(item.object, EndpointSlice):
        service = ServiceName(metadata.namespace, (metadata.labels or {}).get(LABEL_SERVICE_NAME, ""))
    return Declared(item.ref, where, ((item.ref, item.object),), service)
