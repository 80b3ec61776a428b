"""The stand-alone source: a folder of YAML and JSON files as the same events that the API server's watches tell.

Each load lists the folder, parses the files that changed, and compares the objects in force with those told before;
what is equal costs an identity test. Files are taken in the order of their names: of two equal objects the first
counts. Names that start with a dot are not read, nor are subfolders, so that a mounted ConfigMap (`..data`) works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ipvsproxy.cluster.events import ApiObject, Changed, ClusterEvent, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.errors import ConfigError, describe_errno
from ipvsproxy.kube.manifest_files import Declared, ManifestFile, read_file, shown_path
from ipvsproxy.model.notes import Note

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_KINDS = ("Service", "EndpointSlice", "Node")


class FolderWatch(Protocol):
    """Tells that something in the folder happened. It watches from its creation on: create it before the first load."""

    def wait(self) -> bool:
        """Block until something may have changed since the last call; False once it was stopped."""

    def stop(self) -> None:
        """Make `wait` return False, from any thread."""


class ManifestFolder:
    """The folder and what was told of it. Used by one thread. `now_ns` is wall time, as files' time stamps are."""

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns
        self._files: dict[str, ManifestFile] = {}
        self._told: dict[ObjectRef, ApiObject] = {}
        self._told_notes: frozenset[Note] = frozenset()
        self._is_listed = False

    def run(self, deliver: Callable[[Sequence[ClusterEvent]], None], watch: FolderWatch) -> None:
        """Load, and again each time `watch` tells, until it is stopped; one call of `deliver` for each load with news.

        Raises ConfigError where the first load cannot read the folder.
        """
        deliver(self.load())
        while watch.wait():
            events = self.load()
            if events:
                deliver(events)

    def load(self) -> list[ClusterEvent]:
        """What changed since the last load; the first one tells everything and closes each kind with Listed.

        Raises ConfigError where the first load cannot read the folder; later ones tell that and let the state stand.
        """
        try:
            names = sorted(entry.name for entry in self._path.iterdir() if _is_manifest(entry))
        except OSError as error:
            return self._unreadable(error)
        files = ((name, read_file(self._path / name, self._files.get(name), self._now_ns)) for name in names)
        self._files = {name: file for name, file in files if file is not None}
        declared, notes = _in_force(self._files.values())
        if not self._files:
            notes.append(Note(shown_path(self._path), "holds no manifests", "Put *.yaml, *.yml or *.json files there"))
        return [*self._tell_objects(_objects(declared.values())), *self._tell_notes(notes)]

    def _unreadable(self, error: OSError) -> list[ClusterEvent]:
        what, why = shown_path(self._path), describe_errno(error.errno or 0)
        if not self._is_listed:
            raise ConfigError(
                f"--manifests {what}", f"cannot be read: {why}", "Give a folder that exists and may be read"
            ) from error
        note = Note(what, f"cannot be read: {why}", "Until it can be read, what it last said stays in force")
        return self._tell_notes([*self._told_notes, note])

    def _tell_objects(self, objects: dict[ObjectRef, ApiObject]) -> list[ClusterEvent]:
        told = self._told
        events: list[ClusterEvent] = [
            Changed(ref, item) for ref, item in sorted(objects.items(), key=_by_ref) if _differs(told.get(ref), item)
        ]
        events += [Removed(ref) for ref in sorted(told.keys() - objects.keys())]
        if not self._is_listed:
            events += [Listed(kind) for kind in _KINDS]
        self._told = objects
        self._is_listed = True
        return events

    def _tell_notes(self, notes: Iterable[Note]) -> list[ClusterEvent]:
        """Each note once, until it is gone and comes again."""
        standing = frozenset(notes)
        fresh = sorted(standing - self._told_notes)
        self._told_notes = standing
        return [Rejected(tuple(fresh))] if fresh else []


def _is_manifest(entry: Path) -> bool:
    return entry.suffix in _SUFFIXES and not entry.name.startswith(".")


def _in_force(files: Iterable[ManifestFile]) -> tuple[dict[ObjectRef, Declared], list[Note]]:
    """The objects that hold, the first of equal ones, and every note. What is only kept yields to what a file says."""
    declared: dict[ObjectRef, Declared] = {}
    notes: list[Note] = []
    kept: dict[ObjectRef, Declared] = {}
    for file in files:
        notes += file.notes
        for item in file.live:
            first = declared.setdefault(item.ref, item)
            if first is not item:
                reason = f"{item.ref} is already declared at {first.where}, which counts"
                notes.append(Note(item.where, reason, "Remove one of the two"))
        kept = file.kept | kept
    return kept | declared, notes


def _objects(declared: Iterable[Declared]) -> dict[ObjectRef, ApiObject]:
    """What to tell: Endpoints only where their Service has no EndpointSlice."""
    items = tuple(declared)
    sliced = {item.service for item in items if item.ref.kind == "EndpointSlice"}
    return {
        ref: item
        for declaration in items
        if declaration.ref.kind != "Endpoints" or declaration.service not in sliced
        for ref, item in declaration.tells
    }


def _by_ref(entry: tuple[ObjectRef, ApiObject]) -> ObjectRef:
    return entry[0]


def _differs(before: ApiObject | None, now: ApiObject) -> bool:
    return before is not now and before != now
