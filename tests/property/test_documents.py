"""Manifest files: any bytes are answered, and a bad object costs only itself."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipvsproxy.kube.documents import FileContent, parse_documents
from ipvsproxy.kube.json_reader import read_json
from ipvsproxy.kube.yaml_reader import read_yaml
from ipvsproxy.model.notes import Note

GOOD_YAML = b"""\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: &m {name: web, labels: {"a": 'b'}}
  spec:
    clusterIP: 10.96.0.10
    ports: [{port: 80, name: http}, {port: 0o53}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: *m
  addressType: IPv4
  endpoints:
  - addresses: ["10.0.0.1"]
    conditions: {ready: true}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
"""
GOOD_JSON = b"""\
{"apiVersion": "v1", "items": [
  {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}},
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n\\u0031"}}],
 "kind": "List"}
"""
LINE_BREAKS = (b"\n", b"\r", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9")  # YAML 1.1 §4.2
PATHS = st.sampled_from(("f.yaml", "f.json"))
SALT = st.sampled_from(
    (b"\0", b"\t", b"\xff", b"{", b"[", b"]", b"}", b"*m", b"&m", b"!x ", b"<<: ", b"- ", b": ", b'"', b"\r")
)


def check(data: bytes, path: str):
    """The answer for `data`, of the promised form."""
    answer = parse_documents(data, path)
    notes = [answer] if isinstance(answer, Note) else [refusal.note for refusal in answer.refusals]
    for note in notes:
        assert note.subject.startswith(f"{path}:")
        assert 1 <= int(note.subject.removeprefix(f"{path}:")) <= sum(map(data.count, LINE_BREAKS)) + 1
        assert str(note).isprintable()
    return answer


@given(st.binary(max_size=200), PATHS)
@example(b"\xef\xbb\xbf\xef\xbb\xbf", "f.yaml")
@example(b"a: \xc2\x85b: [", "f.yaml")
@example(b"---\n--- \n...\n...\n", "f.yaml")
@settings(max_examples=200)
def test_any_bytes_are_answered(data, path):
    check(data, path)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%?, \n\t01~<=/\\.", max_size=60), PATHS)
@settings(max_examples=300)
def test_any_text_of_the_languages_own_signs_is_answered(text, path):
    check(text.encode(), path)


@given(st.sampled_from(((GOOD_YAML, "f.yaml"), (GOOD_JSON, "f.json"))), st.data())
@settings(max_examples=200)
def test_a_damaged_file_is_answered(good, data):
    content, path = good
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        skip = data.draw(st.integers(0, 8))
        content = content[:at] + data.draw(SALT | st.binary(max_size=3)) + content[at + skip :]
    check(content, path)


BAD = st.sampled_from(
    (
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"kind": "Service"},
        {"apiVersion": "v1", "kind": "Service", "metadata": {}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad"}, "spec": {"ports": "80"}},
        {"apiVersion": "v1", "kind": "List", "items": "x"},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "N 1"}},
        "text",
        [1],
        7,
    )
)
GOOD = st.integers(0, 9).map(lambda n: {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{n}"}})


def as_list(objects):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def as_documents(objects):
    return "\n---\n".join(json.dumps(item) for item in objects)


@given(st.lists(st.tuples(st.booleans(), GOOD, BAD), max_size=6), st.sampled_from((as_list, as_documents)))
@settings(max_examples=60)
def test_good_objects_beside_bad_ones_are_read_and_each_bad_one_is_one_note(choices, write):
    mixed = [good if is_good else bad for is_good, good, bad in choices]
    alone = [good for is_good, good, _ in choices if is_good]
    expected = check(write(alone).encode(), "f.yaml")
    answer = check(write(mixed).encode(), "f.yaml")
    assert isinstance(answer, FileContent)
    assert [(item.ref, item.object) for item in answer.objects] == [
        (item.ref, item.object) for item in expected.objects
    ]
    assert len(answer.refusals) == len(mixed) - len(alone)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=100)
def test_json_means_the_same_read_as_json_and_as_yaml(value):
    text = json.dumps(value)
    assert [root.value for root in read_yaml(text.encode())] == [root.value for root in read_json(text)]
