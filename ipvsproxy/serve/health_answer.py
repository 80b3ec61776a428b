"""What a health check node port says of its Service, to the byte what kube-proxy says.

Source: kubernetes v1.37.2 pkg/proxy/healthcheck/service_health.go (hcHandler).
"""

from __future__ import annotations

import json
from http import HTTPStatus

from ipvsproxy.model.names import ServiceName
from ipvsproxy.serve.http_messages import Answer

_BODY = """\
{{
	"service": {{
		"namespace": {namespace},
		"name": {name}
	}},
	"localEndpoints": {count},
	"serviceProxyHealthy": {healthy}
}}"""


def health_answer(service: ServiceName, local_endpoints: int, *, proxy_healthy: bool) -> Answer:
    """200 where this node has ready endpoints of `service` and the proxy does its work, else 503."""
    body = _BODY.format(
        namespace=json.dumps(service.namespace),
        name=json.dumps(service.name),
        count=local_endpoints,
        healthy=json.dumps(proxy_healthy),
    )
    return Answer(
        HTTPStatus.OK if local_endpoints and proxy_healthy else HTTPStatus.SERVICE_UNAVAILABLE,
        body.encode(),
        {
            "Content-Type": "application/json",
            "X-Content-Type-Options": "nosniff",
            "X-Load-Balancing-Endpoint-Weight": str(local_endpoints),
        },
    )
