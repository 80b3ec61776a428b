"""What was told of one resource, so that only news are told on: which objects exist, in which version.

Names and versions only, no objects. It answers three questions: is this arrival news, what was not in a list that is
now complete, and where may the next watch go on.

Versions are compared as numbers, which the API allows for one resource (KEP-5504); where one is no number, only equal
ones are known for old news. An arrival is old when its object was told in that version or a later one, or when all news
of its time have been told already (a bookmark said so). A repeated or late event can so neither bring an object back
nor set it back. Versions from before a list do not count against that list: storage that was restored counts anew.
"""

from __future__ import annotations

from typing import TypeAlias

from ipvsproxy.cluster.events import Changed, ClusterEvent, Listed, ObjectRef, Rejected, Removed
from ipvsproxy.kube.wire import Absent, Arrival, Bookmark, Present, Unreadable
from ipvsproxy.model.notes import Note

Version: TypeAlias = int | str

_MOST_DIGITS = 100  # etcd's have 64 bits, KEP-5504 allows 128; int() raises at some thousand digits
_HINT = "Correct it; what it last said stays in force"


class Told:
    """The memory of one watch. Used by one thread."""

    def __init__(self, kind: str, if_none: Note | None = None) -> None:
        self._kind = kind
        self._if_none = if_none
        self._versions: dict[ObjectRef, Version] = {}
        self._gone: dict[ObjectRef, Version] = {}  # since the last bookmark only, so it stays small
        self._settled: Version = 0
        self._listed: set[ObjectRef] | None = None
        self._resume_at: str | None = None

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def resume_at(self) -> str | None:
        """The resourceVersion from which a watch may go on; None: list first."""
        return self._resume_at

    @property
    def is_listing(self) -> bool:
        """Whether a list was begun and is not complete."""
        return self._listed is not None

    def begin_list(self) -> None:
        """A list begins, perhaps instead of one that was cut: nothing is concluded before it is complete."""
        self._listed = set()
        self._gone = {}
        self._resume_at = None

    def take(self, arrival: Arrival) -> ClusterEvent | None:
        """The event to tell on; None for old news."""
        version = _version(arrival.version)
        if self._is_old(arrival.ref, version):
            return None
        self._advance(arrival.version, version)
        if isinstance(arrival, Absent):
            return self._forget(arrival.ref, version)
        was_told = version != "" and self._versions.get(arrival.ref) == version
        self._versions[arrival.ref] = version
        self._gone.pop(arrival.ref, None)
        if self._listed is not None:
            self._listed.add(arrival.ref)
        return None if was_told else _event(arrival)

    def end_list(self, version: str) -> list[ClusterEvent]:
        """The list is complete: what was not in it is gone."""
        assert self._listed is not None  # noqa: S101 - our own order of calls
        removed = sorted(self._versions.keys() - self._listed)
        for ref in removed:
            del self._versions[ref]
        self._listed = None
        self._settled = _version(version)
        self._resume_at = version or None
        self._gone = {}
        none = [Rejected((self._if_none,))] if self._if_none and not self._versions else []
        return [*map(Removed, removed), *none, Listed(self._kind)]

    def bookmark(self, bookmark: Bookmark) -> None:
        """Everything up to here has been told. Within a list it says nothing: the list is not complete."""
        version = _version(bookmark.version)
        if self._listed is None and _is_later(version, self._settled):
            self._settled = version
            self._gone = {}
            self._advance(bookmark.version, version)

    def expire(self) -> None:
        """The server cannot go on from `resume_at`: the next thing is a list."""
        self._resume_at = None

    def _is_old(self, ref: ObjectRef, version: Version) -> bool:
        gone = self._gone.get(ref)
        if gone is not None and not _is_later(version, gone):
            return True
        if self._listed is None:
            return not _is_later(version, self._settled) or not _is_later(version, self._versions.get(ref, 0))
        return ref in self._listed and not _is_later(version, self._versions[ref])

    def _forget(self, ref: ObjectRef, version: Version) -> ClusterEvent | None:
        self._gone[ref] = version
        if self._listed is not None:
            self._listed.discard(ref)
        return Removed(ref) if self._versions.pop(ref, None) is not None else None

    def _advance(self, text: str, version: Version) -> None:
        """Go on from here after the next interruption; an event that came late does not set the place back."""
        if self._resume_at is not None and _is_later(version, _version(self._resume_at)):
            self._resume_at = text


def _event(arrival: Present | Unreadable) -> ClusterEvent:
    if isinstance(arrival, Unreadable):
        return Rejected((Note(str(arrival.ref), f"cannot be read: {arrival.reason}", _HINT),))
    return Changed(arrival.ref, arrival.object)


def _version(text: str) -> Version:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else text


def _is_later(version: Version, other: Version) -> bool:
    """Whether it may be later; what cannot be compared may, and so may what bears no version."""
    if version == "":
        return True
    if isinstance(version, int) and isinstance(other, int):
        return version > other
    return version != other
