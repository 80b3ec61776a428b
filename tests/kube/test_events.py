"""Events over the wire."""

from __future__ import annotations

import json

import pytest
import structlog

from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.event_recorder import ApiEventSink
from ipvsproxy.kube.recovery import Interruption
from tests.kube.scripted_server import RESET, body, broken, refusal, serving

EVENT = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "shop"}}


def test_an_event_is_posted_into_its_namespace():
    with serving([body(EVENT, 201)]) as server:
        ApiEventSink(ApiServer(Access(master=server.url))).create("shop", EVENT)
    (request,) = server.requests
    assert request.path == "/apis/events.k8s.io/v1/namespaces/shop/events"
    assert json.loads(request.body) == EVENT
    assert request.headers["Content-Type"] == "application/json"


def test_a_refused_event_says_which_right_is_missing():
    with serving([refusal(403, "Forbidden")]) as server, structlog.testing.capture_logs() as lines:
        ApiEventSink(ApiServer(Access(master=server.url))).create("shop", EVENT)
    assert [line["status"] for line in lines if line["event"] == "event_refused"] == [403]


def test_what_another_node_has_told_already_is_no_trouble():
    with serving([refusal(409, "AlreadyExists")]) as server, structlog.testing.capture_logs() as lines:
        ApiEventSink(ApiServer(Access(master=server.url))).create("shop", EVENT)
    assert lines == []


def test_a_broken_connection_is_told_to_the_recorder():
    with serving([broken(RESET)]) as server, pytest.raises(Interruption):
        ApiEventSink(ApiServer(Access(master=server.url))).create("shop", EVENT)
