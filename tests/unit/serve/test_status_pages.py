"""What the metrics server tells besides metrics, to upstream's bytes."""

from __future__ import annotations

import json

import pytest
import yaml

from ipvsproxy import __version__
from ipvsproxy.serve.http_messages import Request
from ipvsproxy.serve.status_pages import configz, flagz, metrics_page, ping_pages, proxy_mode, statusz

NOON = 1796040000.0  # 2026-11-30 12:00:00 UTC
SNIFF = {"X-Content-Type-Options": "nosniff"}
PLAIN = {"Content-Type": "text/plain; charset=utf-8"}
WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, "
    "has no formatting compatibility guarantees and is for debugging purposes only."
)
FLAGS = {"v": "2", "proxy-mode": "ipvs", "cleanup": "false"}


def asking(target: str = "/", accept: str = "") -> Request:
    return Request("GET", 1, target, f"Accept: {accept}\r\n\r\n".encode() if accept else b"\r\n")


@pytest.mark.parametrize(
    "target,body",
    [
        pytest.param("/healthz", b"ok", id="in short"),
        pytest.param("/healthz?verbose", b"[+]ping ok\nhealthz check passed\n", id="verbose"),
        pytest.param("/healthz?verbose=1&exclude=x", b"[+]ping ok\nhealthz check passed\n", id="verbose with a value"),
    ],
)
def test_healthz_of_the_metrics_server_says_that_it_answers(target, body):
    answer = ping_pages(lambda: None)["/healthz"](asking(target))
    assert (answer.status, answer.body, answer.headers) == (200, body, PLAIN | SNIFF)


def test_ping_alone_has_no_word_on_sniffing():
    answer = ping_pages(lambda: None)["/healthz/ping"](asking())
    assert (answer.status, answer.body, answer.headers) == (200, b"ok", PLAIN)


def test_the_proxy_mode_has_no_line_end():
    answer = proxy_mode("ipvs")(asking())
    assert (answer.status, answer.body, answer.headers) == (200, b"ipvs", PLAIN | SNIFF)


def test_configz_is_the_document_with_its_kind_under_the_name_of_its_group():
    answer = configz({"mode": "ipvs", "ipvs": {"scheduler": "lc"}})(asking())
    assert answer.headers == {"Content-Type": "application/json"} | SNIFF
    assert json.loads(answer.body) == {
        "kubeproxy.config.k8s.io": {
            "kind": "KubeProxyConfiguration",
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "mode": "ipvs",
            "ipvs": {"scheduler": "lc"},
        }
    }


def test_flagz_as_text_begins_with_an_empty_line_and_is_sorted():
    answer = flagz(FLAGS)(asking())
    assert answer.headers == PLAIN
    assert answer.body.decode().splitlines() == [
        "",
        "kube-proxy flagz",
        WARNING,
        "cleanup=false",
        "proxy-mode=ipvs",
        "v=2",
    ]


def test_statusz_as_text_says_what_runs_here_and_since_when():
    page = statusz(NOON - 3725, lambda: NOON, ["/metrics", "/metrics/slis", "/healthz", "/healthz/ping"])
    lines = page(asking()).body.decode().splitlines()
    assert lines[1] == "kube-proxy statusz"
    assert "Started: Mon Nov 30 10:57:55 UTC 2026" in lines
    assert "Up: 1 hr 02 min 05 sec" in lines
    assert f"Binary version: {__version__}" in lines
    assert lines[-1] == "Paths: /healthz /metrics"


STRUCTURED = "v=v1beta1;g=config.k8s.io;as=Flagz"


@pytest.mark.parametrize(
    "accept,content_type",
    [
        pytest.param("", "text/plain; charset=utf-8", id="nothing"),
        pytest.param("*/*", "text/plain; charset=utf-8", id="anything"),
        pytest.param("text/html,text/plain;q=0.9", "text/plain; charset=utf-8", id="a list with text in it"),
        pytest.param(f"application/json;{STRUCTURED}", "application/json", id="JSON"),
        pytest.param(f"application/json; {STRUCTURED.replace(';', '; ')}", "application/json", id="JSON, with blanks"),
        pytest.param(f"application/yaml;{STRUCTURED}", "application/yaml", id="YAML"),
        pytest.param(f"text/plain;q=0.1,application/json;{STRUCTURED}", "application/json", id="JSON rather than text"),
        pytest.param(f"application/json;{STRUCTURED};q=0,*/*", "text/plain; charset=utf-8", id="anything but JSON"),
        pytest.param("text/plain;q=nonsense", "text/plain; charset=utf-8", id="a weight that is none"),
        pytest.param("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz", "application/json", id="the old version"),
    ],
)
def test_flagz_comes_in_the_form_that_is_accepted(accept, content_type):
    answer = flagz(FLAGS)(asking(accept=accept))
    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("application/json", id="JSON of no kind"),
        pytest.param("application/json;v=v1;g=config.k8s.io;as=Flagz", id="a version that there is not"),
        pytest.param("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", id="another kind"),
        pytest.param("image/png", id="a picture"),
        pytest.param("text/plain;q=0", id="no text"),
        pytest.param("text/plain;q=0.000", id="no text, to the digit"),
    ],
)
def test_what_cannot_be_had_is_406(accept):
    assert flagz(FLAGS)(asking(accept=accept)).status == 406


@pytest.mark.parametrize("accept", ["", f"application/json;{STRUCTURED}", f"application/yaml;{STRUCTURED}"])
def test_flagz_tells_a_value_that_is_no_utf_8(accept):
    answer = flagz({"manifests": "/x\udcff"})(asking(accept=accept))
    assert b"/x\\" in answer.body.replace(b"\\\\", b"\\")
    assert b"udcff" in answer.body


def test_flagz_as_json_and_as_yaml_is_the_kind_of_upstream():
    whole = {
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kube-proxy"},
        "flags": FLAGS,
    }
    assert json.loads(flagz(FLAGS)(asking(accept=f"application/json;{STRUCTURED}")).body) == whole
    assert yaml.safe_load(flagz(FLAGS)(asking(accept=f"application/yaml;{STRUCTURED}")).body) == whole


def test_statusz_as_json_is_the_kind_of_upstream():
    accept = STRUCTURED.replace("Flagz", "Statusz")
    answer = statusz(NOON - 60, lambda: NOON, ["/metrics"])(asking(accept=f"application/json;{accept}"))
    found = json.loads(answer.body)
    assert (found["kind"], found["startTime"], found["uptimeSeconds"]) == ("Statusz", "2026-11-30T11:59:00Z", 60)
    assert found["paths"] == ["/metrics"]


def test_delete_resets_only_where_it_may():
    resets = []
    request = Request("DELETE", 1, "/metrics/slis")
    with_reset = metrics_page(lambda: b"all", "text/plain", lambda: resets.append(1))
    assert with_reset(request).body == b"metrics reset\n"
    assert metrics_page(lambda: b"all", "text/plain")(request).body == b"all"
    assert resets == [1]
