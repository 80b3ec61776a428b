"""`ipvsproxy explain --from`: which rules of ours a packet meets, and where it ends."""

from __future__ import annotations

import pytest

from ipvsproxy import explain_command
from ipvsproxy.config.targets import parse_client
from ipvsproxy.inspect.way import way_lines
from ipvsproxy.model.kernel_objects import Kind, SetEntry, VirtualServer
from ipvsproxy.this_node import look
from tests.builders import addr, blob, vs_key
from tests.explained import HOST, PUBLIC, WEB, endpoint, endpoints, service
from tests.tables.snat import CONFIGS, Is, Policy, Seen, Source, Way, cells

pytestmark = pytest.mark.usefixtures("quiet")
KEY = vs_key("10.96.0.20", 80)
BALANCER = vs_key("203.0.113.20", 80)


ENDPOINTS = {
    Policy.CLUSTER_HERE: [endpoint("10.244.1.5")],
    Policy.CLUSTER_ELSEWHERE: [endpoint("10.244.2.5", "n2")],
    Policy.LOCAL_HERE: [endpoint("10.244.1.5"), endpoint("10.244.2.5", "n2")],
    Policy.LOCAL_ELSEWHERE: [endpoint("10.244.2.5", "n2")],
}
CLIENTS = {
    Source.POD: "10.244.1.9",
    Source.NODE: "node",
    Source.OTHER_NODE: "192.0.2.12",
    Source.OUTSIDE: "198.51.100.7",
}
TARGETS = {
    Way.CLUSTER_IP: KEY,
    Way.NODE_PORT: vs_key(HOST, 30080),
    Way.LOAD_BALANCER: BALANCER,
    Way.EXTERNAL_IP: vs_key("203.0.113.21", 80),
}
ENDS = {
    Seen.CLIENT: "with its own source address",
    Seen.CLIENT_UNANSWERED: "with its own source address",
    Seen.SENT_TO: "with its own source address",
    Seen.NODE: "with the node's address as its source",
    Seen.REFUSED: "→ refused: its virtual server has no real server that takes new connections",
    Seen.DROPPED: "→ dropped",
}


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_k04_a_packet_goes_where_the_kernel_sends_it(place, config, policy):
    """Every cell of docs/snat.md, which tests/vm/test_snat.py sends through a kernel."""
    flags = [f"--masquerade-all={str(config.masquerade_all is Is.YES).lower()}"]
    flags += ["--cluster-cidr=10.244.0.0/16"] if config.knows_pods is Is.YES else []
    name = policy.value.split(",")[0]
    asks = service(
        **PUBLIC, externalIPs=["203.0.113.21"], externalTrafficPolicy=name, internalTrafficPolicy=name,
    )  # fmt: skip
    there = place(asks, endpoints(*ENDPOINTS[policy]), flags=flags)
    command = there.command("shop/web")
    seen = look(command.config, command.options, there.here)
    evidence = explain_command._evidence(seen, explain_command._host_view(seen))
    for cell, comes_of_it in cells():
        if (cell.config, cell.policy) == (config, policy):
            *_, last = way_lines(parse_client(CLIENTS[cell.source]), TARGETS[cell.way], evidence)
            assert last.endswith(ENDS[comes_of_it]), cell


def test_k03_a_pod_that_is_sent_to_itself_is_masqueraded(place, said):
    place(*WEB).explain("10.96.0.20:80", "--from", "10.244.1.5")
    assert [line for line in said() if line.startswith("→")] == [
        "→ 10.244.2.5:8080, with its own source address",
        "→ 10.244.1.5:8080 (itself), with the node's address as its source",
    ]


@pytest.mark.parametrize(
    "client,end",
    [
        pytest.param("198.51.100.7", "→ 10.244.1.5:8080, 10.244.2.5:8080, with the node's address", id="in the ranges"),
        pytest.param("198.51.101.7", "→ dropped", id="outside them"),
        pytest.param("node", "→ dropped", id="the node, which is outside them"),
    ],
)
def test_k36_source_ranges_decide_who_comes_in(place, said, client, end):
    place(service(**PUBLIC, loadBalancerSourceRanges=["198.51.100.0/24"]), WEB[1]).explain(
        "203.0.113.20:80", "--from", client
    )
    (found,) = [line for line in said() if line.startswith("→")]
    assert found.startswith(end)


def test_the_rules_that_a_packet_meets_are_shown_hook_by_hook(place, said):
    place(service(**PUBLIC, loadBalancerSourceRanges=["198.51.100.0/24"]), WEB[1]).explain(
        "203.0.113.20:80", "--from", "192.0.2.12"
    )
    lines = said()
    at = lines.index("A packet from 192.0.2.12 to 203.0.113.20:80/TCP")
    assert lines[at + 1 : lines.index("→ dropped")] == [
        "nat PREROUTING",
        "-A PREROUTING -j KUBE-SERVICES",
        "-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER",
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ",
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT",
        "filter INPUT",
        "-A INPUT -j KUBE-PROXY-FIREWALL",
        "-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL",
        "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP",
    ]


def test_k02_the_interface_tells_pods_where_the_configuration_says_so(place, said):
    flags = ("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth")
    there = place(*WEB, flags=flags)
    for client, end in (("10.1.1.1%veth7", "its own source address"), ("10.1.1.1", "the node's address as its source")):
        there.explain("10.96.0.20:80", "--from", client)
        assert next(line for line in said() if line.startswith("→")).endswith(end)


def test_k31_another_port_of_a_vip_is_refused(place, said):
    there = place(*WEB)
    gone = vs_key("10.96.0.20", 81)
    there.fake.state[Kind.VIRTUAL_SERVER][gone] = VirtualServer("rr")
    there.fake.state[Kind.REAL_SERVER][gone] = blob(("10.244.1.5", 8080))
    there.explain("10.96.0.20:81", "--from", "198.51.100.7")
    assert "→ refused" in said()


def test_it_is_the_kernels_rules_and_sets_that_a_packet_meets_not_the_plans(place, said):
    there = place(*WEB)
    del there.fake.state[Kind.ACCEPT_ENTRY][SetEntry("KUBE-CLUSTER-IP", addr("10.96.0.20"), 6, 80)]
    there.explain("10.96.0.20:80", "--from", "198.51.100.7")
    assert "→ refused" in said()


@pytest.mark.parametrize(
    "damage,end",
    [
        pytest.param(lambda state: state[Kind.ADDRESS].clear(), "leaves the node again", id="no address"),
        pytest.param(lambda state: state[Kind.VIRTUAL_SERVER].clear(), "the node itself answers", id="no server"),
    ],
)
def test_without_one_of_its_objects_a_packet_ends_elsewhere(place, said, damage, end):
    there = place(*WEB)
    damage(there.fake.state)
    there.explain("10.96.0.20:80", "--from", "10.244.1.9")
    assert any(line.startswith(f"→ {end}") for line in said())


def test_k36_a_packet_to_an_address_that_is_gone_is_forwarded_and_meets_the_source_ranges_there(place, said):
    there = place(service(**PUBLIC, loadBalancerSourceRanges=["198.51.100.0/24"]), WEB[1])
    del there.fake.state[Kind.ADDRESS][addr("203.0.113.20")]
    there.explain("203.0.113.20:80", "--from", "192.0.2.12")
    lines = said()
    assert lines[lines.index("filter FORWARD") + 1] == "-A FORWARD -j KUBE-PROXY-FIREWALL"
    assert "→ dropped" in lines


def test_a_client_of_the_other_family_cannot_come(place, said):
    place(*WEB).explain("10.96.0.20:80", "--from", "2001:db8::7")
    assert "→ cannot come: its address is of the other family" in said()
