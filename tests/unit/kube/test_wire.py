from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipvsproxy.cluster.events import ObjectRef
from ipvsproxy.kube.recovery import Cause, Interruption
from ipvsproxy.kube.resources import ENDPOINT_SLICES, MAX_OBJECT_BYTES, SERVICES, Resource, other_nodes, own_node
from ipvsproxy.kube.told import Told
from ipvsproxy.kube.wire import (
    MAX_LINE_BYTES,
    Absent,
    Bookmark,
    Present,
    Reader,
    Unreadable,
    interruption_of,
    lines_of,
)

METADATA = {"name": "web", "namespace": "default", "resourceVersion": "7"}
REF = ObjectRef("Service", "default", "web")


def line(event_type: str, item: object) -> bytes:
    return json.dumps({"type": event_type, "object": item}).encode()


@pytest.mark.parametrize("event_type", ["ADDED", "MODIFIED"])
def test_object_is_decoded(event_type: str):
    said = Reader(SERVICES).read_line(line(event_type, {"metadata": METADATA, "spec": {"clusterIP": "10.96.0.1"}}))
    assert isinstance(said, Present)
    assert (said.ref, said.version) == (REF, "7")
    assert said.object.spec.cluster_ip == "10.96.0.1"  # type: ignore[union-attr]


def test_deletion_is_told_by_name():
    assert Reader(SERVICES).read_line(line("DELETED", {"metadata": METADATA})) == Absent(REF, "7")


def test_deletion_of_what_does_not_decode_is_told_too():
    assert Reader(SERVICES).read_line(line("DELETED", {"metadata": METADATA, "spec": 5})) == Absent(REF, "7")


@pytest.mark.parametrize(
    "resource, rest",
    [
        pytest.param(SERVICES, {"spec": {}, "status": {"loadBalancer": {}}}, id="Service"),
        pytest.param(ENDPOINT_SLICES, {"endpoints": None, "ports": None, "addressType": ""}, id="EndpointSlice"),
        pytest.param(own_node("n1"), {"spec": {}, "status": {"daemonEndpoints": {}}}, id="Node"),
    ],
)
@pytest.mark.parametrize("ends_list", [True, False])
def test_bookmark_of_each_kind(resource: Resource, rest: dict, *, ends_list: bool):
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if ends_list else {}
    item = {"metadata": {"resourceVersion": "12746", "creationTimestamp": None, **annotations}, **rest}
    assert Reader(resource).read_line(line("BOOKMARK", item)) == Bookmark("12746", ends_list)


def test_object_that_does_not_decode_is_told_by_name_and_place():
    said = Reader(SERVICES).read_line(line("ADDED", {"metadata": METADATA, "spec": {"ports": [{"port": "x"}]}}))
    assert said == Unreadable(REF, "7", "Expected `int`, got `str` - at `$.object.spec.ports[0].port`")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"<html>", id="no JSON"),
        pytest.param(b"{}", id="no event"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{"name":5}}}', id="an object without a usable name"),
        pytest.param(b'{"type":"SURPRISE","object":{}}', id="an unknown type"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}', id="no UTF-8"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{"name":"we', id="half a line"),
        pytest.param(b'{"type":"ADDED","object":' + b"[" * 100_000, id="nested without end"),
    ],
)
def test_line_that_is_no_event_interrupts(text: bytes):
    with pytest.raises(Interruption) as raised:
        Reader(SERVICES).read_line(text)
    assert raised.value.cause is Cause.MALFORMED


@pytest.mark.parametrize("resource", [SERVICES, ENDPOINT_SLICES, own_node("n1")])
def test_error_event_interrupts_with_its_status(resource: Resource):
    status = {"kind": "Status", "status": "Failure", "reason": "InternalError", "message": "no", "code": 500}
    with pytest.raises(Interruption, match=r"refused \(500\): no") as raised:
        Reader(resource).read_line(line("ERROR", status))
    assert raised.value.status == 500


@pytest.mark.parametrize(
    "status, told, cause",
    [
        pytest.param(410, {}, Cause.EXPIRED, id="410"),
        pytest.param(0, {"code": 410}, Cause.EXPIRED, id="410 in the object"),
        pytest.param(0, {"reason": "Expired"}, Cause.EXPIRED, id="by its reason"),
        pytest.param(
            504,
            {"details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}},
            Cause.EXPIRED,
            id="ahead of the server",
        ),
        pytest.param(504, {"reason": "Timeout"}, Cause.REFUSED, id="another 504"),
        pytest.param(403, {"reason": "Forbidden"}, Cause.REFUSED, id="403"),
    ],
)
def test_cause_of_a_refusal(status: int, told: dict, cause: Cause):
    assert interruption_of(status, json.dumps(told).encode()).cause is cause


def test_refusal_without_a_status_object_keeps_its_number():
    said = interruption_of(502, b"<html>bad gateway</html>", 3.0)
    assert (str(said), said.retry_after_s) == ("refused (502)", 3.0)


def test_wait_in_the_status_object_holds_against_the_header():
    assert interruption_of(429, b'{"details":{"retryAfterSeconds":5}}', 3.0).retry_after_s == 5.0


@pytest.mark.parametrize("seconds", [pytest.param("9" * 400, id="a number without end"), "null", '"x"', "1.5"])
def test_wait_in_the_status_object_that_is_no_wait_does_not_count(seconds: str):
    said = interruption_of(429, b'{"details":{"retryAfterSeconds":%s}}' % seconds.encode(), 3.0)
    assert (said.status, said.retry_after_s) == (429, 3.0)


def test_message_of_the_server_is_one_short_line():
    said = interruption_of(500, json.dumps({"message": "a\nb" + "x" * 5000}).encode())
    assert said.reason.isprintable()
    assert len(said.reason) < 400


def test_page_tells_version_token_and_items():
    body = {
        "kind": "ServiceList",
        "metadata": {"resourceVersion": "9", "continue": "t"},
        "items": [{"metadata": METADATA}, {"metadata": METADATA, "spec": 1}],
    }
    page = Reader(SERVICES).read_page(json.dumps(body).encode())
    assert (page.version, page.continue_token) == ("9", "t")
    assert [type(item) for item in page.items] == [Present, Unreadable]


PAGE = {"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": []}


@pytest.mark.parametrize("resource", [own_node("n1"), other_nodes("n1")], ids=["our Node", "other Nodes"])
def test_nodes_come_in_a_list_of_nodes_whoever_wants_them(resource: Resource):
    assert Reader(resource).read_page(json.dumps(PAGE).encode()) == ("9", "", ())


@pytest.mark.parametrize(
    "text, reason",
    [
        pytest.param(b'{"items":', "truncated", id="half a page"),
        pytest.param(b"{}", "missing required field", id="an empty object"),
        pytest.param(PAGE | {"kind": "PodList"}, 'a "PodList" came instead of a "NodeList"', id="another list"),
        pytest.param(PAGE | {"metadata": {}}, "a list without a resourceVersion", id="no version"),
    ],
)
def test_page_that_is_no_list_of_its_kind_interrupts(text: bytes | dict, reason: str):
    with pytest.raises(Interruption, match=reason) as raised:
        Reader(own_node("n1")).read_page(text if isinstance(text, bytes) else json.dumps(text).encode())
    assert raised.value.cause is Cause.MALFORMED


@pytest.mark.parametrize(
    "chunks, lines",
    [
        pytest.param([b"a\nb\n"], [[b"a", b"b"]], id="whole lines"),
        pytest.param([b"a", b"b\nc", b"\n"], [[], [b"ab"], [b"c"]], id="lines over several chunks"),
        pytest.param([b"a\n", b"half"], [[b"a"], []], id="what follows the last newline is dropped"),
        pytest.param([b"a\n\n \nb\n"], [[b"a", b"b"]], id="blank lines are dropped"),
        pytest.param([b""], [[]], id="an empty chunk"),
    ],
)
def test_lines_of_chunks(chunks: list[bytes], lines: list[list[bytes]]):
    assert list(lines_of(chunks)) == lines


@pytest.mark.parametrize("size, fits", [(MAX_LINE_BYTES, True), (MAX_LINE_BYTES + 1, False)])
@pytest.mark.parametrize("pieces", [pytest.param(1, id="in one chunk"), pytest.param(16, id="in many chunks")])
def test_line_longer_than_any_object_is_not_collected(size: int, pieces: int, *, fits: bool):
    whole = b"x" * size + b"\n"
    step = len(whole) // pieces
    chunks = (whole[at : at + step] for at in range(0, len(whole), step))
    if fits:
        assert [len(line) for lines in lines_of(chunks) for line in lines] == [size]
    else:
        with pytest.raises(Interruption, match=r"not understood: a line of more than \d+ bytes"):
            list(lines_of(chunks))


def test_line_without_an_end_is_given_up_while_it_comes():
    taken: list[bytes] = []
    endless = (taken.append(b"") or b"x" * MAX_OBJECT_BYTES for _ in range(1000))
    with pytest.raises(Interruption):
        list(lines_of(endless))
    assert len(taken) == MAX_LINE_BYTES // MAX_OBJECT_BYTES + 1


def test_namespaces_are_held_once():
    reader = Reader(SERVICES)
    first, second = (reader.read_line(line("ADDED", {"metadata": METADATA})) for _ in range(2))
    assert first.ref.namespace is second.ref.namespace  # type: ignore[union-attr]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("9" * 5000)
KEYS = st.sampled_from(
    ["metadata", "name", "namespace", "resourceVersion", "annotations", "items", "kind", "code", "details", "causes"]
) | st.just("retryAfterSeconds")
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@given(st.sampled_from(["ADDED", "DELETED", "BOOKMARK", "ERROR", ""]), ANYTHING)
def test_whatever_a_server_says_is_understood_or_an_interruption(event_type: str, said: object):
    told = Told("Service")
    told.begin_list()
    with contextlib.suppress(Interruption):
        arrival = Reader(SERVICES).read_line(line(event_type, said))
        told.bookmark(arrival) if isinstance(arrival, Bookmark) else told.take(arrival)
    with contextlib.suppress(Interruption):
        told.end_list(Reader(SERVICES).read_page(json.dumps(said).encode()).version)
