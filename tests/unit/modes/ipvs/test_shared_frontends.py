"""One address, protocol and port that one Service means twice: by two of its ports, or as two kinds of address."""

from __future__ import annotations

import pytest

from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import read_service
from ipvsproxy.cluster.slices import compact_slice
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family
from ipvsproxy.model.kernel_objects import Kind, SetEntry
from ipvsproxy.modes.ipvs.service import ServiceOptions, plan_service
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Svc, cluster

NODE_IP = "192.0.2.11"
LB = "203.0.113.10"


def planned(service: Svc):
    found = list(cluster(service).values())
    (view,) = (read_service(o, frozenset(Family))[0] for o in found if isinstance(o, api.Service))
    slices = [compact_slice(o, NODE)[0] for o in found if isinstance(o, api.EndpointSlice)]
    host = HostView(frozenset({addr(NODE_IP)}), (addr(NODE_IP),))
    assert view is not None
    return plan_service(view, [s for s in slices if s], host, ServiceOptions(frozenset(Family)))


def entries(plan, address: str) -> set[str]:
    """Set entries about an address, or about a port alone."""
    return {str(key) for _, key in plan.objects if isinstance(key, SetEntry) and key.address in {b"", addr(address)}}


NODE_PORT_FIRST = Svc("web", ports=((80, "TCP"), (30080, "TCP")), node_ports=(30080, 0), external_ips=(NODE_IP,))
EXTERNAL_FIRST = Svc("web", ports=((30080, "TCP"), (80, "TCP")), node_ports=(0, 30080), external_ips=(NODE_IP,))
BALANCER_FIRST = Svc("web", ports=((30080, "TCP"), (80, "TCP")), node_ports=(0, 30080), ingress=((NODE_IP, "VIP"),))
HTTP, MAIN = '"p80tcp" (80/TCP)', '"p30080tcp" (30080/TCP)'
HTTP_ENTRY = f"KUBE-EXTERNAL-IP {NODE_IP},tcp:80"


@pytest.mark.parametrize(
    "service,target,expected",
    [
        pytest.param(NODE_PORT_FIRST, 8080, {"KUBE-NODE-PORT-TCP 30080", HTTP_ENTRY}, id="as a node port"),
        pytest.param(EXTERNAL_FIRST, 38080, {f"KUBE-EXTERNAL-IP {NODE_IP},tcp:30080", HTTP_ENTRY}, id="on an external"),
        pytest.param(
            BALANCER_FIRST, 38080, {f"KUBE-LOAD-BALANCER {NODE_IP},tcp:{n}" for n in (80, 30080)}, id="on a balancer's"
        ),
    ],
)
def test_of_two_ports_that_mean_one_virtual_server_the_first_has_it_with_its_set_entries(service, target, expected):
    plan = planned(service)
    assert plan.objects[Kind.REAL_SERVER, vs_key(NODE_IP, 30080)] == blob(("10.244.1.5", target))
    assert entries(plan, NODE_IP) == expected
    assert {entry.member for _, entry in plan.frontends[vs_key(NODE_IP, 30080)]} <= {"30080", f"{NODE_IP},tcp:30080"}


@pytest.mark.parametrize(
    "service,first,second",
    [
        pytest.param(NODE_PORT_FIRST, HTTP, MAIN, id="the node port's first"),
        pytest.param(EXTERNAL_FIRST, MAIN, HTTP, id="the external IP's first"),
    ],
)
def test_the_port_that_does_not_get_its_virtual_server_is_named_beside_the_one_that_has_it(service, first, second):
    (note,) = planned(service).notes
    assert note.subject == "Service default/web"
    assert note.reason == f"{NODE_IP}:30080/TCP of port {second} is served for port {first}, which comes first"


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(Svc("web", external_ips=(LB,), ingress=((LB, "VIP"),)), id="an external and a balancer's IP"),
        pytest.param(
            Svc("web", ports=((30080, "TCP"),), node_ports=(30080,), external_ips=(NODE_IP,)), id="a node port equal"
        ),
        pytest.param(
            Svc("web", ports=((80, "TCP"), (30080, "UDP")), node_ports=(30080, 0), external_ips=(NODE_IP,)),
            id="another protocol",
        ),
    ],
)
def test_there_is_nothing_to_say_about(service):
    assert planned(service).notes == ()


def test_one_port_at_one_address_of_two_kinds_has_the_entries_of_both():
    plan = planned(Svc("web", external_ips=(LB,), ingress=((LB, "VIP"),), source_ranges=("198.51.100.0/24",)))
    front = plan.frontends[vs_key(LB, 80)]
    expected = {"KUBE-EXTERNAL-IP", "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-FW", "KUBE-LOAD-BALANCER-SOURCE-CIDR"}
    assert {entry.set_name for _, entry in front} == expected
    assert all(ref in plan.objects for ref in front)


def test_a_cluster_ip_with_policy_local_that_is_an_external_ip_too_never_leads_to_another_node():
    plan = planned(Svc("web", external_ips=("10.96.0.20",), internal_policy="Local"))
    assert plan.objects[Kind.REAL_SERVER, vs_key("10.96.0.20", 80)] == b""
