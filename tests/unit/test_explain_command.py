"""`ipvsproxy explain`: what it says of a Service and of a frontend, and what it answers."""

from __future__ import annotations

import re

import pytest

from ipvsproxy import cli
from ipvsproxy.config.command_line import ExitCode, Explain, Show, help_text, parse_command_line
from ipvsproxy.config.flags import Commands
from ipvsproxy.config.targets import Client, Question
from ipvsproxy.errors import ConfigError, IpvsproxyError
from ipvsproxy.model.enums import VirtualServerFlags
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.model.names import ServiceName
from tests.builders import addr, blob, flow, vs_key
from tests.explained import HOST, PUBLIC, WEB, endpoint, endpoints, service

pytestmark = pytest.mark.usefixtures("quiet")
KEY = vs_key("10.96.0.20", 80)
BALANCER = vs_key("203.0.113.20", 80)
HAIRPIN = SetEntry("KUBE-LOOP-BACK", addr("10.244.1.5"), 6, 8080, addr("10.244.1.5"))


# What stands


def test_a_service_that_is_as_planned_answers_0_and_shows_each_object(place, said):
    assert place(*WEB).explain("shop/web") == ExitCode.OK
    lines = said()
    assert lines[0] == "Service shop/web"
    at = lines.index("10.96.0.20:80/TCP cluster IP")
    assert lines[at : at + 7] == [
        "10.96.0.20:80/TCP cluster IP",
        "ok virtual server: rr",
        "ok real server 10.244.1.5:8080: weight 1, 0 connections",
        "ok real server 10.244.2.5:8080: weight 1, 0 connections",
        "ok address 10.96.0.20/32 on kube-ipvs0",
        "ok entry KUBE-IPVS-IPS 10.96.0.20",
        "ok entry KUBE-CLUSTER-IP 10.96.0.20,tcp:80",
    ]
    assert {"ok IPv4 nat rules", "ok sysctl net.ipv4.vs.conntrack: 1", "ok 19 sets"} <= set(lines)
    assert lines[-1] == "As planned: a start would change nothing of this."


@pytest.mark.parametrize(
    "damage,line,change",
    [
        pytest.param(
            lambda state: state[Kind.ADDRESS].clear(),
            "missing address 10.96.0.20/32 on kube-ipvs0", "add address 10.96.0.20/32 # shop/web", id="an address",
        ),
        pytest.param(
            lambda state: state[Kind.VIRTUAL_SERVER].update({KEY: VirtualServer("lc")}),
            "differs virtual server: lc, should be rr", "edit virtual server 10.96.0.20:80/TCP: lc → rr # shop/web",
            id="a virtual server",
        ),
        pytest.param(
            lambda state: state[Kind.REAL_SERVER].update({KEY: blob(("10.244.1.5", 8080))}),
            "missing real server 10.244.2.5:8080: weight 1",
            "add real server 10.244.2.5:8080 of 10.96.0.20:80/TCP: weight 1 # shop/web", id="a real server",
        ),
        pytest.param(
            lambda state: state[Kind.REAL_SERVER].update({KEY: blob(("10.244.1.5", 8080), ("10.244.2.5", 8080, 0))}),
            "differs real server 10.244.2.5:8080: weight 0, should be weight 1, 0 connections",
            "edit real server 10.244.2.5:8080 of 10.96.0.20:80/TCP: weight 0 → weight 1 # shop/web",
            id="a weight",
        ),
        pytest.param(
            lambda state: state[Kind.ACCEPT_ENTRY].clear(),
            "missing entry KUBE-CLUSTER-IP 10.96.0.20,tcp:80",
            "add accept entry KUBE-CLUSTER-IP 10.96.0.20,tcp:80 # shop/web", id="a set entry",
        ),
        pytest.param(
            lambda state: state[Kind.SUPPORT_ENTRY].pop(HAIRPIN), "Not as planned. A start would",
            "add support entry KUBE-LOOP-BACK 10.244.1.5,tcp:8080,10.244.1.5 # shop/web", id="what is of no way in",
        ),
        pytest.param(
            lambda state: state[Kind.SYSCTL].update({"net.ipv4.vs.conntrack": "0"}),
            "differs sysctl net.ipv4.vs.conntrack: 0, should be 1", "edit sysctl net.ipv4.vs.conntrack: 0 → 1",
            id="a sysctl that all depend on",
        ),
        pytest.param(
            lambda state: state[Kind.RULES].pop(max(state[Kind.RULES])), "missing IPv4 nat rules",
            "add IPv4 nat rules", id="rules that all depend on",
        ),
        pytest.param(
            lambda state: state[Kind.SET].pop("KUBE-LOOP-BACK"),
            "missing set KUBE-LOOP-BACK: hash:ip,port,ip family inet hashsize 1024 maxelem 65536",
            "add set KUBE-LOOP-BACK: hash:ip,port,ip family inet hashsize 1024 maxelem 65536", id="a set",
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_planned_is_shown_with_what_a_start_would_do_and_answers_1(place, said, damage, line, change):
    there = place(*WEB)
    damage(there.fake.state)
    assert there.explain("shop/web") == ExitCode.DIFFERENT
    lines = said()
    assert line in lines
    assert change in lines[lines.index("Not as planned. A start would") :]


def test_another_services_damage_is_not_this_ones(place):
    there = place(*WEB, service("other", ip="10.96.0.21"))
    del there.fake.state[Kind.ADDRESS][addr("10.96.0.21")]
    assert (there.explain("shop/web"), there.explain("shop/other")) == (ExitCode.OK, ExitCode.DIFFERENT)


def test_k08_what_drains_shows_its_connections_and_is_as_planned(place, said):
    there = place(*WEB)
    there.fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.5", 8080), ("10.244.1.9", 8080, 0), ("10.244.2.5", 8080))
    there.fake.connections[KEY, blob(("10.244.1.9", 8080))[:-3]] = 1
    assert there.explain("shop/web", "--from", "198.51.100.7") == ExitCode.OK
    lines = said()
    assert "drains real server 10.244.1.9:8080: weight 0, 1 connection" in lines
    assert "→ 10.244.1.5:8080, 10.244.2.5:8080, with the node's address as its source" in lines


def test_k19_what_is_left_of_a_service_that_is_gone_drains_too(place, said):
    there = place(*WEB)
    gone = vs_key("10.96.0.21", 80)
    there.fake.state[Kind.ADDRESS][gone.address] = True
    there.fake.state[Kind.BOUND_ENTRY][SetEntry("KUBE-IPVS-IPS", gone.address)] = True
    there.fake.state[Kind.VIRTUAL_SERVER][gone] = VirtualServer("rr")
    there.fake.state[Kind.REAL_SERVER][gone] = blob(("10.244.1.9", 8080, 0))
    there.fake.connections[gone, blob(("10.244.1.9", 8080))[:-3]] = 4
    assert there.explain("10.96.0.21:80") == ExitCode.OK
    assert said()[:3] == [
        "10.96.0.21:80/TCP no Service has it",
        "drains virtual server: rr",
        "drains real server 10.244.1.9:8080: weight 0, 4 connections",
    ]


def test_a_real_server_that_nobody_wants_goes(place, said):
    there = place(*WEB)
    there.fake.state[Kind.REAL_SERVER][KEY] = blob(("10.244.1.5", 8080), ("10.244.2.5", 8080), ("10.244.9.9", 8080))
    assert there.explain("shop/web") == ExitCode.DIFFERENT
    assert "goes real server 10.244.9.9:8080: weight 1, 0 connections" in said()


def test_k10_a_stale_udp_flow_is_not_as_planned(place, said):
    there = place(service(protocol="UDP", port=53), endpoints(endpoint("10.244.1.5"), protocol="UDP"))
    there.fake.flows.append(flow("10.244.1.9:4000", "10.96.0.20:53", "10.244.7.7:8080"))
    assert there.explain("shop/web") == ExitCode.DIFFERENT
    assert said()[-1] == "delete UDP flow 10.244.1.9:4000 → 10.96.0.20:53 (10.244.7.7:8080)"


def test_what_a_service_asks_for_stands_in_its_first_line(place, said):
    asks = service(
        **PUBLIC, externalTrafficPolicy="Local", internalTrafficPolicy="Local", sessionAffinity="ClientIP",
        loadBalancerSourceRanges=["198.51.100.0/24"], healthCheckNodePort=32100,
    )  # fmt: skip
    place(asks).explain("shop/web")
    assert said()[0] == (
        "Service shop/web: externalTrafficPolicy Local, internalTrafficPolicy Local, sessionAffinity 10800 s, "
        "loadBalancerSourceRanges 198.51.100.0/24, healthCheckNodePort 32100"
    )


# Why an endpoint is used or not


def reasons(lines):
    """By endpoint: what stands behind its node."""
    return {line.split()[0]: " ".join(line.split()[2:]) for line in lines if re.match(r"10\.244\.\d\.\d+:8080 ", line)}


def test_each_endpoint_has_its_reason(place, said):
    found = (
        endpoint("10.244.1.5"),
        endpoint("10.244.1.6", ready=False),
        endpoint("10.244.1.7", ready=False, serving=True, terminating=True),
        endpoint("10.244.1.8", ready=False, serving=False, terminating=True),
    )
    place(service(), endpoints(*found)).explain("shop/web")
    assert reasons(said()) == {
        "10.244.1.5:8080": "used",
        "10.244.1.6:8080": "not ready",
        "10.244.1.7:8080": "terminating",
        "10.244.1.8:8080": "terminating, serves no more",
    }


def test_policy_local_gives_each_kind_of_address_its_own_reason(place, said):
    found = (endpoint("10.244.1.5"), endpoint("10.244.2.5", "n2"), endpoint("10.244.3.5", None))
    place(service(**PUBLIC, externalTrafficPolicy="Local"), endpoints(*found)).explain("shop/web")
    lines = said()
    assert "endpoint node behind cluster IPs behind other addresses" in lines
    assert reasons(lines) == {
        "10.244.1.5:8080": "used used",
        "10.244.2.5:8080": "used on another node, policy Local",
        "10.244.3.5:8080": "used its node is not known, policy Local",
    }


def test_hints_say_which_zone_an_endpoint_is_in(place, said):
    found = (endpoint("10.244.1.5", for_zones=["a"]), endpoint("10.244.2.5", "n2", for_zones=["b"]))
    place(service(), endpoints(*found)).explain("shop/web")
    assert reasons(said()) == {"10.244.1.5:8080": "used", "10.244.2.5:8080": "hinted to other zones, is in b"}


def test_hints_of_zones_are_not_followed_where_our_node_is_not_known_which_is_said(place, said):
    found = (endpoint("10.244.1.5", for_zones=["a"]), endpoint("10.244.2.5", "n2", for_zones=["b"]))
    place(service(), endpoints(*found), flags=("--hostname-override=n9",)).explain("shop/web")
    lines = said()
    assert "note Node n9 is not known, so hints for zones are not followed" in lines
    assert set(reasons(lines).values()) == {"used"}


@pytest.mark.parametrize(
    "slices,line",
    [
        pytest.param((), "no endpoint: there is none in this family's EndpointSlices", id="none at all"),
        pytest.param(
            (endpoints(endpoint("10.244.1.5"), port_name="web"),),
            'no endpoint: no EndpointSlice has a port of this name ("http") and protocol', id="none of the port's name",
        ),
    ],
)  # fmt: skip
def test_a_port_without_any_endpoint_says_why(place, said, slices, line):
    there = place(service(), *slices)
    assert there.explain("shop/web", "--from", "10.244.1.9") == ExitCode.OK
    lines = said()
    assert line in lines
    assert "no real server: whoever comes is refused" in lines
    assert "→ refused: its virtual server has no real server that takes new connections" in lines


# Why an address is served or not


def test_k19_a_frontend_that_an_older_service_has_says_so(place, said):
    older = service("older", ip="10.96.0.30", externalIPs=["203.0.113.9"], created="2025-01-01T00:00:00Z")
    newer = service(externalIPs=["203.0.113.9"], created="2026-01-01T00:00:00Z")
    there = place(older, newer)
    assert there.explain("shop/web") == ExitCode.OK
    assert "not served for this Service: shop/older has it, which is older" in said()


def test_k32_an_address_of_the_node_itself_is_served_and_not_bound(place, said):
    there = place(service(externalIPs=[HOST]))
    assert there.explain(f"{HOST}:80") == ExitCode.OK
    lines = said()
    assert "(an address of the node's own: it is served, and not bound)" in lines
    assert not any(line.startswith("ok address") for line in lines)


def test_k33_an_address_of_somebody_else_is_a_note(place, said):
    place(service(externalIPs=["10.244.7.7", "192.0.2.1"]), gateways=["192.0.2.1"]).explain("shop/web")
    lines = said()
    assert "note external IP 10.244.7.7 is in the pod network 10.244.0.0/16" in lines
    assert "note external IP 192.0.2.1 is the gateway of a default route of this node" in lines
    assert [line for line in lines if line.endswith("external IP")] == []


def test_of_two_ports_with_one_frontend_the_first_has_it(place, said):
    second = {"name": "second", "port": 30080, "protocol": "TCP"}
    asks = service(externalIPs=[HOST], type="NodePort", more={"nodePort": 30080})
    asks["spec"]["ports"].append(second)
    place(asks).explain(f"{HOST}:30080")
    lines = said()
    assert "ok entry KUBE-NODE-PORT-TCP 30080" in lines
    assert "ok entry KUBE-EXTERNAL-IP 192.0.2.11,tcp:30080" not in lines
    assert any(line.startswith("note") and "which comes first" in line for line in lines)


def test_k48_an_address_of_an_excluded_network_says_so(place, said):
    there = place(service(externalIPs=["203.0.113.9"]), flags=("--ipvs-exclude-cidrs=203.0.113.0/24",))
    there.explain("shop/web")
    assert "not served: its address is in --ipvs-exclude-cidrs" in said()


# A frontend


@pytest.mark.parametrize(
    "target,title",
    [
        pytest.param("10.96.0.20:80", "10.96.0.20:80/TCP cluster IP", id="a cluster IP"),
        pytest.param("203.0.113.20:80/tcp", "203.0.113.20:80/TCP load-balancer IP", id="a load-balancer IP"),
        pytest.param(f"{HOST}:30080", f"{HOST}:30080/TCP node port", id="a node port"),
    ],
)
def test_a_frontend_alone_is_shown_with_the_service_that_has_it(place, said, target, title):
    place(service(**PUBLIC), WEB[1]).explain(target)
    lines = said()
    assert lines[0] == "Service shop/web"
    assert [line for line in lines if re.match(r"\S+/TCP ", line)] == [title]


def test_a_frontends_answer_is_about_itself(place):
    there = place(service(**PUBLIC), WEB[1])
    del there.fake.state[Kind.VIRTUAL_SERVER][BALANCER]
    assert (there.explain("10.96.0.20:80"), there.explain("203.0.113.20:80")) == (ExitCode.OK, ExitCode.DIFFERENT)


def test_two_services_at_one_address_and_port_are_told_by_protocol(place, said):
    there = place(service("tcp", ip="10.96.0.20"), service("udp", ip="10.96.0.20", protocol="UDP"))
    with pytest.raises(IpvsproxyError, match="several Services"):
        there.explain("10.96.0.20:80")
    there.explain("10.96.0.20:80/UDP")
    assert said()[0] == "Service shop/udp"


def test_k48_a_virtual_server_that_is_not_ours_is_left(place, said):
    there = place(*WEB)
    there.fake.state[Kind.VIRTUAL_SERVER][vs_key("192.0.2.99", 80)] = VirtualServer("wlc")
    assert there.explain("192.0.2.99:80") == ExitCode.OK
    assert said()[:2] == ["192.0.2.99:80/TCP no Service has it", "left virtual server: it is not ours"]


def test_a_virtual_server_of_ours_that_no_service_wants_goes(place, said):
    there = place(*WEB)
    gone = vs_key("10.96.0.20", 81)
    there.fake.state[Kind.VIRTUAL_SERVER][gone] = VirtualServer("rr", VirtualServerFlags.PERSISTENT, 60)
    there.fake.state[Kind.REAL_SERVER][gone] = b""
    assert there.explain("10.96.0.20:81") == ExitCode.DIFFERENT
    assert said()[:2] == ["10.96.0.20:81/TCP no Service has it", "goes virtual server: rr persistent 60"]


@pytest.mark.parametrize("target", ["shop/nothing", "10.96.0.99:80", "10.96.0.20:80/UDP"])
def test_what_is_not_there_cannot_be_explained(place, target):
    with pytest.raises(IpvsproxyError, match="cannot explain"):
        place(*WEB).explain(target)


# The command line


def test_the_target_comes_first_and_flags_follow():
    command = parse_command_line(["explain", "shop/web", "--from", "node", "--manifests=objects"])
    assert isinstance(command, Explain)
    assert command.question == Question(ServiceName("shop", "web"), Client(None))


def test_it_has_a_help_of_its_own():
    assert parse_command_line(["explain", "-h"]) == Show(help_text(Commands.EXPLAIN))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["explain"], id="nothing to explain"),
        pytest.param(["explain", "web"], id="what is no target"),
        pytest.param(["explain", "shop/web", "--from=nobody"], id="what is no client"),
        pytest.param(["explain", "shop/web", "--manifests=/nowhere"], id="a folder that is not there"),
    ],
)
def test_trouble_answers_2(words, capsys):
    def fail(*_):
        raise ConfigError("--manifests /nowhere", "cannot be read")

    assert cli.run(words, cli.Programs(explain=fail)) == ExitCode.TROUBLE
    assert capsys.readouterr().err.startswith("Error: ")
