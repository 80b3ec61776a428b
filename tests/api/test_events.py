"""Events, as the real API server takes and shows them: told with the rights that the chart gives."""

from __future__ import annotations

import json
from pathlib import Path

from tests.api.node import NODE, Objects, events_about, node_with
from tests.kube.following import eventually
from tests.lab.apiserver import ControlPlane


def test_a_port_that_leads_nowhere_is_one_event_however_many_nodes_and_starts_tell_it(
    plane: ControlPlane, objects: Objects, proxy: Path
):
    name, address = objects.service(ports=[{"name": "web", "port": 80, "protocol": "TCP"}])
    objects.slice(name, "10.244.1.5")  # its port is called http
    for _ in range(2):
        with node_with(proxy) as node:
            node.wait_for(address, f"-A -t {address}:80 -s rr")
            eventually(lambda: bool(events_about(plane, name)))
    (event,) = events_about(plane, name)
    assert (event["reason"], event["type"]) == ("NoEndpointPort", "Warning")
    assert event["note"].startswith('port "web" (80/TCP) leads nowhere')


def test_the_younger_of_two_services_with_one_external_ip_shows_why_it_is_not_served(
    plane: ControlPlane, objects: Objects, proxy: Path
):
    older, _ = objects.service(externalIPs=["203.0.113.77"])
    younger, address = objects.service(externalIPs=["203.0.113.77"])

    with node_with(proxy) as node:
        node.wait_for(address, f"-A -t {address}:80 -s rr")
        eventually(lambda: bool(events_about(plane, younger)))
    (event,) = events_about(plane, younger)
    service = json.loads(plane.kubectl("get", "service", younger, "-o", "json"))
    assert event["regarding"]["uid"] == service["metadata"]["uid"]
    assert (event["reason"], event["type"]) == ("FrontendTaken", "Warning")
    assert f"203.0.113.77:80/TCP is served for Service default/{older}" in event["note"]
    assert event["reportingInstance"] == f"ipvsproxy-{NODE}"
