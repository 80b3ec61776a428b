"""Files as objects: what is read, what is refused, and that a bad object costs only itself."""

from __future__ import annotations

import json

import pytest

from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.kube.documents import FileContent, _size_problem, parse_documents
from ipvsproxy.kube.mapping import Mapping
from ipvsproxy.kube.resources import MAX_OBJECT_BYTES
from ipvsproxy.model.api_objects import Service
from ipvsproxy.model.notes import Note

WEB = ObjectRef("Service", "default", "web")
GOOD = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


def parse(text: str | bytes, path: str = "f.yaml") -> FileContent:
    content = parse_documents(text.encode() if isinstance(text, str) else text, path)
    assert isinstance(content, FileContent)
    return content


def broken(text: str | bytes, path: str = "f.yaml") -> Note:
    note = parse_documents(text.encode() if isinstance(text, str) else text, path)
    assert isinstance(note, Note)
    return note


def refs(content: FileContent) -> list[str]:
    return [str(item.ref) for item in content.objects]


def notes(content: FileContent) -> list[tuple[str, str]]:
    return [(refusal.note.subject, refusal.note.reason) for refusal in content.refusals]


def test_an_object_is_read_with_its_line():
    content = parse("# the web\n---\n" + GOOD)
    assert notes(content) == []
    (item,) = content.objects
    assert (item.ref, item.line) == (WEB, 3)
    assert isinstance(item.object, Service)
    assert item.object.spec is not None
    assert item.object.spec.cluster_ip == "10.96.0.10"


def test_all_four_kinds_are_read():
    text = """\
{apiVersion: v1, kind: Service, metadata: {name: a}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: a}, subsets: [{addresses: [{ip: 10.0.0.1}]}]}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, namespace: ignored}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, namespace: x}, addressType: IPv4}
"""
    content = parse(text)
    assert notes(content) == []
    assert refs(content) == ["Service default/a", "Endpoints default/a", "Node n1", "EndpointSlice x/a-1"]


def test_an_object_without_namespace_is_in_default_inside_too():
    (item,) = parse("{apiVersion: v1, kind: Service, metadata: {name: web}}").objects
    assert item.ref == WEB
    assert item.object.metadata.namespace == "default"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: web}}", id="List"
        ),
        pytest.param("apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: web}", id="typed list"),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems:\n"
            "- {apiVersion: v1, kind: ServiceList, items: [{metadata: {name: web}}]}",
            id="list in a list",
        ),
    ],
)
def test_lists_are_opened(text):
    content = parse(text)
    assert notes(content) == []
    assert [(item.ref, item.line) for item in content.objects] == [(WEB, 4)]


def test_a_slice_list_gives_its_own_version_to_its_items():
    content = parse("{apiVersion: discovery.k8s.io/v1, kind: EndpointSliceList, items: [{metadata: {name: a}}]}")
    assert refs(content) == ["EndpointSlice default/a"]


def test_items_that_have_no_name_are_told_apart_though_they_stand_on_one_line():
    content = parse('{"apiVersion": "v1", "kind": "List", "items": [7, 7, {"kind": "Service"}]}')
    assert [refusal.note.reason for refusal in content.refusals] == [
        "items[0]: not a mapping, so no Kubernetes object",
        "items[1]: not a mapping, so no Kubernetes object",
        "items[2]: apiVersion or kind is missing or no text",
    ]


def test_a_list_without_items_is_empty():
    assert parse("{apiVersion: v1, kind: ServiceList, items: null}") == FileContent((), ())


def test_json_is_read_with_lines():
    value = {
        "apiVersion": "v1",
        "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}],
        "kind": "List",
    }
    content = parse(json.dumps(value, indent=4), "f.json")
    assert [(item.ref, item.line) for item in content.objects] == [(WEB, 4)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"# nothing\n", id="comment"),
        pytest.param(b"---\n---\n~\n---\n", id="empty documents"),
        pytest.param(b"\xef\xbb\xbf", id="byte-order mark alone"),
    ],
)
def test_nothing_is_no_object_and_no_note(data):
    assert parse(data) == FileContent((), ())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbf" + GOOD.encode(), id="byte-order mark"),
        pytest.param(GOOD.replace("\n", "\r\n").encode(), id="CRLF"),
        pytest.param(GOOD.encode() + b"...\n", id="document end"),
    ],
)
def test_ways_of_writing_do_not_matter(data):
    content = parse(data)
    assert [(item.ref, item.line) for item in content.objects] == [(WEB, 1)]


BAD = [
    pytest.param("just text", 1, "not a mapping, so no Kubernetes object", id="text"),
    pytest.param("[1]", 1, "not a mapping, so no Kubernetes object", id="a sequence"),
    pytest.param("kind: Service", 1, "apiVersion or kind is missing or no text", id="no apiVersion"),
    pytest.param("apiVersion: v1", 1, "apiVersion or kind is missing or no text", id="no kind"),
    pytest.param(
        "{apiVersion: 1, kind: Service}", 1, "apiVersion or kind is missing or no text", id="version is a number"
    ),
    pytest.param(
        "{apiVersion: apps/v1, kind: Deployment}", 1, "Deployment (apps/v1) is not a kind that is read", id="unread"
    ),
    pytest.param(
        "{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: web}}",
        1,
        "Service (serving.knative.dev/v1) is not a kind that is read",
        id="another group's Service",
    ),
    pytest.param(
        "{apiVersion: v1, kind: PodList, items: []}", 1, "PodList (v1) is not a kind that is read", id="unread list"
    ),
    pytest.param("{apiVersion: v1, kind: List, items: 3}", 1, "items: expected array", id="items that are no list"),
    pytest.param(
        "apiVersion: v1\nkind: List\nitems: []\nitems: []",
        4,
        'the list cannot be used: the key "items" stands twice in one mapping',
        id="items twice",
    ),
    pytest.param(
        "{apiVersion: v1, kind: Service}",
        1,
        "Service: metadata.name or metadata.namespace is missing or no valid name",
        id="no metadata",
    ),
    pytest.param(
        "{apiVersion: v1, kind: Service, metadata: {generateName: x-}}",
        1,
        "Service: metadata.name or metadata.namespace is missing or no valid name",
        id="no name",
    ),
    pytest.param(
        '{apiVersion: v1, kind: Service, metadata: {name: "we\\nb"}}',
        1,
        "Service: metadata.name or metadata.namespace is missing or no valid name",
        id="a name that breaks lines",
    ),
    pytest.param(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: Default}}",
        1,
        "Service: metadata.name or metadata.namespace is missing or no valid name",
        id="a namespace in upper case",
    ),
    pytest.param(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  ports:\n  - port: http",
        1,
        "Service default/web: spec.ports[0].port: expected int, got str",
        id="wrong type",
    ),
    pytest.param(
        "{apiVersion: v1, kind: Service, metadata: {name: web, labels: {a: 1}}}",
        1,
        "Service default/web: metadata.labels[...]: expected str, got int",
        id="a number as label",
    ),
    pytest.param(
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: [1]}",
        1,
        "Service default/web: spec: expected object | null, got array",
        id="a sequence as spec",
    ),
    pytest.param(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.0.0.1\n  clusterIP: 10.0.0.2",
        6,
        'Service default/web: the key "clusterIP" stands twice in one mapping',
        id="a key twice",
    ),
]


@pytest.mark.parametrize("text, line, reason", BAD)
def test_a_bad_object_is_one_note_with_its_line(text, line, reason):
    content = parse(text)
    assert content.objects == ()
    assert notes(content) == [(f"f.yaml:{line}", reason)]
    assert content.refusals[0].note.hint


@pytest.mark.parametrize("text, line, reason", BAD)
def test_a_bad_object_costs_only_itself(text, line, reason):
    good = "{apiVersion: v1, kind: Service, metadata: {name: good}}"
    content = parse(f"{good}\n---\n{text}\n---\n{good.replace('good', 'better')}")
    assert refs(content) == ["Service default/good", "Service default/better"]
    assert notes(content) == [(f"f.yaml:{line + 2}", reason)]


def test_a_bad_item_of_a_list_costs_only_itself():
    text = """\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- {apiVersion: v1, kind: Service, metadata: {name: b}, metadata: {name: c}}
- 7
- {apiVersion: v1, kind: Service, metadata: {name: d}}
"""
    content = parse(text)
    assert refs(content) == ["Service default/a", "Service default/d"]
    assert [subject for subject, _ in notes(content)] == ["f.yaml:5", "f.yaml:1"]


@pytest.mark.parametrize("path", ["f.yaml", "f.json"])
def test_an_object_larger_than_a_cluster_stores_is_refused(path):
    value = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": {"a": "x" * 2_000_000}}}
    content = parse(json.dumps(value), path)
    assert content.objects == ()
    assert f"more than the {MAX_OBJECT_BYTES} that a cluster stores" in notes(content)[0][1]
    assert len(str(content.refusals[0].note)) < 600


def test_a_large_object_within_the_limit_is_read():
    value = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": {"a": "x" * 1_500_000}}}
    assert refs(parse(json.dumps(value))) == ["Service default/web"]


def test_half_a_surrogate_pair_is_refused():
    text = '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"a": "\\ud800"}}}'
    assert notes(parse(text, "f.json")) == [
        ("f.json:1", "Service default/web: holds text that is not Unicode (half a surrogate pair)")
    ]


def test_deep_nesting_in_json_is_answered_at_every_depth():
    for depth in (100, 800, 900, 950, 990, 2000):
        deep = "[" * depth + "]" * depth
        text = f'{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "web"}}, "x": {deep}}}'
        assert isinstance(parse_documents(text.encode(), "f.json"), FileContent | Note)


def test_an_object_nested_beyond_what_can_be_measured_is_refused():
    inner = Mapping()
    for _ in range(100_000):
        outer = Mapping()
        outer.put("a", inner)
        inner = outer
    assert _size_problem(inner) == "nested too deeply"


@pytest.mark.parametrize(
    "text, refused",
    [
        pytest.param(GOOD.replace("port: 80", "port: x"), WEB, id="a wrong type deep inside"),
        pytest.param(GOOD.replace("clusterIP: 10", "clusterIP: 1, clusterIP: 10"), WEB, id="a key twice"),
        pytest.param(GOOD.replace("name: web", "nom: web"), None, id="no name"),
        pytest.param(GOOD.replace("kind: Service", "kind: Serviette"), None, id="another kind"),
    ],
)
def test_a_refusal_names_its_object_where_that_can_be_read(text, refused):
    (refusal,) = parse(text).refusals
    assert refusal.ref == refused


@pytest.mark.parametrize(
    "data, line, reason",
    [
        pytest.param(GOOD.encode() + b"  bad\n", 5, "", id="wrong indentation"),
        pytest.param(GOOD.encode() + b"\tx: 1\n", 5, "", id="tab"),
        pytest.param(GOOD.encode() + b"x: \0\n", 5, "control characters", id="NUL"),
        pytest.param(GOOD.encode() + b"x: \xff\n", 5, "not UTF-8: invalid start byte", id="not UTF-8"),
        pytest.param(GOOD.encode("utf-16"), 1, "the text is UTF-16, not UTF-8", id="UTF-16"),
        pytest.param(GOOD.encode() + b"---\na: 1\n---\n[\n", 8, "", id="the third document"),
    ],
)
def test_a_text_that_does_not_parse_is_one_note_with_its_line(data, line, reason):
    note = broken(data)
    assert note.subject == f"f.yaml:{line}"
    assert reason in note.reason
    assert note.hint


def test_json_that_does_not_parse_is_one_note_with_its_line():
    assert broken('{"a": 1,\n}', "f.json").subject == "f.json:2"
