"""The bytes of one manifest file → the objects we read, each with its line; what cannot be read is refused by name.

Any bytes are answered, nothing is raised. A text that does not parse costs its file, a bad object only itself, and
each of them makes exactly one note. Strict where silence would lose traffic: unread kinds, equal keys in one mapping
and values of a wrong type are told, as `kubectl --validate=strict` does. Fields that we do not read are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.kube.json_reader import read_json
from ipvsproxy.kube.mapping import Malformed, Mapping, Root, first_fault
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES
from ipvsproxy.kube.yaml_reader import read_yaml
from ipvsproxy.model.api_objects import Endpoints, EndpointSlice, Node, Service
from ipvsproxy.model.notes import Note, one_line

DEFAULT_NAMESPACE = "default"

Manifest: TypeAlias = Service | EndpointSlice | Endpoints | Node


class Kind(NamedTuple):
    """A kind that is read, and the one version it is read in."""

    api_version: str
    name: str


_TYPES: dict[Kind, type[Manifest]] = {
    Kind("v1", "Service"): Service,
    Kind("v1", "Endpoints"): Endpoints,
    Kind("v1", "Node"): Node,
    Kind("discovery.k8s.io/v1", "EndpointSlice"): EndpointSlice,
}
# A list's items bear their own kind in a `List`; in a list of one kind the API server leaves it out.
_LISTS = {kind._replace(name=f"{kind.name}List"): kind for kind in _TYPES} | {Kind("v1", "List"): None}
_READ = "Only Service, Endpoints, Node (v1), EndpointSlice (discovery.k8s.io/v1) and lists of them are read"
_CORRECT = "Correct it; what it last said stays in force"
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)  # RFC 1123 subdomain
_WRONG_TYPE = re.compile(r"Expected (?P<problem>.*?) - at `\$\.?(?P<path>.*)`")


class ManifestObject(NamedTuple):
    """One object and where it stands."""

    ref: ObjectRef
    line: int
    object: Manifest


class Refusal(NamedTuple):
    """One object that cannot be used, and whose last good version stays where `ref` says which one it is."""

    note: Note
    ref: ObjectRef | None = None


class FileContent(NamedTuple):
    """What a file that parses says, in its own order."""

    objects: tuple[ManifestObject, ...]
    refusals: tuple[Refusal, ...]


def parse_documents(data: bytes, path: str) -> FileContent | Note:
    """What the file says, JSON where `path` ends so, otherwise YAML; a note where its text cannot be read at all."""
    try:
        roots = _roots(data, is_json=path.endswith(".json"))
    except Malformed as error:
        return Note(
            f"{path}:{error.line}", one_line(error.reason), "Correct the file; what it last said stays in force"
        )
    reader = _ObjectReader(path)
    found = [item for root in roots if root.value is not None for item in reader.read(root, None)]
    objects = tuple(item for item in found if isinstance(item, ManifestObject))
    return FileContent(objects, tuple(item for item in found if isinstance(item, Refusal)))


def _roots(data: bytes, *, is_json: bool) -> list[Root]:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Malformed(1, "the text is UTF-16, not UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Malformed(data.count(b"\n", 0, error.start) + 1, f"not UTF-8: {error.reason}") from error
    return read_json(text) if is_json else read_yaml(data)


class _ObjectReader:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, root: Root, listed: Kind | None) -> Iterator[ManifestObject | Refusal]:
        """The objects of one value; `listed` is the kind that its list gives to items without one."""
        value = root.value
        if not isinstance(value, Mapping):
            yield self._refuse(root.line, "not a mapping, so no Kubernetes object")
            return
        api_version = value.get("apiVersion", listed and listed.api_version)
        name = value.get("kind", listed and listed.name)
        if not isinstance(api_version, str) or not isinstance(name, str):
            yield self._refuse(root.line, "apiVersion or kind is missing or no text")
            return
        kind = Kind(api_version, name)
        if kind in _LISTS:
            yield from self._read_list(root.line, value, _LISTS[kind])
        else:
            yield self._read_object(root.line, value, kind)

    def _read_list(self, line: int, value: Mapping, listed: Kind | None) -> Iterator[ManifestObject | Refusal]:
        items = value.get("items", [])
        if value.fault is not None:
            yield self._refuse(value.fault.line or line, f"the list cannot be used: {value.fault.reason}")
        elif not isinstance(items, list):
            yield self._refuse(line, "items: expected array")
        else:
            for index, item in enumerate(items):
                item_line = item.line if isinstance(item, Mapping) else 0
                for found in self.read(Root(item_line or line, item), listed):
                    yield _numbered(found, index)

    def _read_object(self, line: int, value: Mapping, kind: Kind) -> ManifestObject | Refusal:
        if kind not in _TYPES:
            return self._refuse(line, f"{kind.name} ({kind.api_version}) is not a kind that is read", hint=_READ)
        ref = _identity(kind, value)
        if ref is None:
            return self._refuse(line, f"{kind.name}: metadata.name or metadata.namespace is missing or no valid name")
        fault = first_fault(value)
        if fault is not None:
            return self._refuse(fault.line or line, f"{ref}: {fault.reason}", ref)
        problem = _size_problem(value)
        if problem:
            return self._refuse(line, f"{ref}: {problem}", ref)
        try:
            return ManifestObject(ref, line, msgspec.convert(_with_namespace(value, ref), _TYPES[kind]))
        except msgspec.ValidationError as error:
            return self._refuse(line, f"{ref}: {_type_problem(error)}", ref)

    def _refuse(self, line: int, reason: str, ref: ObjectRef | None = None, hint: str = _CORRECT) -> Refusal:
        return Refusal(Note(f"{self._path}:{line}", one_line(reason), hint), ref)


def _numbered(found: ManifestObject | Refusal, index: int) -> ManifestObject | Refusal:
    """A refusal of an item without a name says which one it is: many may stand on one line, for the same reason."""
    if isinstance(found, ManifestObject) or found.ref is not None:
        return found
    note = found.note
    return Refusal(Note(note.subject, one_line(f"items[{index}]: {note.reason}"), note.hint))


def _identity(kind: Kind, value: Mapping) -> ObjectRef | None:
    """The object's identity; a namespace that is left out is "default", as for kubectl."""
    metadata = value.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    name = metadata.get("name")
    namespace = "" if kind.name == "Node" else metadata.get("namespace", "") or DEFAULT_NAMESPACE
    if not _is_name(name) or (namespace != "" and not _is_name(namespace)):
        return None
    return ObjectRef(kind.name, str(namespace), str(name))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _with_namespace(value: Mapping, ref: ObjectRef) -> dict[str, object]:
    metadata = value["metadata"]
    assert isinstance(metadata, Mapping)  # noqa: S101 - `_identity` has seen it
    return {**value, "metadata": {**metadata, "namespace": ref.namespace}}


def _size_problem(value: Mapping) -> str:
    try:
        size = len(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return "holds text that is not Unicode (half a surrogate pair)"
    except RecursionError:
        return "nested too deeply"
    return f"{size} bytes are more than the {MAX_OBJECT_BYTES} that a cluster stores" if size > MAX_OBJECT_BYTES else ""


def _type_problem(error: msgspec.ValidationError) -> str:
    """`spec.ports[0].port: expected int, got str`."""
    text = str(error)
    match = _WRONG_TYPE.fullmatch(text)
    return (f"{match['path']}: expected {match['problem']}" if match else text).replace("`", "")
