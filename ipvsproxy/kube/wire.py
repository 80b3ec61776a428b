"""The bytes of lists and watches → what they say, decoded once and only as far as it is read.

    {"type":"ADDED","object":{"kind":"Service","metadata":{…},"spec":{…}}}        one line an event
    {"type":"BOOKMARK","object":{"kind":"Service","metadata":{"resourceVersion":"12746","annotations":{…}}}}
    {"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"…"}}

One typed decode for the lines that there are thousands of. A second, loose one where that fails: the Status of an ERROR
has another shape, and an object that does not decode is told by its name instead of stopping the watch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from ipvsproxy.cluster.events import ApiObject, ObjectRef
from ipvsproxy.kube.recovery import Cause, Interruption
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES, Resource
from ipvsproxy.model.api_objects import Identity
from ipvsproxy.model.notes import one_line

MAX_LINE_BYTES = 8 * MAX_OBJECT_BYTES
"""Of one event. etcd holds protobuf, which JSON's names and escapes make some times longer: no real object may end a
watch, for it would meet it again each time."""
MAX_PAGE_BYTES = 128 * MAX_OBJECT_BYTES
"""Of a list's page, 192 MiB. The slices of 150,000 Pods, Kubernetes' own limit, are a third of it."""

_ENDS_LIST = "k8s.io/initial-events-end"
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EXPIRED_STATUS = 410
_EXPIRED_REASONS = frozenset({"Expired", "Gone"})
_INT32 = 0x7FFFFFFF  # what the API has for a number of seconds; JSON and Python know no limit
_TOO_NEW = "ResourceVersionTooLarge"  # the server has not come that far: its storage was restored, or it lags behind

T = TypeVar("T")


class Present(NamedTuple):
    """The object is there, in this version."""

    ref: ObjectRef
    version: str
    object: ApiObject


class Absent(NamedTuple):
    """The object is gone since this version."""

    ref: ObjectRef
    version: str


class Unreadable(NamedTuple):
    """The object is there, and does not decode."""

    ref: ObjectRef
    version: str
    reason: str


class Bookmark(NamedTuple):
    """All news up to this version have been told; `ends_list`: and with it the list of what exists."""

    version: str
    ends_list: bool


class Page(NamedTuple):
    """A part of a list; `continue_token` is empty in the last one."""

    version: str
    continue_token: str
    items: tuple[Present | Unreadable, ...]


Arrival: TypeAlias = Present | Absent | Unreadable


class _Event(msgspec.Struct, Generic[T], frozen=True):
    object: T
    type: str = ""


class _Metadata(Identity, frozen=True):
    annotations: dict[str, str] | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    """A list deletes by what it leaves out, so all of these must be there; an empty one of Go may say null."""

    kind: str
    metadata: _ListMetadata
    items: tuple[msgspec.Raw, ...] | None


class _StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""


class _StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int | None = None
    causes: tuple[_StatusCause, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    """metav1.Status."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_LOOSE_EVENT = msgspec.json.Decoder(_Event[msgspec.Raw])
_NAMED_EVENT = msgspec.json.Decoder(_Event[_Named])
_NAMED = msgspec.json.Decoder(_Named)
_LIST = msgspec.json.Decoder(_List)
_STATUS = msgspec.json.Decoder(_Status)


class Reader:
    """Reads one resource's lines and pages. Raises Interruption for an ERROR and for what is no answer of an API."""

    def __init__(self, resource: Resource) -> None:
        self._kind = resource.kind
        self._list_kind = resource.list_kind
        self._event: msgspec.json.Decoder[_Event[ApiObject]] = msgspec.json.Decoder(_Event[resource.type])  # type: ignore[name-defined]
        self._object: msgspec.json.Decoder[ApiObject] = msgspec.json.Decoder(resource.type)

    def read_line(self, line: bytes) -> Arrival | Bookmark:
        """What one line of a watch says."""
        try:
            event = self._event.decode(line)
        except _UNDECODABLE as error:
            return self._read_loosely(line, error)
        metadata = event.object.metadata
        match event.type:
            case "ADDED" | "MODIFIED":
                return Present(self._ref(metadata), metadata.resource_version, event.object)
            case "DELETED":
                return Absent(self._ref(metadata), metadata.resource_version)
            case _:
                return self._read_loosely(line, None)

    def read_page(self, body: bytes) -> Page:
        """What one page of a list says."""
        try:
            page = self._checked(_LIST.decode(body))
            items = tuple(self._read_item(item) for item in page.items or ())
        except _UNDECODABLE as error:
            raise _malformed(error) from error
        return Page(page.metadata.resource_version, page.metadata.continue_token, items)

    def _checked(self, page: _List) -> _List:
        if page.kind != self._list_kind:
            came = one_line(page.kind)
            raise Interruption(Cause.MALFORMED, f'a "{came}" came instead of a "{self._list_kind}"')
        if not page.metadata.resource_version:
            raise Interruption(Cause.MALFORMED, "a list without a resourceVersion")
        return page

    def _read_item(self, item: msgspec.Raw) -> Present | Unreadable:
        try:
            found = self._object.decode(item)
        except _UNDECODABLE as error:
            metadata = _NAMED.decode(item).metadata
            return Unreadable(self._ref(metadata), metadata.resource_version, one_line(str(error)))
        return Present(self._ref(found.metadata), found.metadata.resource_version, found)

    def _read_loosely(self, line: bytes, problem: Exception | None) -> Arrival | Bookmark:
        try:
            event = _LOOSE_EVENT.decode(line)
            if event.type == "ERROR":
                raise interruption_of(0, event.object)
            metadata = _NAMED_EVENT.decode(line).object.metadata
        except _UNDECODABLE as error:
            raise _malformed(error) from error
        match event.type:
            case "BOOKMARK":
                if not metadata.resource_version:
                    raise Interruption(Cause.MALFORMED, "a bookmark without a resourceVersion")
                ends_list = (metadata.annotations or {}).get(_ENDS_LIST) == "true"
                return Bookmark(metadata.resource_version, ends_list)
            case "DELETED":
                return Absent(self._ref(metadata), metadata.resource_version)
            case "ADDED" | "MODIFIED":
                return Unreadable(self._ref(metadata), metadata.resource_version, one_line(str(problem)))
            case other:
                raise Interruption(Cause.MALFORMED, f'"{one_line(other)}" is no type of a watch event')

    def _ref(self, metadata: Identity) -> ObjectRef:
        # Thousands of objects share a few namespaces; each would bring its own copy of the name.
        return ObjectRef(self._kind, sys.intern(metadata.namespace), metadata.name)


def interruption_of(status: int, body: bytes | msgspec.Raw, retry_after_s: float | None = None) -> Interruption:
    """What an answer that is no success says: an HTTP status with a Status object as its body, or an ERROR event."""
    try:
        told = _STATUS.decode(body)
    except _UNDECODABLE:
        told = _Status()
    details = told.details or _StatusDetails()
    if details.retry_after_seconds is not None and abs(details.retry_after_seconds) <= _INT32:
        retry_after_s = float(details.retry_after_seconds)
    number = status or told.code
    too_new = any(cause.reason == _TOO_NEW for cause in details.causes or ())
    expired = number == _EXPIRED_STATUS or told.reason in _EXPIRED_REASONS or too_new
    reason = one_line(told.message or told.reason)
    return Interruption(Cause.EXPIRED if expired else Cause.REFUSED, reason, status=number, retry_after_s=retry_after_s)


def lines_of(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """For each chunk the whole lines that it completes, if any, without blank ones. Half a line at the end is none.

    Raises Interruption at a line longer than MAX_LINE_BYTES, before its end has come.
    """
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise Interruption(Cause.MALFORMED, f"a line of more than {MAX_LINE_BYTES} bytes, and no object is so long")
        lines: list[bytes] = []
        if rest:
            lines = [b"".join(begun), *rest]
            begun = [lines.pop()]
            size = len(begun[0])
        yield [line for line in lines if line.strip()]


def _malformed(error: Exception) -> Interruption:
    return Interruption(Cause.MALFORMED, one_line(str(error)))
