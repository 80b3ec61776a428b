"""Masquerading comes before the endpoints that need it and goes after them, whatever changes at once (K24)."""

from __future__ import annotations

import errno
from itertools import permutations, product

import msgspec
import pytest

from ipvsproxy.model.enums import Protocol
from ipvsproxy.model.kernel_objects import Kind, SetEntry, Verb
from tests.builders import FakeClock, addr, vs_key
from tests.clusters import Node, Svc, cluster
from tests.witness import Witness, is_masqueraded, served

HERE, THERE = "10.244.1.5", "10.244.2.5"
VIP, NODE = "203.0.113.20", "192.0.2.11"
BOTH = Svc("a", endpoints=((HERE, True), (THERE, True)), here=(HERE,))
OUTSIDE = {addr(VIP), addr(NODE)}
FRONTENDS = {
    "load balancer": msgspec.structs.replace(BOTH, ingress=((VIP, "VIP"),)),
    "external IP": msgspec.structs.replace(BOTH, external_ips=(VIP,)),
    **{
        f"node port of {protocol}": msgspec.structs.replace(BOTH, ports=((80, protocol),), node_ports=(30080,))
        for protocol in ("TCP", "UDP", "SCTP")
    },
}


def with_policy(service: Svc, policy: str) -> Svc:
    return msgspec.structs.replace(service, external_policy=policy)


@pytest.mark.parametrize("name", FRONTENDS)
@pytest.mark.parametrize("before, after", [*permutations(("Cluster", "Local"))])
def test_k24_while_the_policy_flips_no_endpoint_of_another_node_sees_a_client_unmasqueraded(name, before, after):
    node = Node(host=(NODE,))
    node.sync(cluster(with_policy(FRONTENDS[name], before)))
    witness = Witness(node.fake, {addr(NODE)})
    node.sync(cluster(with_policy(FRONTENDS[name], after)))
    witness.check_masquerading()


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param("load balancer", "external IP", id="a load balancer's address becomes an external IP"),
        pytest.param("external IP", "load balancer", id="an external IP becomes a load balancer's address"),
    ],
)
@pytest.mark.parametrize("policies", [*permutations(("Cluster", "Local"))])
def test_k24_so_it_is_where_the_kind_of_an_address_changes_too(before, after, policies):
    node = Node()
    node.sync(cluster(with_policy(FRONTENDS[before], policies[0])))
    witness = Witness(node.fake)
    node.sync(cluster(with_policy(FRONTENDS[after], policies[1])))
    witness.check_masquerading()


@pytest.mark.parametrize("before", ["load balancer", "external IP"])
@pytest.mark.parametrize("after", ["load balancer", "external IP"])
@pytest.mark.parametrize("policies", [*permutations(("Cluster", "Local"))])
@pytest.mark.parametrize("moves", ["goes", "comes"])
def test_k24_so_it_is_where_an_interface_of_the_node_loses_or_gets_that_very_address(before, after, policies, moves):
    host = (VIP,), ()
    had, has = host if moves == "goes" else reversed(host)
    node = Node(host=had)
    node.sync(cluster(with_policy(FRONTENDS[before], policies[0])))
    witness = Witness(node.fake, {*map(addr, has)}, lost={*map(addr, had)})
    node.has(*has)
    node.sync(cluster(with_policy(FRONTENDS[after], policies[1])))
    witness.check_masquerading()
    witness.check_sources()
    witness.check()


def test_k24_so_it_is_where_the_policy_flips_while_nobody_watches_and_somebody_clears_ipvs():
    """Accept entries go until their virtual server stands again, and are there in the end all the same."""
    before = Node()
    before.sync(cluster(with_policy(FRONTENDS["load balancer"], "Local")))
    for kind in (Kind.VIRTUAL_SERVER, Kind.REAL_SERVER):
        before.fake.state[kind].clear()
    witness = Witness(before.fake)
    Node(before.fake).sync(cluster(with_policy(FRONTENDS["load balancer"], "Cluster")))
    witness.check_masquerading()
    assert vs_key(VIP, 80) in served(before.fake.state)


AT_ONE_ADDRESS = {  # with the number of a node port, which is another Service's when it is another kind of address
    "node port": Svc("a", endpoints=BOTH.endpoints, here=BOTH.here, ports=((80, "TCP"),), node_ports=(30080,)),
    "external IP": Svc("b", ("10.96.0.21",), ((30080, "TCP"),), BOTH.endpoints, here=BOTH.here, external_ips=(NODE,)),
    "load balancer": Svc(
        "c",
        ("10.96.0.22",),
        ((30080, "TCP"),),
        BOTH.endpoints,
        here=BOTH.here,
        ingress=((NODE, "VIP"),),
        source_ranges=("198.51.100.7/32",),
    ),
    "both": Svc(
        "d",
        ("10.96.0.23",),
        ((30080, "TCP"),),
        BOTH.endpoints,
        here=BOTH.here,
        ingress=((NODE, "VIP"),),
        external_ips=(NODE,),
    ),
}


@pytest.mark.parametrize("protocol", ["TCP", "UDP", "SCTP"])
@pytest.mark.parametrize(
    "before, after", [kinds for kinds in product(AT_ONE_ADDRESS, repeat=2) if "node port" in kinds]
)
@pytest.mark.parametrize("policies", [*product(("Cluster", "Local", "Local without endpoints here"), repeat=2)])
@pytest.mark.parametrize("hosts", [((NODE,), (NODE,)), ((NODE,), ()), ((), (NODE,))], ids=["has", "loses", "gets"])
def test_k24_so_it_is_where_a_node_port_becomes_another_kind_of_address_or_the_other_way_round(
    protocol, before, after, policies, hosts
):
    """At the node's own address, also one that it loses or gets in the same sync."""
    had, has = hosts
    node = Node(host=had)
    node.sync(cluster(at_one_address(before, policies[0], protocol)))
    witness = Witness(node.fake, {*map(addr, has)}, lost={*map(addr, had)} - {*map(addr, has)})
    node.has(*has)
    node.sync(cluster(at_one_address(after, policies[1], protocol)))
    witness.check_masquerading()
    witness.check_sources()
    witness.check()


@pytest.mark.parametrize("policies", [*product(("Cluster", "Local"), repeat=2)])
def test_k34_an_address_that_an_interface_got_is_open_there_also_where_a_crash_left_only_what_closes_it(policies):
    before = Node()
    before.sync(cluster(at_one_address("external IP", policies[0], "TCP")))
    fake = before.fake
    del fake.state[Kind.ADDRESS][addr(NODE)]
    witness = Witness(fake, {addr(NODE)})
    Node(fake, host=(NODE,)).sync(cluster(at_one_address("node port", policies[1], "TCP")))
    witness.check()
    assert vs_key(NODE, 30080) in witness.before


def at_one_address(name: str, policy: str, protocol: str) -> Svc:
    service = AT_ONE_ADDRESS[name]
    here = () if "without" in policy else service.here
    ports = tuple((number, protocol) for number, _ in service.ports)
    return msgspec.structs.replace(service, ports=ports, external_policy=policy.partition(" ")[0], here=here)


AT_VIP = (addr(VIP), 6, 80)
PORTS = {"TCP": "TCP", "UDP": "UDP", "SCTP": "SCTP-HASH"}


def at_node_port(protocol: str, prefix: str) -> SetEntry:
    name = f"KUBE-NODE-PORT-{prefix}{PORTS[protocol]}"
    return SetEntry(name, addr(NODE), 132, 30080) if protocol == "SCTP" else SetEntry(name, port=30080)


REFUSALS = {  # what there is before, what after, and what of it is refused, whatever its verb where it has none
    "an external IP's entry, since it comes": (
        None,
        ("external IP", "Cluster"),
        (Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP", *AT_VIP)),
    ),
    "an external IP's entry, since its policy becomes Cluster": (
        ("external IP", "Local"),
        ("external IP", "Cluster"),
        (Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP", *AT_VIP)),
    ),
    "an external IP's entry, since it was a load balancer's": (
        ("load balancer", "Cluster"),
        ("external IP", "Cluster"),
        (Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP", *AT_VIP)),
    ),
    "a load balancer's entry, since it was an external IP": (
        ("external IP", "Local"),
        ("load balancer", "Cluster"),
        (Verb.ADD, Kind.ACCEPT_ENTRY, SetEntry("KUBE-LOAD-BALANCER", *AT_VIP)),
    ),
    "the end of a load balancer's exception": (
        ("load balancer", "Local"),
        ("load balancer", "Cluster"),
        (Verb.DELETE, Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-LOCAL", *AT_VIP)),
    ),
    "the leaving of those who need it": (
        ("external IP", "Cluster"),
        ("external IP", "Local"),
        (None, Kind.REAL_SERVER, vs_key(VIP, 80)),
    ),
    **{
        f"the entry of a node port of {protocol}": (
            None,
            (f"node port of {protocol}", "Cluster"),
            (Verb.ADD, Kind.SUPPORT_ENTRY, at_node_port(protocol, "")),
        )
        for protocol in PORTS
    },
    **{
        f"the end of the exception of a node port of {protocol}": (
            (f"node port of {protocol}", "Local"),
            (f"node port of {protocol}", "Cluster"),
            (Verb.DELETE, Kind.SUPPORT_ENTRY, at_node_port(protocol, "LOCAL-")),
        )
        for protocol in PORTS
    },
    **{
        f"the leaving of those who need it at a node port of {protocol}": (
            (f"node port of {protocol}", "Cluster"),
            (f"node port of {protocol}", "Local"),
            (None, Kind.REAL_SERVER, vs_key(NODE, 30080, Protocol[protocol])),
        )
        for protocol in PORTS
    },
}
OTHER = Svc("o", ("10.96.0.29",))
UNRELATED = Svc("u", ("10.96.0.28",))


@pytest.mark.parametrize("host", [pytest.param((), id="bound"), pytest.param((VIP,), id="of an interface")])
@pytest.mark.parametrize("name", REFUSALS)
def test_k24_where_the_kernel_refuses_what_masquerades_who_needs_it_waits(name, host):
    before, after, (verb, kind, key) = REFUSALS[name]
    node, right = Node(host=(NODE, *host)), Node(host=(NODE, *host))
    node.sync(cluster(OTHER, *(with_policy(FRONTENDS[kind], policy) for kind, policy in filter(None, (before,)))))
    wanted = cluster(OTHER, with_policy(FRONTENDS[after[0]], after[1]))
    right.sync(wanted)
    node.fake.faults = {(each, kind, key): errno.ENOMEM for each in ([verb] if verb else Verb)}
    witness = Witness(node.fake, {*map(addr, (NODE, *host))})
    node.sync(wanted)
    assert node.reconciler.figures.refused
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


ACCEPTING = {("external IP", "Cluster"): "KUBE-EXTERNAL-IP", ("external IP", "Local"): "KUBE-EXTERNAL-IP-LOCAL"} | {
    ("load balancer", policy): "KUBE-LOAD-BALANCER" for policy in ("Cluster", "Local")
}


@pytest.mark.parametrize(
    "before, after", [pair for pair in permutations(ACCEPTING, 2) if ACCEPTING[pair[0]] != ACCEPTING[pair[1]]]
)
def test_k34_who_comes_in_by_another_set_still_does_while_the_new_entry_is_refused(before, after):
    node, right = Node(), Node()
    node.sync(cluster(OTHER, with_policy(FRONTENDS[before[0]], before[1])))
    wanted = cluster(OTHER, with_policy(FRONTENDS[after[0]], after[1]))
    right.sync(wanted)
    entry = SetEntry(ACCEPTING[after], *AT_VIP)
    node.fake.faults = {(Verb.ADD, Kind.ACCEPT_ENTRY, entry): errno.ENOMEM}
    witness = Witness(node.fake)
    node.sync(wanted)
    witness.check_masquerading(after=right.fake.state)
    assert vs_key(VIP, 80) in served(node.fake.state)
    settles(node, witness, right)
    witness.check()


AT_NODE = (addr(NODE), 6, 30080)
AT_NODE_REFUSALS = {  # at the node's own address; the first pair is before, the second after
    "the end of an external IP's exception": (
        ("external IP", "Local"),
        ("node port", "Cluster"),
        (Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP-LOCAL", *AT_NODE)),
    ),
    "the end of a load balancer's exception": (
        ("load balancer", "Local"),
        ("node port", "Cluster"),
        (Kind.SUPPORT_ENTRY, SetEntry("KUBE-LOAD-BALANCER-LOCAL", *AT_NODE)),
    ),
    "a node port's entry": (
        ("external IP", "Local"),
        ("node port", "Cluster"),
        (Kind.SUPPORT_ENTRY, SetEntry("KUBE-NODE-PORT-TCP", port=30080)),
    ),
    "an external IP's entry": (
        ("node port", "Cluster"),
        ("external IP", "Cluster"),
        (Kind.ACCEPT_ENTRY, SetEntry("KUBE-EXTERNAL-IP", *AT_NODE)),
    ),
    "a load balancer's entry": (
        ("node port", "Cluster"),
        ("load balancer", "Cluster"),
        (Kind.ACCEPT_ENTRY, SetEntry("KUBE-LOAD-BALANCER", *AT_NODE)),
    ),
    "what drops clients where no endpoint is": (
        ("node port", "Cluster"),
        ("external IP", "Local without endpoints here"),
        (Kind.GUARD_ENTRY, SetEntry("KUBE-NO-LOCAL-ENDPOINTS", *AT_NODE)),
    ),
    **{
        f"the leaving of those behind a node port that becomes {a} {name}": (
            ("node port", "Cluster"),
            (name, "Local"),
            (Kind.REAL_SERVER, vs_key(NODE, 30080)),
        )
        for a, name in (("an", "external IP"), ("a", "load balancer"))
    },
}


@pytest.mark.parametrize("name", AT_NODE_REFUSALS)
def test_k24_where_the_kernel_refuses_a_part_of_a_change_between_kinds_of_addresses_who_needs_masquerading_waits(name):
    before, after, (kind, key) = AT_NODE_REFUSALS[name]
    node, right = Node(host=(NODE,)), Node(host=(NODE,))
    node.sync(cluster(OTHER, at_one_address(*before, "TCP")))
    wanted = cluster(OTHER, at_one_address(*after, "TCP"))
    right.sync(wanted)
    node.fake.faults = {(verb, kind, key): errno.ENOMEM for verb in Verb}
    witness = Witness(node.fake, {addr(NODE)})
    node.sync(wanted)
    assert node.reconciler.figures.refused
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("host", [pytest.param((), id="bound"), pytest.param((VIP,), id="of an interface")])
def test_k24_masquerading_outlives_an_exception_that_is_refused_to_go_with_its_frontend(host):
    node, right = Node(host=host), Node(host=host)
    node.sync(cluster(OTHER, with_policy(FRONTENDS["external IP"], "Local")))
    entry = SetEntry("KUBE-EXTERNAL-IP-LOCAL", *AT_VIP)
    node.fake.faults = {(Verb.DELETE, Kind.ACCEPT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER, with_policy(FRONTENDS["external IP"], "Cluster")))
    right.sync(cluster(OTHER))
    witness = Witness(node.fake, {*map(addr, host)})
    node.sync(cluster(OTHER))
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("host", [pytest.param((), id="bound"), pytest.param((VIP,), id="of an interface")])
def test_k24_so_it_does_a_load_balancers_where_the_address_is_an_external_ip_too(host):
    node, right = Node(host=host), Node(host=host)
    both = msgspec.structs.replace(BOTH, ingress=((VIP, "VIP"),), external_ips=(VIP,))
    node.sync(cluster(OTHER, with_policy(both, "Local")))
    entry = SetEntry("KUBE-LOAD-BALANCER-LOCAL", *AT_VIP)
    node.fake.faults = {(Verb.DELETE, Kind.SUPPORT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER, with_policy(both, "Cluster")))
    right.sync(cluster(OTHER))
    witness = Witness(node.fake, {*map(addr, host)})
    node.sync(cluster(OTHER))
    witness.check_masquerading(after=right.fake.state)
    node.fake.faults = {}
    node.pass_time(60)
    assert node.fake.state == right.fake.state


def test_k24_so_it_does_one_that_is_wanted_again_until_who_needs_it_has_left():
    node, right = Node(host=(NODE,)), Node(host=(NODE,))
    local = cluster(OTHER, at_one_address("load balancer", "Local", "TCP"))
    node.sync(local)
    entry = SetEntry("KUBE-LOAD-BALANCER-LOCAL", *AT_NODE)
    node.fake.faults = {(Verb.DELETE, Kind.SUPPORT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER, at_one_address("node port", "Cluster", "TCP")))
    right.sync(local)
    witness = Witness(node.fake, {addr(NODE)})
    node.tell(local)
    wake(node)
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k34_what_waits_until_somebody_has_left_waits_no_longer_whatever_else_is_refused(name):
    """What is refused for long is tried once a minute: a frontend that has nothing to do with it must not wait so."""
    node, right = Node(host=(NODE,)), Node()
    wanted = cluster(OTHER, at_one_address(name, "Local", "TCP"))
    right.sync(wanted)
    node.sync(cluster(OTHER, UNRELATED, at_one_address("node port", "Local", "TCP")))
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key("10.96.0.28", 80)): errno.ENOMEM}
    node.sync(cluster(OTHER, at_one_address("node port", "Local", "TCP")))
    node.pass_time(600)
    witness = Witness(node.fake, lost={addr(NODE)})
    node.has()
    node.tell(wanted)
    result = node.reconciler.sync()
    while result.retry_at is not None and result.retry_at <= node.clock.now:
        result = node.reconciler.sync()
    assert vs_key(NODE, 30080) in served(node.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("host", [pytest.param((), id="bound"), pytest.param((VIP,), id="of an interface")])
def test_k24_no_frontend_opens_beside_an_exception_that_a_former_one_left_behind_since_it_is_refused_to_go(host):
    node, right = Node(host=host), Node(host=host)
    node.sync(cluster(OTHER, with_policy(FRONTENDS["load balancer"], "Local")))
    entry = SetEntry("KUBE-LOAD-BALANCER-LOCAL", *AT_VIP)
    node.fake.faults = {(Verb.DELETE, Kind.SUPPORT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER))
    wanted = cluster(OTHER, with_policy(FRONTENDS["load balancer"], "Cluster"))
    right.sync(wanted)
    witness = Witness(node.fake, {*map(addr, host)})
    node.sync(wanted)
    node.pass_time(60)
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


def test_k24_nobody_waits_at_a_node_port_of_policy_local_for_what_would_not_masquerade_it_either():
    node = Node()
    node.sync(cluster(OTHER))
    trace = SetEntry("KUBE-NODE-PORT-IPS", addr(NODE))
    node.fake.faults = {(Verb.ADD, Kind.SUPPORT_ENTRY, trace): errno.ENOMEM}
    node.has(NODE)
    node.sync(cluster(OTHER, with_policy(FRONTENDS["node port of TCP"], "Local")))
    assert vs_key(NODE, 30080) in served(node.fake.state, {addr(NODE)})


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k24_so_it_is_at_a_new_port_of_an_address_that_goes_over_to_an_interface(name):
    node, right = Node(), Node(host=(VIP,))
    node.sync(cluster(OTHER, FRONTENDS[name]))
    wanted = cluster(OTHER, msgspec.structs.replace(FRONTENDS[name], ports=((81, "TCP"),)))
    right.sync(wanted)
    entry = SetEntry(ACCEPTING[name, "Cluster"], addr(VIP), 6, 81)
    node.fake.faults = {(Verb.ADD, Kind.ACCEPT_ENTRY, entry): errno.ENOMEM}
    witness = Witness(node.fake, {addr(VIP)})
    node.has(VIP)
    node.sync(wanted)
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("name", ["load balancer", "external IP", "node port of TCP"])
def test_k24_the_end_of_masquerading_is_woken_where_who_needs_it_leaves_at_the_second_try(name):
    """Taking the weight away is refused, and in the same sync nobody is connected: it is deleted."""
    node, right = Node(host=(NODE,)), Node(host=(NODE,))
    node.sync(cluster(OTHER, with_policy(FRONTENDS[name], "Cluster")))
    wanted = cluster(OTHER, with_policy(FRONTENDS[name], "Local"))
    right.sync(wanted)
    key = vs_key(NODE, 30080) if name == "node port of TCP" else vs_key(VIP, 80)
    node.fake.faults = {(Verb.EDIT, Kind.REAL_SERVER, key): errno.ENOMEM}
    node.tell(wanted)
    wake(node)
    assert node.fake.state == right.fake.state


def test_k24_who_leaves_in_the_very_sync_that_turns_his_frontend_into_another_kind_of_address_lets_nothing_wait():
    node, right = Node(), Node()
    node.sync(cluster(OTHER, with_policy(FRONTENDS["external IP"], "Cluster")))
    node.fake.faults = {(verb, Kind.REAL_SERVER, vs_key(VIP, 80)): errno.ENOMEM for verb in Verb}
    node.sync(cluster(OTHER, with_policy(FRONTENDS["external IP"], "Local")))
    node.fake.faults = {}
    node.clock.now += 60
    wanted = cluster(OTHER, with_policy(FRONTENDS["load balancer"], "Local"))
    right.sync(wanted)
    witness = Witness(node.fake)
    node.tell(wanted)
    wake(node)
    witness.check_masquerading()
    assert node.fake.state == right.fake.state


@pytest.mark.parametrize("name", FRONTENDS)
def test_k24_and_k48_what_tells_of_a_virtual_server_on_an_address_of_the_node_stays_while_it_is_refused_to_go(name):
    host = (NODE, VIP)
    node, right = Node(host=host), Node(host=host)
    node.sync(cluster(OTHER, FRONTENDS[name]))
    right.sync(cluster(OTHER))
    keys = [key for key in node.fake.state[Kind.VIRTUAL_SERVER] if key.address in OUTSIDE]
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, key): errno.ENOMEM for key in keys}
    witness = Witness(node.fake, OUTSIDE)
    node.sync(cluster(OTHER))
    assert keys
    assert set(keys) <= set(node.fake.state[Kind.VIRTUAL_SERVER])
    witness.check_masquerading(after=right.fake.state)
    again = Node(node.fake, host=host)
    again.sync(cluster(OTHER))
    node.fake.faults = {}
    again.pass_time(60)
    assert node.fake.state == right.fake.state


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_k24_and_k48_so_it_is_where_an_interface_gets_its_address_in_that_very_moment(name, policy):
    node, right = Node(), Node(host=(VIP,))
    node.sync(cluster(OTHER, with_policy(FRONTENDS[name], policy)))
    right.sync(cluster(OTHER))
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key(VIP, 80)): errno.ENOMEM}
    witness = Witness(node.fake, {addr(VIP)})
    node.has(VIP)
    node.sync(cluster(OTHER))
    assert vs_key(VIP, 80) in node.fake.state[Kind.VIRTUAL_SERVER]
    assert addr(VIP) not in node.fake.state[Kind.ADDRESS]
    witness.check_masquerading(after=right.fake.state)
    again = Node(node.fake, host=(VIP,))
    again.sync(cluster(OTHER))
    node.fake.faults = {}
    again.pass_time(60)
    assert node.fake.state == right.fake.state


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k48_and_where_its_address_was_bound_what_closed_that_stays(name):
    """But not once an interface gets the address: that would be closed by it (K32)."""
    node, right, owner = Node(), Node(), Node(host=(VIP,))
    node.sync(cluster(OTHER, FRONTENDS[name]))
    for each in (right, owner):
        each.sync(cluster(OTHER))
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key(VIP, 80)): errno.ENOMEM}
    node.sync(cluster(OTHER))
    again = Node(node.fake)
    again.sync(cluster(OTHER))
    assert again.fake.state[Kind.BOUND_ENTRY].keys() - right.fake.state[Kind.BOUND_ENTRY].keys() == {
        SetEntry("KUBE-IPVS-IPS", addr(VIP))
    }
    again.has(VIP)
    again.pass_time(60)
    assert again.fake.state[Kind.BOUND_ENTRY] == right.fake.state[Kind.BOUND_ENTRY]
    node.fake.faults = {}
    again.pass_time(60)
    assert node.fake.state == owner.fake.state


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_k24_what_was_refused_to_go_serves_nobody_once_an_interface_opens_its_address(name, policy):
    node, right = Node(), Node(host=(VIP,))
    node.sync(cluster(OTHER, with_policy(FRONTENDS[name], policy)))
    right.sync(cluster(OTHER))
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, vs_key(VIP, 80)): errno.ENOMEM}
    node.sync(cluster(OTHER))
    witness = Witness(node.fake, {addr(VIP)})
    node.has(VIP)
    node.sync()
    assert vs_key(VIP, 80) not in served(node.fake.state, {addr(VIP)})
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k24_what_is_closed_for_a_refusal_serves_nobody_until_it_is_taken_though_an_interface_opens_its_address(name):
    node, right = closed_for_a_refusal(name), Node(host=(VIP,))
    wanted = cluster(OTHER, FRONTENDS[name])
    right.sync(wanted)
    witness = Witness(node.fake, {addr(VIP)})
    node.has(VIP)
    node.sync()
    assert vs_key(VIP, 80) not in served(node.fake.state, {addr(VIP)})
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)
    assert vs_key(VIP, 80) in served(node.fake.state, {addr(VIP)})


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k24_so_it_is_where_the_interface_gets_its_address_while_no_proxy_runs(name):
    node, right = closed_for_a_refusal(name), Node(host=(VIP,))
    wanted = cluster(OTHER, FRONTENDS[name])
    right.sync(wanted)
    witness = Witness(node.fake, {addr(VIP)})
    again = Node(node.fake, host=(VIP,))
    again.sync(wanted)
    assert vs_key(VIP, 80) not in served(node.fake.state, {addr(VIP)})
    witness.check_masquerading(after=right.fake.state)
    settles(again, witness, right)


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k24_and_where_the_proxy_ended_before_it_was_taken_it_serves_at_once_when_that_is(name):
    node, right = Node(), Node(host=(VIP,))
    wanted = cluster(OTHER, FRONTENDS[name])
    node.sync(wanted)
    right.sync(wanted)
    entry = SetEntry(ACCEPTING[name, "Cluster"], *AT_VIP)
    del node.fake.state[Kind.ACCEPT_ENTRY][entry]
    witness = Witness(node.fake, {addr(VIP)})
    again = Node(node.fake, host=(VIP,))
    again.tell(wanted)
    wake(again)
    witness.check_masquerading()
    assert again.clock.now == FakeClock().now
    assert node.fake.state == right.fake.state


@pytest.mark.parametrize("name", ["load balancer", "external IP"])
def test_k24_so_it_is_where_it_becomes_one_of_policy_local_in_that_very_moment(name):
    node, right = closed_for_a_refusal(name), Node(host=(VIP,))
    wanted = cluster(OTHER, with_policy(FRONTENDS[name], "Local"))
    right.sync(wanted)
    witness = Witness(node.fake, {addr(VIP)})
    node.has(VIP)
    node.sync(wanted)
    witness.check_masquerading(after=right.fake.state)
    settles(node, witness, right)


def test_k24_who_is_to_leave_has_left_when_a_frontend_opens_that_was_closed_for_a_refusal():
    node, right = Node(), Node()
    entry = SetEntry("KUBE-EXTERNAL-IP", *AT_VIP)
    node.fake.faults = {(Verb.ADD, Kind.ACCEPT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER, with_policy(FRONTENDS["external IP"], "Cluster")))
    node.fake.faults = {}
    wanted = cluster(OTHER, with_policy(FRONTENDS["external IP"], "Local"))
    right.sync(wanted)
    witness = Witness(node.fake)
    node.sync(wanted)
    witness.check_masquerading()
    assert node.fake.state == right.fake.state


@pytest.mark.parametrize("goes", [pytest.param(True, id="with its Service"), pytest.param(False, id="alone")])
@pytest.mark.parametrize("protocol", PORTS)
def test_k48_what_tells_of_a_node_port_on_an_address_that_the_node_loses_stays_while_it_is_refused_to_go(
    protocol, goes
):
    node, right = Node(host=(NODE,)), Node()
    service = FRONTENDS[f"node port of {protocol}"]
    node.sync(cluster(OTHER, service))
    wanted = cluster(OTHER, *(() if goes else (service,)))
    right.sync(wanted)
    key = vs_key(NODE, 30080, Protocol[protocol])
    node.fake.faults = {(Verb.DELETE, Kind.VIRTUAL_SERVER, key): errno.ENOMEM}
    node.has()
    node.sync(wanted)
    assert key in node.fake.state[Kind.VIRTUAL_SERVER]
    again = Node(node.fake)
    again.sync(wanted)
    node.fake.faults = {}
    again.pass_time(60)
    assert node.fake.state == right.fake.state


def closed_for_a_refusal(name: str) -> Node:
    """One whose kernel does not take what lets clients in to this frontend of policy Cluster."""
    node = Node()
    entry = SetEntry(ACCEPTING[name, "Cluster"], *AT_VIP)
    node.fake.faults = {(Verb.ADD, Kind.ACCEPT_ENTRY, entry): errno.ENOMEM}
    node.sync(cluster(OTHER, FRONTENDS[name]))
    return node


def settles(node: Node, witness: Witness, right: Node) -> None:
    """Once the kernel refuses nothing more, it becomes as if it never had, and on the way there all are masqueraded."""
    node.fake.faults = {}
    node.pass_time(60)
    witness.check_masquerading(after=right.fake.state)
    assert node.fake.state == right.fake.state


def wake(node: Node) -> None:
    """One sync, and more only when it asks to be woken."""
    result = node.reconciler.sync()
    while result.retry_at is not None:
        node.clock.now = max(node.clock.now, result.retry_at)
        result = node.reconciler.sync()
    assert not result.waiting


def test_k24_an_entry_of_the_node_that_tells_node_ports_is_waited_for_too():
    """Without it their rules are not asked."""
    node, right = Node(), Node(host=(NODE,))
    wanted = cluster(OTHER, FRONTENDS["node port of TCP"])
    right.sync(wanted)
    node.sync(cluster(OTHER))
    trace = SetEntry("KUBE-NODE-PORT-IPS", addr(NODE))
    node.fake.faults = {(Verb.ADD, Kind.SUPPORT_ENTRY, trace): errno.ENOMEM}
    witness = Witness(node.fake, {addr(NODE)})
    node.has(NODE)
    node.sync(wanted)
    witness.check_masquerading(after=right.fake.state)
    assert node.reconciler.figures.refused == {Kind.SUPPORT_ENTRY: 1}
    settles(node, witness, right)


@pytest.mark.parametrize("name", FRONTENDS)
def test_k24_a_frontend_of_policy_local_masquerades_nobody_from_its_first_moment_to_its_last(name):
    node = Node(host=(NODE,))
    other = Svc("b", ("10.96.0.22",))
    node.sync(cluster(other))
    moments: list[bool] = []

    def look() -> None:
        frontends = {key for key in served(node.fake.state, {addr(NODE)}) if key.address in OUTSIDE}
        moments.extend(is_masqueraded(node.fake.state, key) for key in frontends)

    node.fake.after_message = look
    node.sync(cluster(other, with_policy(FRONTENDS[name], "Local")))
    node.sync(cluster(other))
    assert moments
    assert not any(moments)
