"""What a load balancer is told of a Service: which endpoints count."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.health_check import read_health_check
from ipvsproxy.cluster.services import ServicePort, ServiceView
from ipvsproxy.cluster.slices import compact_slice
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.names import ServiceName
from tests.builders import addr

NODE = "n1"
BOTH = frozenset(Family)
HTTP, DNS = ServicePort("http", Protocol.TCP, 80), ServicePort("dns", Protocol.UDP, 53)
READY = api.EndpointConditions(ready=True, serving=True, terminating=False)
NOT_READY = api.EndpointConditions(ready=False, serving=False, terminating=False)
STOPPING = api.EndpointConditions(ready=False, serving=True, terminating=True)
KEPT_READY = api.EndpointConditions(ready=True, serving=True, terminating=True)  # publishNotReadyAddresses


def piece(*endpoints, ports=(("http", "TCP", 8080),), family="IPv4"):
    """A compact slice of (address, conditions[, node])."""
    whole = api.EndpointSlice(
        metadata=api.Metadata(name="web-1", namespace="default", labels={"kubernetes.io/service-name": "web"}),
        address_type=family,
        endpoints=tuple(
            api.Endpoint(addresses=(address,), conditions=conditions, node_name=(*node, NODE)[0])
            for address, conditions, *node in endpoints
        ),
        ports=tuple(api.EndpointPort(*port) for port in ports),
    )
    compact, notes = compact_slice(whole, NODE)
    assert (compact is None, notes) == (False, ())
    return compact


def service(*ips: str, port: int = 32100, ports=(HTTP, DNS)) -> ServiceView:
    return ServiceView(
        ServiceName("default", "web"), "", tuple(ports), tuple(map(addr, ips)), health_check_node_port=port
    )


def counted(*pieces, ips=("10.96.0.20",), families=BOTH):
    check = read_health_check(service(*ips), pieces, families)
    assert check is not None
    return dict(check.local_endpoints)


@pytest.mark.parametrize(
    "pieces,count",
    [
        pytest.param([], 0, id="no slice"),
        pytest.param([piece(("10.244.1.5", READY))], 1, id="ready"),
        pytest.param([piece(("10.244.1.5", None))], 1, id="nothing said"),
        pytest.param([piece(("10.244.1.5", NOT_READY))], 0, id="not ready"),
        pytest.param([piece(("10.244.1.5", STOPPING))], 0, id="terminating, whether it serves or not (K17)"),
        pytest.param([piece(("10.244.1.5", KEPT_READY))], 1, id="terminating and still said to be ready"),
        pytest.param([piece(("10.244.2.5", READY, "n2"))], 0, id="on another node"),
        pytest.param([piece(("10.244.1.5", READY, None))], 0, id="on no node"),
        pytest.param(
            [piece(("10.244.1.5", READY), ("10.244.1.6", READY), ("10.244.2.5", READY, "n2"))],
            2,
            id="two of three here",
        ),
        pytest.param(
            [piece(("10.244.1.5", READY), ports=(("http", "TCP", 8080), ("dns", "UDP", 53)))], 1, id="behind two ports"
        ),
        pytest.param(
            [piece(("10.244.1.5", READY)), piece(("10.244.1.5", READY), ports=(("dns", "UDP", 53),))],
            1,
            id="in two slices, once for each port",
        ),
        pytest.param(
            [piece(("10.244.1.5", NOT_READY)), piece(("10.244.1.5", READY), ports=(("dns", "UDP", 53),))],
            1,
            id="ready behind one of its ports",
        ),
        pytest.param(
            [piece(("10.244.1.5", STOPPING)), piece(("10.244.1.5", READY))], 1, id="moving from one slice to another"
        ),
        pytest.param([piece(("10.244.1.5", READY)), piece(("10.244.1.5", STOPPING))], 1, id="the other way round"),
        pytest.param(
            [piece(("10.244.1.5", READY), ports=(("other", "TCP", 1),))], 0, id="behind no port of the Service"
        ),
        pytest.param([piece(("10.244.1.5", READY), ports=(("http", "UDP", 1),))], 0, id="in another protocol"),
    ],
)
def test_an_endpoint_counts_once_when_it_is_ready_and_here(pieces, count):
    assert counted(*pieces) == {Family.IPV4: count}


def test_each_family_counts_by_itself():
    four = piece(("10.244.1.5", READY), ("10.244.1.6", READY))
    six = piece(("2001:db8:244:1::5", READY), ("2001:db8:244:1::6", NOT_READY), family="IPv6")
    found = counted(four, six, ips=("10.96.0.20", "2001:db8:96::20"))
    assert found == {Family.IPV4: 2, Family.IPV6: 1}


@pytest.mark.parametrize(
    "ips,families,asked",
    [
        pytest.param(("10.96.0.20",), BOTH, {Family.IPV4}, id="a Service of one family"),
        pytest.param(("10.96.0.20", "2001:db8:96::20"), BOTH, BOTH, id="of both"),
        pytest.param(("10.96.0.20", "2001:db8:96::20"), {Family.IPV4}, {Family.IPV4}, id="a node of one family (K55)"),
    ],
)
def test_only_families_that_service_and_node_have_are_answered_in(ips, families, asked):
    assert counted(ips=ips, families=families).keys() == asked


def test_a_service_without_a_health_check_node_port_has_no_health_check():
    assert read_health_check(service("10.96.0.20", port=0), [piece(("10.244.1.5", READY))], BOTH) is None


def test_a_health_check_knows_its_service_by_uid_for_events():
    check = read_health_check(msgspec.structs.replace(service("10.96.0.20"), uid="u1"), [], BOTH)
    assert check is not None
    assert check.uid == "u1"
