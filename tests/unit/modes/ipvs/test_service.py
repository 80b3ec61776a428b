"""One Service → its objects. Whole states: tests/golden."""

from __future__ import annotations

import msgspec
import pytest

from ipvsproxy.cluster.node import HostView
from ipvsproxy.cluster.services import read_service
from ipvsproxy.cluster.slices import compact_slice
from ipvsproxy.model import api_objects as api
from ipvsproxy.model.addr import family_of
from ipvsproxy.model.enums import Family, Protocol, VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.modes.ipvs.service import ServiceOptions, depends_on_host, plan_service
from tests.builders import addr, blob, vs_key
from tests.clusters import NODE, Svc, cluster

BOTH = frozenset(Family)


def viewed(service: Svc, families=BOTH):
    (found,) = (o for o in cluster(service).values() if isinstance(o, api.Service))
    view, notes = read_service(found, families)
    assert notes == ()
    assert view is not None
    return view


def planned(service: Svc, *, families=BOTH, scheduler="rr", host=(), node_ips=()):
    slices = [compact_slice(o, NODE)[0] for o in cluster(service).values() if isinstance(o, api.EndpointSlice)]
    addresses = tuple(map(addr, host))  # all of them serve node ports
    own = HostView(frozenset(addresses), addresses, tuple(map(addr, node_ips)))
    options = ServiceOptions(families, scheduler)
    return plan_service(viewed(service, families), [s for s in slices if s], own, options).objects


def more_than(service: Svc, plain: Svc, *, host=()):
    """What `service` wants and `plain` does not; it must want all that `plain` does."""
    objects, before = planned(service, host=host), planned(plain, host=host)
    assert before.items() <= objects.items()
    return {ref: settings for ref, settings in objects.items() if ref not in before}


# Objects of a Service

FIVE = addr("10.244.1.5")


def test_a_port_is_a_virtual_server_its_real_servers_its_entries_and_its_address():
    objects = planned(Svc("web", local=True))
    key, vip = vs_key("10.96.0.20", 80), addr("10.96.0.20")
    assert objects == {
        (Kind.VIRTUAL_SERVER, key): VirtualServer("rr"),
        (Kind.REAL_SERVER, key): blob(("10.244.1.5", 8080)),
        (Kind.ACCEPT_ENTRY, SetEntry("KUBE-CLUSTER-IP", vip, 6, 80)): True,
        (Kind.BOUND_ENTRY, SetEntry("KUBE-IPVS-IPS", vip)): True,
        (Kind.ADDRESS, vip): True,
        (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOOP-BACK", FIVE, 6, 8080, FIVE)): True,
    }


def test_ipv6_objects_stand_in_the_ipv6_sets():
    objects = planned(Svc("web", ("fd00:10:96::20",), endpoints=(("fd00:10:244::5", True),), local=True))
    names = {key.set_name for _, key in objects if isinstance(key, SetEntry)}
    assert names == {"KUBE-6-CLUSTER-IP", "KUBE-6-IPVS-IPS", "KUBE-6-LOOP-BACK"}


@pytest.mark.parametrize(
    "endpoints", [pytest.param((), id="none"), pytest.param((("10.244.1.5", False),), id="none that is ready")]
)
def test_k21_a_service_without_usable_endpoints_has_an_empty_virtual_server_which_refuses_at_once(endpoints):
    objects = planned(Svc("web", endpoints=endpoints))
    assert objects[Kind.REAL_SERVER, vs_key("10.96.0.20", 80)] == b""
    assert (Kind.ADDRESS, addr("10.96.0.20")) in objects


def test_k19_two_ports_share_one_address():
    objects = planned(Svc("web", ports=((80, "TCP"), (443, "TCP"), (443, "UDP"))))
    assert [key for kind, key in objects if kind is Kind.ADDRESS] == [addr("10.96.0.20")]
    assert {key for kind, key in objects if kind is Kind.VIRTUAL_SERVER} == {
        vs_key("10.96.0.20", 80), vs_key("10.96.0.20", 443), vs_key("10.96.0.20", 443, Protocol.UDP),
    }  # fmt: skip


# Ways in besides the cluster IP: NODE_IP and its twin are the node's own addresses.

NODE_IP, NODE_IP_6 = "192.0.2.11", "2001:db8:1::11"
EXTERNAL, EXTERNAL_6 = "203.0.113.20", "2001:db8:113::20"
DUAL = ("10.96.0.20", "fd00:10:96::20")
DUAL_ENDPOINTS = (("10.244.1.5", True), ("fd00:10:244::5", True))


def front(key, server, entry, *, is_bound):
    """The objects of one way in."""
    kind = Kind.SUPPORT_ENTRY if "NODE-PORT" in entry.set_name else Kind.ACCEPT_ENTRY
    objects = {
        (Kind.VIRTUAL_SERVER, key): VirtualServer("rr"),
        (Kind.REAL_SERVER, key): blob(server),
        (kind, entry): True,
    }
    closing = "KUBE-IPVS-IPS" if len(key.address) == 4 else "KUBE-6-IPVS-IPS"
    bound = {(Kind.BOUND_ENTRY, SetEntry(closing, key.address)): True, (Kind.ADDRESS, key.address): True}
    return objects | bound if is_bound else objects


@pytest.mark.parametrize("protocol", [pytest.param(p, id=p.name) for p in Protocol])
@pytest.mark.parametrize(
    "fields,base",
    [
        pytest.param({"external_ips": (EXTERNAL, EXTERNAL_6)}, "EXTERNAL-IP", id="external IPs"),
        pytest.param({"ingress": ((EXTERNAL, "VIP"), (EXTERNAL_6, "VIP"))}, "LOAD-BALANCER", id="load-balancer IPs"),
    ],
)
def test_k30_an_address_from_outside_is_bound_and_let_through_in_its_familys_set(fields, base, protocol):
    plain = Svc("web", DUAL, ((80, protocol.name),), DUAL_ENDPOINTS)
    added = more_than(msgspec.structs.replace(plain, **fields), plain, host=(NODE_IP, NODE_IP_6))
    four, six = vs_key(EXTERNAL, 80, protocol), vs_key(EXTERNAL_6, 80, protocol)
    assert added == front(
        four, ("10.244.1.5", 8080), SetEntry(f"KUBE-{base}", four.address, protocol, 80), is_bound=True
    ) | front(
        six, ("fd00:10:244::5", 8080), SetEntry(f"KUBE-6-{base}", six.address, protocol, 80), is_bound=True
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields,set_name",
    [
        pytest.param({"external_ips": (NODE_IP,)}, "KUBE-EXTERNAL-IP", id="an external IP"),
        pytest.param({"ingress": ((NODE_IP, "VIP"),)}, "KUBE-LOAD-BALANCER", id="a load-balancer IP"),
    ],
)
def test_k32_an_address_that_the_node_itself_has_is_served_but_neither_bound_nor_closed(fields, set_name):
    key = vs_key(NODE_IP, 80)
    entry = SetEntry(set_name, key.address, Protocol.TCP, 80)
    added = more_than(Svc("web", **fields), Svc("web"), host=(NODE_IP,))
    assert added == front(key, ("10.244.1.5", 8080), entry, is_bound=False)


def test_a_cluster_ip_is_bound_even_where_another_interface_has_it():
    assert planned(Svc("web"), host=("10.96.0.20",)) == planned(Svc("web"))


@pytest.mark.parametrize(
    "protocol,four,six",
    [
        pytest.param(
            Protocol.TCP,
            [SetEntry("KUBE-NODE-PORT-TCP", port=30080)],
            [SetEntry("KUBE-6-NODE-PORT-TCP", port=30080)],
            id="TCP: a port",
        ),
        pytest.param(
            Protocol.UDP,
            [SetEntry("KUBE-NODE-PORT-UDP", port=30080)],
            [SetEntry("KUBE-6-NODE-PORT-UDP", port=30080)],
            id="UDP: a port",
        ),
        pytest.param(
            Protocol.SCTP,
            [
                SetEntry("KUBE-NODE-PORT-SCTP-HASH", addr(NODE_IP), Protocol.SCTP, 30080),
                SetEntry("KUBE-NODE-PORT-SCTP-HASH", addr("198.51.100.11"), Protocol.SCTP, 30080),
            ],
            [SetEntry("KUBE-6-NODE-PORT-SCTP-HASH", addr(NODE_IP_6), Protocol.SCTP, 30080)],
            id="SCTP: every address with the port",
        ),
    ],
)
def test_k30_a_node_port_is_served_on_every_address_and_never_bound(protocol, four, six):
    plain = Svc("web", DUAL, ((80, protocol.name),), DUAL_ENDPOINTS)
    service = msgspec.structs.replace(plain, node_ports=(30080,))
    expected = {(Kind.SUPPORT_ENTRY, entry): True for entry in (*four, *six)}
    for address, server in ((NODE_IP, "10.244.1.5"), ("198.51.100.11", "10.244.1.5"), (NODE_IP_6, "fd00:10:244::5")):
        key = vs_key(address, 30080, protocol)
        expected[Kind.VIRTUAL_SERVER, key] = VirtualServer("rr")
        expected[Kind.REAL_SERVER, key] = blob((server, 8080))
    assert more_than(service, plain, host=(NODE_IP, "198.51.100.11", NODE_IP_6)) == expected


def test_node_ports_are_served_on_those_addresses_alone_that_are_chosen_for_them():
    host = HostView(frozenset(map(addr, (NODE_IP, "198.51.100.11"))), (addr("198.51.100.11"),))
    view = viewed(Svc("web", node_ports=(30080,), external_ips=(NODE_IP,)))
    objects = plan_service(view, (), host, ServiceOptions(BOTH)).objects
    assert {str(key) for kind, key in objects if kind is Kind.VIRTUAL_SERVER} == {
        "10.96.0.20:80/TCP", "198.51.100.11:30080/TCP", "192.0.2.11:80/TCP",
    }  # fmt: skip
    assert [key for kind, key in objects if kind is Kind.ADDRESS] == [addr("10.96.0.20")]


def test_a_node_port_without_an_address_to_serve_it_leaves_no_set_entry():
    service = Svc("web", node_ports=(30080,))
    assert planned(service) == planned(service, host=(NODE_IP_6,)) == planned(Svc("web"))


def test_each_port_has_its_own_node_port_and_may_have_none():
    service = Svc("web", ports=((80, "TCP"), (81, "TCP"), (53, "UDP")), node_ports=(30080, 0, 30053))
    keys = {key for kind, key in planned(service, host=(NODE_IP,)) if kind is Kind.VIRTUAL_SERVER}
    assert {key for key in keys if key.address == addr(NODE_IP)} == {
        vs_key(NODE_IP, 30080), vs_key(NODE_IP, 30053, Protocol.UDP),
    }  # fmt: skip


def test_a_family_that_the_service_does_not_have_brings_no_way_in():
    service = Svc(
        "web", node_ports=(30080,), external_ips=(EXTERNAL, EXTERNAL_6), ingress=((EXTERNAL_6, "VIP"),),
        endpoints=DUAL_ENDPOINTS,
    )  # fmt: skip
    objects = planned(service, host=(NODE_IP, NODE_IP_6))
    assert {family_of(key.address) for kind, key in objects if kind is Kind.VIRTUAL_SERVER} == {Family.IPV4}
    assert not any("KUBE-6-" in key.set_name for _, key in objects if isinstance(key, SetEntry))


@pytest.mark.parametrize(
    "ip_mode,is_served",
    [pytest.param("VIP", True, id="VIP"), pytest.param("", True, id="none"), pytest.param("Proxy", False, id="Proxy")],
)
def test_k27_the_ip_mode_decides_whether_the_node_serves_a_load_balancers_address(ip_mode, is_served):
    objects = planned(Svc("web", ingress=((EXTERNAL, ip_mode),)))
    assert ((Kind.VIRTUAL_SERVER, vs_key(EXTERNAL, 80)) in objects) is is_served
    assert any(addr(EXTERNAL) in {key, getattr(key, "address", None)} for _, key in objects) is is_served


def test_affinity_holds_on_every_way_in():
    service = Svc(
        "web", affinity_s=60, node_ports=(30080,), external_ips=(EXTERNAL,), ingress=(("203.0.113.10", "VIP"),)
    )
    settings = [s for (kind, _), s in planned(service, host=(NODE_IP,)).items() if kind is Kind.VIRTUAL_SERVER]
    assert settings == [VirtualServer("rr", VirtualServerFlags.PERSISTENT, 60)] * 4


def test_k21_every_way_in_to_a_service_without_endpoints_is_an_empty_virtual_server():
    service = Svc(
        "web", endpoints=(), node_ports=(30080,), external_ips=(EXTERNAL,), ingress=(("203.0.113.10", "VIP"),)
    )
    objects = planned(service, host=(NODE_IP,))
    assert {str(key): value for (kind, key), value in objects.items() if kind is Kind.REAL_SERVER} == {
        "10.96.0.20:80/TCP": b"", "192.0.2.11:30080/TCP": b"", "203.0.113.20:80/TCP": b"", "203.0.113.10:80/TCP": b"",
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields,depends",
    [
        pytest.param({}, False, id="a cluster IP alone"),
        pytest.param({"node_ports": (0,)}, False, id="no node port"),
        pytest.param({"ingress": ((EXTERNAL, "Proxy"),)}, False, id="a load balancer that is its own proxy"),
        pytest.param({"node_ports": (30080,)}, True, id="a node port"),
        pytest.param({"external_ips": (EXTERNAL,)}, True, id="an external IP"),
        pytest.param({"ingress": ((EXTERNAL, "VIP"),)}, True, id="a load-balancer IP"),
    ],
)
def test_a_service_depends_on_the_hosts_addresses_with(fields, depends):
    service = Svc("web", **fields)
    assert depends_on_host(viewed(service), ()) is depends
    if not depends:
        assert planned(service, host=(NODE_IP, EXTERNAL)) == planned(service)


@pytest.mark.parametrize(
    "scheduler,affinity_s,settings",
    [
        pytest.param("rr", 0, VirtualServer("rr"), id="rr"),
        pytest.param("lc", 0, VirtualServer("lc"), id="another scheduler"),
        pytest.param("rr", 600, VirtualServer("rr", VirtualServerFlags.PERSISTENT, 600), id="affinity"),
        pytest.param("mh", 0, VirtualServer("mh", VirtualServerFlags.SCHEDULER_2), id="mh hashes the port too"),
        pytest.param(
            "mh",
            60,
            VirtualServer("mh", VirtualServerFlags.SCHEDULER_2 | VirtualServerFlags.PERSISTENT, 60),
            id="mh with affinity",
        ),
        pytest.param("sh", 0, VirtualServer("sh"), id="sh has no flag"),
    ],
)
def test_a_virtual_server_is_set_up(scheduler, affinity_s, settings):
    objects = planned(Svc("web", affinity_s=affinity_s), scheduler=scheduler)
    assert objects[Kind.VIRTUAL_SERVER, vs_key("10.96.0.20", 80)] == settings


def test_k55_a_family_that_is_not_served_brings_no_object():
    service = Svc("web", ("10.96.0.20", "fd00:10:96::20"), endpoints=(("10.244.1.5", True), ("fd00:10:244::5", True)))
    only_four = planned(service, families=frozenset({Family.IPV4}))
    assert only_four == planned(Svc("web"))


# Traffic policies. On this node: 10.244.1.5; elsewhere: 10.244.2.5. LB stands for a load-balancer IP.

LB = "203.0.113.10"
HERE, THERE = ("10.244.1.5", 8080), ("10.244.2.5", 8080)
FRONTENDS = {
    "cluster IP": "10.96.0.20:80/TCP",
    "external IP": f"{EXTERNAL}:80/TCP",
    "load-balancer IP": f"{LB}:80/TCP",
    "node port": f"{NODE_IP}:30080/TCP",
}
OUTSIDE = frozenset(FRONTENDS) - {"cluster IP"}


def every_kind(*, endpoints=((HERE[0], True), (THERE[0], True)), here=(HERE[0],), **policies):
    return Svc(
        "web", endpoints=endpoints, here=here, node_ports=(30080,), external_ips=(EXTERNAL,), ingress=((LB, "VIP"),),
        **policies,
    )  # fmt: skip


def led_to(service: Svc):
    """Each kind of frontend with its real servers."""
    servers = {
        str(key): value for (kind, key), value in planned(service, host=(NODE_IP,)).items() if kind is Kind.REAL_SERVER
    }
    return {name: servers[text] for name, text in FRONTENDS.items()}


def members(service: Svc, base: str, **where):
    found = planned(service, **{"host": (NODE_IP,), **where})
    return sorted(key.member for _, key in found if isinstance(key, SetEntry) and key.set_name == base)


@pytest.mark.parametrize(
    "policies,only_here",
    [
        pytest.param({}, set(), id="Cluster"),
        pytest.param({"internal_policy": "Local"}, {"cluster IP"}, id="internal Local"),
        pytest.param({"external_policy": "Local", "health_port": 32100}, OUTSIDE, id="external Local"),
        pytest.param(
            {"internal_policy": "Local", "external_policy": "Local", "health_port": 32100}, set(FRONTENDS), id="both"
        ),
    ],
)
def test_k24_a_traffic_policy_holds_for_every_frontend_of_its_side(policies, only_here):
    assert led_to(every_kind(**policies)) == {
        name: blob(HERE) if name in only_here else blob(HERE, THERE) for name in FRONTENDS
    }


def test_a_cluster_ip_with_internal_policy_local_never_leads_to_another_node():
    elsewhere = every_kind(internal_policy="Local", here=())
    assert led_to(elsewhere) == {name: blob(HERE, THERE) if name in OUTSIDE else b"" for name in FRONTENDS}


def test_k25_without_an_endpoint_here_external_policy_local_leads_everywhere_behind_a_guard():
    elsewhere = every_kind(external_policy="Local", health_port=32100, here=())
    assert led_to(elsewhere) == dict.fromkeys(FRONTENDS, blob(HERE, THERE))
    assert members(elsewhere, "KUBE-NO-LOCAL-ENDPOINTS") == [
        f"{NODE_IP},tcp:30080", f"{LB},tcp:80", f"{EXTERNAL},tcp:80",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "service",
    [
        pytest.param(every_kind(here=()), id="policy Cluster"),
        pytest.param(every_kind(external_policy="Local", health_port=32100), id="an endpoint here"),
        pytest.param(
            every_kind(external_policy="Local", health_port=32100, endpoints=(), here=()),
            id="no endpoint anywhere: the empty virtual server refuses at once",
        ),
    ],
)
def test_k25_there_is_no_guard_with(service):
    assert members(service, "KUBE-NO-LOCAL-ENDPOINTS") == []


def test_policy_local_keeps_the_clients_address_by_its_own_sets():
    local, everywhere = every_kind(external_policy="Local", health_port=32100), every_kind()
    assert members(everywhere, "KUBE-EXTERNAL-IP") == members(local, "KUBE-EXTERNAL-IP-LOCAL") == [f"{EXTERNAL},tcp:80"]
    assert members(local, "KUBE-EXTERNAL-IP") == members(everywhere, "KUBE-EXTERNAL-IP-LOCAL") == []
    for base, member in (("KUBE-LOAD-BALANCER", f"{LB},tcp:80"), ("KUBE-NODE-PORT-TCP", "30080")):
        only_local = base.replace("-TCP", "-LOCAL-TCP") if "PORT" in base else f"{base}-LOCAL"
        assert members(local, base) == members(local, only_local) == members(everywhere, base) == [member]
        assert members(everywhere, only_local) == []


def test_k29_the_health_check_port_is_let_through_in_each_family_of_the_service():
    service = Svc("web", DUAL, ingress=((LB, "VIP"),), external_policy="Local", health_port=32100)
    assert members(service, "KUBE-HEALTH-CHECK-NODE-PORT") == members(service, "KUBE-6-HEALTH-CHECK-NODE-PORT")
    assert members(service, "KUBE-HEALTH-CHECK-NODE-PORT") == ["32100"]
    everywhere = msgspec.structs.replace(service, external_policy="Cluster", health_port=0)
    assert members(everywhere, "KUBE-HEALTH-CHECK-NODE-PORT") == []


# Source ranges: S1 to S9 of K35


def ranged(*ranges, **fields):
    return Svc("web", ingress=((LB, "VIP"), ("203.0.113.11", "Proxy")), source_ranges=ranges, **fields)


@pytest.mark.parametrize(
    "ranges,allowed",
    [
        pytest.param(("198.51.100.0/24",), ["198.51.100.0/24"], id="S1 a range"),
        pytest.param((), None, id="S2 no list"),
        pytest.param(("0.0.0.0/0",), None, id="S3 everything"),
        pytest.param(("198.51.100.7/24",), ["198.51.100.0/24"], id="S6 host bits set"),
        pytest.param((" 198.51.100.7/32 ",), ["198.51.100.7"], id="S5 with blanks"),
        pytest.param(("fd00::/8",), [], id="S8 only the other family: closed"),
        pytest.param(
            ("10.0.0.0/8", "10.0.0.0/8", "10.1.0.0/16"), ["10.0.0.0/8", "10.1.0.0/16"], id="S9 twice, and overlapping"
        ),
    ],
)
def test_k35_source_ranges_close_a_load_balancers_address_to_all_others(ranges, allowed):
    service = ranged(*ranges)
    front = f"{LB},tcp:80"
    assert members(service, "KUBE-LOAD-BALANCER") == [front]
    assert members(service, "KUBE-LOAD-BALANCER-FW") == ([] if allowed is None else [front])
    assert members(service, "KUBE-LOAD-BALANCER-SOURCE-CIDR") == [f"{front},{cidr}" for cidr in allowed or ()]


def test_k35_ranges_of_ipv6_stand_in_its_own_sets():
    service = Svc("web", DUAL, ingress=((EXTERNAL_6, "VIP"),), source_ranges=("2001:db8:5::/48", "0.0.0.0/0"))
    assert members(service, "KUBE-6-LOAD-BALANCER-FW") == [f"{EXTERNAL_6},tcp:80"]
    assert members(service, "KUBE-6-LOAD-BALANCER-SOURCE-CID") == [f"{EXTERNAL_6},tcp:80,2001:db8:5::/48"]


@pytest.mark.parametrize(
    "ranges,is_open",
    [
        pytest.param(("192.0.2.0/24",), True, id="a range with the node's address"),
        pytest.param(("198.51.100.0/24",), False, id="none"),
        pytest.param(("172.16.0.0/12",), False, id="a range with an address that only an interface has"),
        pytest.param((), False, id="no list needs no entry"),
    ],
)
def test_the_node_itself_may_use_a_load_balancers_address_with(ranges, is_open):
    host = (NODE_IP, "172.17.0.1")  # that of a bridge, say, which no other node knows this one by
    found = members(ranged(*ranges), "KUBE-LOAD-BALANCER-SOURCE-IP", node_ips=(NODE_IP,), host=host)
    assert found == ([f"{LB},tcp:80,{LB}"] if is_open else [])
