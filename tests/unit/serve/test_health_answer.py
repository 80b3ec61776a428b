"""What a load balancer reads: the bytes that kube-proxy sends."""

from __future__ import annotations

import json

import pytest

from ipvsproxy.model.names import ServiceName
from ipvsproxy.serve.health_answer import health_answer

WEB = ServiceName("ns", "svc")
BODY = b"""\
{
\t"service": {
\t\t"namespace": "ns",
\t\t"name": "svc"
\t},
\t"localEndpoints": 2,
\t"serviceProxyHealthy": true
}"""


def test_the_body_is_kube_proxys_to_the_byte():
    assert health_answer(WEB, 2, proxy_healthy=True).body == BODY


def test_the_headers_are_kube_proxys_and_tell_the_count():
    assert health_answer(WEB, 2, proxy_healthy=True).headers == {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": "2",
    }


@pytest.mark.parametrize(
    "count,healthy,status",
    [
        pytest.param(1, True, 200, id="an endpoint and a proxy that works"),
        pytest.param(0, True, 503, id="no endpoint"),
        pytest.param(1, False, 503, id="a proxy that does not work"),
        pytest.param(0, False, 503, id="neither"),
    ],
)
def test_k29_the_status_says_whether_to_send_traffic_here(count, healthy, status):
    answer = health_answer(WEB, count, proxy_healthy=healthy)
    told = json.loads(answer.body)
    assert (answer.status, told["localEndpoints"], told["serviceProxyHealthy"]) == (status, count, healthy)


def test_a_name_that_only_a_manifest_could_have_is_still_json():
    told = json.loads(health_answer(ServiceName('a"b\\', "{x}\n\u00e9"), 1, proxy_healthy=True).body)
    assert told["service"] == {"namespace": 'a"b\\', "name": "{x}\n\u00e9"}
