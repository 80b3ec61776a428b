"""Services: which are ours, what each field means, what a bad field costs."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.services import ServicePort, ServiceView, read_service
from ipvsproxy.model import api_objects
from ipvsproxy.model.addr import format_addr, parse_addr
from ipvsproxy.model.enums import Family, Protocol
from ipvsproxy.model.names import LABEL_PROXY_NAME, ServiceName

BOTH = frozenset(Family)
HTTP = {"name": "http", "port": 80}
BASE = {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"], "ports": [HTTP]}
DUAL = {
    "clusterIP": "10.96.0.10",
    "clusterIPs": ["10.96.0.10", "fd00::10"],
    "ipFamilies": ["IPv4", "IPv6"],
    "ports": [HTTP],
}


def service(spec=None, status=None, **metadata) -> api_objects.Service:
    value = {"metadata": {"name": "web", "namespace": "default", **metadata}, "spec": spec or BASE, "status": status}
    return msgspec.convert(value, api_objects.Service)


def read(spec=None, families=BOTH, status=None, **metadata) -> tuple[ServiceView | None, list[str]]:
    view, notes = read_service(service(spec, status, **metadata), families)
    assert len(notes) <= 1
    assert all(note.subject == "Service default/web" for note in notes)
    return view, [note.reason for note in notes]


def clean(spec=None, families=BOTH, status=None) -> ServiceView:
    view, reasons = read(spec, families, status)
    assert view is not None
    assert not reasons
    return view


def texts(addresses) -> list[str]:
    return [format_addr(addr) for addr in addresses]


def test_a_plain_service_is_read():
    view, reasons = read(creationTimestamp="2026-11-30T04:20:02Z")
    assert not reasons
    assert view == ServiceView(
        name=ServiceName("default", "web"),
        created="2026-11-30T04:20:02Z",
        ports=(ServicePort("http", Protocol.TCP, 80),),
        cluster_ips=(parse_addr("10.96.0.10"),),
    )


@pytest.mark.parametrize(
    "spec, metadata",
    [
        pytest.param({**BASE, "clusterIP": "None"}, {}, id="headless"),
        pytest.param({**BASE, "clusterIP": ""}, {}, id="without a cluster IP yet"),
        pytest.param({"ports": [HTTP]}, {}, id="without the field"),
        pytest.param({**BASE, "type": "ExternalName"}, {}, id="ExternalName even with a cluster IP"),
        pytest.param(BASE, {"labels": {LABEL_PROXY_NAME: "other"}}, id="given to another proxy"),
        pytest.param(BASE, {"labels": {LABEL_PROXY_NAME: ""}}, id="given to another proxy by an empty label"),
    ],
)
def test_what_is_not_ours_is_left_out_without_a_word(spec, metadata):
    assert read(spec, **metadata) == (None, [])


@pytest.mark.parametrize(
    "spec, families, expected",
    [
        pytest.param(DUAL, BOTH, ["10.96.0.10", "fd00::10"], id="dual stack has one of each"),
        pytest.param(
            {**DUAL, "clusterIPs": ["fd00::10", "10.96.0.10"], "ipFamilies": ["IPv6", "IPv4"]},
            BOTH,
            ["10.96.0.10", "fd00::10"],
            id="dual stack with IPv6 first",
        ),
        pytest.param({**DUAL, "ipFamilies": []}, BOTH, ["10.96.0.10"], id="no families named: only clusterIP counts"),
        pytest.param(
            {**DUAL, "ipFamilies": ["IPv4"]}, BOTH, ["10.96.0.10"], id="an address without a family is not used"
        ),
        pytest.param({**BASE, "ipFamilies": ["IPv4", "IPv6"]}, BOTH, ["10.96.0.10"], id="a family without an address"),
        pytest.param({**BASE, "clusterIPs": None}, BOTH, ["10.96.0.10"], id="hand-written without clusterIPs"),
        pytest.param({**BASE, "clusterIPs": ["010.096.000.010"]}, BOTH, ["10.96.0.10"], id="leading zeros"),
        pytest.param(DUAL, {Family.IPV6}, ["fd00::10"], id="only the served family"),
    ],
)
def test_there_is_one_cluster_ip_of_each_family(spec, families, expected):
    assert texts(clean(spec, families).cluster_ips) == expected


def test_k55_a_service_of_a_family_that_is_not_served_is_skipped_with_one_note():
    spec = {**BASE, "clusterIP": "fd00::10", "clusterIPs": ["fd00::10"], "ipFamilies": ["IPv6"]}
    view, reasons = read(spec, {Family.IPV4})
    assert view is None
    assert reasons == ["its cluster IP is IPv6 only, a family that is not served here"]


def test_k55_a_dual_stack_service_is_served_in_the_family_that_works_without_a_note():
    spec = {**DUAL, "externalIPs": ["fd00::99", "192.0.2.9"]}
    view = clean(spec, {Family.IPV4})
    assert texts(view.cluster_ips + view.external_ips) == ["10.96.0.10", "192.0.2.9"]


@pytest.mark.parametrize(
    "changes, reason",
    [
        pytest.param(
            {"clusterIP": "web", "clusterIPs": ["web"]}, 'spec.clusterIPs[0]: "web" is not an IPv4 address', id="name"
        ),
        pytest.param(
            {"ipFamilies": ["IPv6"]}, 'spec.clusterIPs[0]: "10.96.0.10" is not an IPv6 address', id="wrong family"
        ),
        pytest.param(
            {"clusterIP": "x", "ipFamilies": None}, 'spec.clusterIP: "x" is not an IP address', id="no families"
        ),
        pytest.param(
            {"clusterIPs": ["127.0.0.1"]},
            "spec.clusterIPs[0]: 127.0.0.1 is loopback, link-local, multicast or unspecified, so no Service may own it",
            id="loopback",
        ),
    ],
)
def test_a_service_without_a_usable_cluster_ip_is_lost_and_told(changes, reason):
    assert read({**BASE, **changes}) == (None, [reason])


def test_a_bad_cluster_ip_of_one_family_costs_only_that_family():
    view, reasons = read({**DUAL, "clusterIPs": ["10.96.0.10", "fe80::1"]})
    assert view is not None
    assert texts(view.cluster_ips) == ["10.96.0.10"]
    assert len(reasons) == 1


@pytest.mark.parametrize("missing", ["name", "namespace"])
def test_a_service_without_a_name_is_lost_and_told(missing):
    view, notes = read_service(service(**{missing: ""}), BOTH)
    assert view is None
    assert len(notes) == 1


def test_a_service_without_a_spec_is_lost_and_told():
    bare = msgspec.structs.replace(service(), spec=None)
    view, notes = read_service(bare, BOTH)
    assert view is None
    assert "spec is missing" in notes[0].reason


def test_ports_are_read_with_their_defaults():
    ports = [{"port": 53, "protocol": "UDP", "name": "dns"}, {"port": 53, "name": "dns-tcp", "nodePort": 30053}]
    assert clean({**BASE, "ports": ports}).ports == (
        ServicePort("dns", Protocol.UDP, 53),
        ServicePort("dns-tcp", Protocol.TCP, 53, 30053),
    )


@pytest.mark.parametrize(
    "second, reason",
    [
        pytest.param(
            {"name": "b", "port": 90, "protocol": "ICMP"}, 'spec.ports[1].protocol: "ICMP" is not', id="protocol"
        ),
        pytest.param(
            {"name": "b", "port": 90, "protocol": "tcp"}, 'spec.ports[1].protocol: "tcp" is not', id="lower case"
        ),
        pytest.param({"name": "b", "port": 0}, "spec.ports[1].port: 0 is not in 1..65535", id="port zero"),
        pytest.param({"name": "b", "port": 65536}, "spec.ports[1].port: 65536 is not in 1..65535", id="port too large"),
        pytest.param({"name": "b", "port": -1}, "spec.ports[1].port: -1 is not in 1..65535", id="negative port"),
        pytest.param({"name": "b", "port": 80}, 'spec.ports[1]: "b" (80/TCP) repeats', id="number and protocol again"),
        pytest.param(
            {"name": "http", "port": 90}, 'spec.ports[1]: "http" (90/TCP) repeats', id="name and protocol again"
        ),
    ],
)
def test_a_bad_port_costs_only_itself(second, reason):
    third = {"name": "c", "port": 91}
    view, reasons = read({**BASE, "ports": [HTTP, second, third]})
    assert view is not None
    assert [port.name for port in view.ports] == ["http", "c"]
    assert len(reasons) == 1
    assert reasons[0].startswith(reason)


def test_one_number_serves_two_protocols_and_one_name_too():
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns", "port": 53, "protocol": "TCP"}]
    assert len(clean({**BASE, "ports": ports}).ports) == 2


@pytest.mark.parametrize(
    "number", [pytest.param(65536, id="too large"), pytest.param(-1, id="negative"), pytest.param(-30080, id="a slip")]
)
def test_a_bad_node_port_costs_only_itself(number):
    view, reasons = read({**BASE, "ports": [{**HTTP, "nodePort": number}]})
    assert view is not None
    assert view.ports == (ServicePort("http", Protocol.TCP, 80, 0),)
    assert reasons == [f"spec.ports[0].nodePort: {number} is not in 1..65535"]


@pytest.mark.parametrize("number", [pytest.param(1, id="the least"), pytest.param(65535, id="the greatest")])
def test_a_node_port_may_be_any_port_number(number):
    assert clean({**BASE, "ports": [{**HTTP, "nodePort": number}]}).ports[0].node_port == number


def test_a_node_port_that_repeats_an_earlier_ports_costs_only_itself():
    again = {"name": "b", "port": 81, "nodePort": 30080}
    view, reasons = read({**BASE, "ports": [{**HTTP, "nodePort": 30080}, again]})
    assert view is not None
    assert view.ports == (ServicePort("http", Protocol.TCP, 80, 30080), ServicePort("b", Protocol.TCP, 81, 0))
    assert reasons == ["spec.ports[1].nodePort: 30080/TCP repeats an earlier port's"]


def test_one_node_port_serves_two_protocols_and_no_node_port_repeats_none():
    ports = [{**HTTP, "nodePort": 30080}, {**HTTP, "protocol": "UDP", "nodePort": 30080}]
    more = [{"name": "b", "port": 81}, {"name": "c", "port": 82, "nodePort": 0}]
    assert [port.node_port for port in clean({**BASE, "ports": [*ports, *more]}).ports] == [30080, 30080, 0, 0]


def test_no_ports_at_all_are_told():
    view, reasons = read({**BASE, "ports": []})
    assert view is not None
    assert reasons == ["spec.ports is missing"]


@pytest.mark.parametrize(
    "affinity, config, expected, faults",
    [
        pytest.param(None, None, 0, 0, id="unset"),
        pytest.param("None", {"clientIP": {"timeoutSeconds": 60}}, 0, 0, id="None ignores the time-out"),
        pytest.param("ClientIP", {"clientIP": {"timeoutSeconds": 60}}, 60, 0, id="time-out given"),
        pytest.param("ClientIP", None, 10800, 0, id="missing config means three hours"),
        pytest.param("ClientIP", {"clientIP": {}}, 10800, 0, id="missing time-out means three hours"),
        pytest.param("ClientIP", {"clientIP": {"timeoutSeconds": 86400}}, 86400, 0, id="one day is the most"),
        pytest.param("ClientIP", {"clientIP": {"timeoutSeconds": 0}}, 10800, 1, id="zero is refused"),
        pytest.param("ClientIP", {"clientIP": {"timeoutSeconds": 86401}}, 10800, 1, id="more than a day is refused"),
        pytest.param("Cookie", None, 0, 1, id="unknown kind of affinity"),
    ],
)
def test_affinity_is_a_number_of_seconds(affinity, config, expected, faults):
    view, reasons = read({**BASE, "sessionAffinity": affinity, "sessionAffinityConfig": config})
    assert view is not None
    assert (view.affinity_s, len(reasons)) == (expected, faults)


def test_external_ips_keep_their_order_without_other_families_blanks_and_repetitions():
    spec = {**BASE, "externalIPs": ["203.0.113.2", "fd00::1", " ", "192.0.2.001", "203.0.113.2"]}
    assert texts(clean(spec).external_ips) == ["203.0.113.2", "192.0.2.1"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("web.example", id="a name"),
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("0.0.0.0", id="zero"),
    ],
)
def test_a_bad_external_ip_costs_only_itself(bad):
    view, reasons = read({**BASE, "externalIPs": [bad, "192.0.2.1"]})
    assert view is not None
    assert texts(view.external_ips) == ["192.0.2.1"]
    assert len(reasons) == 1
    assert reasons[0].startswith("spec.externalIPs[0]:")


def test_load_balancer_ips_are_those_that_the_node_serves_whatever_the_type():
    ingress = [
        {"ip": "192.0.2.1"},
        {"ip": "192.0.2.2", "ipMode": "VIP"},
        {"ip": "192.0.2.3", "ipMode": "Proxy"},
        {"ip": "192.0.2.5", "ipMode": "Tunnel"},  # of an API of some day
        {"hostname": "lb.example"},
        {"ip": "fd00::4"},
    ]
    assert texts(clean(status={"loadBalancer": {"ingress": ingress}}).load_balancer_ips) == ["192.0.2.1", "192.0.2.2"]


@pytest.mark.parametrize(
    "spec, ranges, expected",
    [
        pytest.param(BASE, [" 10.0.0.0/8\t", "192.0.2.9/24"], ["10.0.0.0/8", "192.0.2.0/24"], id="trimmed and masked"),
        pytest.param(BASE, ["10.0.0.0/8", "0.0.0.0/0"], [], id="a range of everything drops the others"),
        pytest.param(
            BASE, ["10.0.0.0/8", "::/0"], ["10.0.0.0/8"], id="everything of the other family is of no concern"
        ),
        pytest.param(DUAL, ["10.0.0.0/8", "::/0", "fd00::/8"], ["10.0.0.0/8"], id="each family for itself"),
        pytest.param(BASE, ["fd00::/8"], [], id="only the other family"),
    ],
)
def test_source_ranges_are_those_of_the_service_s_families(spec, ranges, expected):
    assert [str(cidr) for cidr in clean({**spec, "loadBalancerSourceRanges": ranges}).source_ranges] == expected


@pytest.mark.parametrize(
    "spec,ranges,restricted",
    [
        pytest.param(BASE, [], [], id="no list"),
        pytest.param(BASE, ["10.0.0.0/8"], ["IPv4"], id="a range"),
        pytest.param(BASE, ["10.0.0.0/8", "0.0.0.0/0"], [], id="a range of everything"),
        pytest.param(DUAL, ["10.0.0.0/8"], ["IPv4", "IPv6"], id="ranges of one family close the other"),
        pytest.param(DUAL, ["0.0.0.0/0"], ["IPv6"], id="everything of one family closes the other"),
        pytest.param(BASE, ["fd00::/8"], ["IPv4"], id="only a family that it does not have"),
    ],
)
def test_k35_a_list_of_source_ranges_closes_what_it_does_not_name(spec, ranges, restricted):
    view = clean({**spec, "loadBalancerSourceRanges": ranges})
    assert [family.label for family in view.restricted] == restricted


@pytest.mark.parametrize(
    "ranges,is_closed",
    [
        pytest.param(["nonsense"], True, id="S7 nonsense closes the Service, and says so"),
        pytest.param(["10.0.0.0", "0.0.0.0"], True, id="addresses without a length"),
        pytest.param(["", " "], False, id="blanks say nothing: no list"),
    ],
)
def test_k35_source_ranges_that_are_none_are_reported(ranges, is_closed):
    view, reasons = read({**BASE, "loadBalancerSourceRanges": ranges})
    assert view is not None
    assert view.source_ranges == ()
    assert bool(view.restricted) is is_closed
    assert len(reasons) == 1
    assert all(f'"{text}" is not a CIDR' in reasons[0] for text in ranges)


def test_a_bad_source_range_costs_only_itself():
    view, reasons = read({**BASE, "loadBalancerSourceRanges": ["10.0.0.0", "10.0.0.0/8"]})
    assert view is not None
    assert len(view.source_ranges) == 1
    assert reasons == ['spec.loadBalancerSourceRanges[0]: "10.0.0.0" is not a CIDR']


@pytest.mark.parametrize(
    "changes, expected",
    [
        pytest.param({"type": "LoadBalancer", "healthCheckNodePort": 30000}, True, id="load balancer"),
        pytest.param({"type": "NodePort"}, True, id="node port"),
        pytest.param({"type": "ClusterIP", "externalIPs": ["192.0.2.1"]}, True, id="cluster IP with external IPs"),
        pytest.param({"type": "ClusterIP"}, False, id="cluster IP alone has no external traffic"),
        pytest.param({}, False, id="no type means ClusterIP"),
    ],
)
def test_external_policy_local_counts_only_where_there_is_external_traffic(changes, expected):
    assert clean({**BASE, **changes, "externalTrafficPolicy": "Local"}).external_policy_local is expected
    assert clean({**BASE, **changes, "externalTrafficPolicy": "Cluster"}).external_policy_local is False


@pytest.mark.parametrize("policy, expected", [(None, False), ("Cluster", False), ("Local", True)])
def test_internal_policy_local(policy, expected):
    assert clean({**BASE, "internalTrafficPolicy": policy}).internal_policy_local is expected


@pytest.mark.parametrize(
    "changes, expected, faults",
    [
        pytest.param({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, 30000, 0, id="load balancer, local"),
        pytest.param({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"}, 0, 0, id="load balancer, cluster"),
        pytest.param({"type": "NodePort", "externalTrafficPolicy": "Local"}, 0, 0, id="node port, local"),
        pytest.param(
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": None}, 0, 1, id="missing"
        ),
        pytest.param(
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 99999},
            0,
            1,
            id="too large",
        ),
        pytest.param(
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{**HTTP, "protocol": "QUIC"}]},
            0,
            1,
            id="no port that can be served",
        ),
    ],
)
def test_the_health_check_port_belongs_to_local_load_balancers(changes, expected, faults):
    view, reasons = read({**BASE, "healthCheckNodePort": 30000, **changes})
    assert view is not None
    assert (view.health_check_node_port, len(reasons)) == (expected, faults)


@pytest.mark.parametrize("field", ["type", "externalTrafficPolicy", "internalTrafficPolicy"])
def test_an_unknown_word_is_told_and_means_the_default(field):
    view, reasons = read({**BASE, field: "Nonsense"})
    assert view == clean()
    assert len(reasons) == 1
    assert reasons[0].startswith(f'spec.{field}: "Nonsense" is not')


def test_all_that_is_wrong_with_a_service_is_one_note():
    spec = {**BASE, "externalIPs": ["a", "b", "c", "d"], "sessionAffinity": "x"}
    _, reasons = read(spec)
    assert reasons[0].endswith("and 2 more")


@pytest.mark.parametrize(
    "annotations, drain_s",
    [
        pytest.param(None, None, id="no annotations"),
        pytest.param({"example.com/note": "x" * 1000}, None, id="others only"),
        pytest.param({"ipvsproxy.io/drain-timeout": "1m30s"}, 90.0, id="a minute and a half"),
        pytest.param({"ipvsproxy.io/drain-timeout": " 500ms "}, 0.5, id="half a second and blanks"),
        pytest.param({"ipvsproxy.io/drain-timeout": "0"}, 0.0, id="0 is at once"),
        pytest.param({"ipvsproxy.io/drain-timeout": "24h"}, 86400.0, id="the longest"),
    ],
)
def test_a_service_may_have_a_drain_time_of_its_own(annotations, drain_s):
    view, reasons = read(annotations=annotations)
    assert view is not None
    assert (view.drain_s, reasons) == (drain_s, [])


def test_a_drain_time_of_more_than_a_day_is_told_and_a_day_holds():
    view, reasons = read(annotations={"ipvsproxy.io/drain-timeout": "24h1ns"})
    assert view is not None
    assert view.drain_s == 86400.0
    assert reasons == ['metadata.annotations[ipvsproxy.io/drain-timeout]: "24h1ns" is too long, so 24h hold']


@pytest.mark.parametrize("text", ["", "soon", "15", "-1s", "293y", "1 m"])
def test_a_drain_time_that_cannot_be_read_is_told_and_the_default_holds(text):
    view, reasons = read(annotations={"ipvsproxy.io/drain-timeout": text})
    assert view is not None
    assert view.drain_s is None
    (reason,) = reasons
    assert reason.startswith(f'metadata.annotations[ipvsproxy.io/drain-timeout]: "{text}" is not a duration')
    assert "--ipvs-drain-timeout holds" in reason
