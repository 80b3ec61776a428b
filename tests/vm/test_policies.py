"""Traffic policies with packets: who reaches what, seen from where, on a node with and on one without endpoints.

`HERE` has endpoints on the node and on another one, `ELSEWHERE` only there, so that for it the node is one without
endpoints. docs/snat.md says who is masqueraded; here it is what a client of each kind gets, over TCP and UDP.
"""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, OUTSIDE_ADDRESSES, REMOTE_ADDRESSES
from tests.lab.traffic import Conversation, Transport, ask
from tests.vm.foreign import VERSIONS, foreign_rules, packets
from tests.vm.nodes import ProxyNode
from tests.vm.places import A1, A2, A3, B1, BRIDGE, every_family, every_transport, ready

BOTH = ((80, "TCP"), (80, "UDP"))
SILENCE_S = 0.5
"""How long a client listens where nothing should come. That it was dropped is shown by a counter."""

HERE = Svc(
    "here",
    ("10.96.0.40", "2001:db8:96::40"),
    BOTH,
    ready(A1, A2, B1),
    node_ports=(30040, 30040),
    external_ips=("203.0.113.41", "2001:db8:113::41"),
    ingress=(("203.0.113.40", "VIP"), ("2001:db8:113::40", "VIP")),
    external_policy="Local",
)
ELSEWHERE = Svc(
    "elsewhere",
    ("10.96.0.50", "2001:db8:96::50"),
    BOTH,
    ready(B1),
    node_ports=(30050, 30050),
    external_ips=("203.0.113.51", "2001:db8:113::51"),
    ingress=(("203.0.113.50", "VIP"), ("2001:db8:113::50", "VIP")),
    external_policy="Local",
)

OWN_ADDRESSES = {"a3": A3, "remote": REMOTE_ADDRESSES, "outside": OUTSIDE_ADDRESSES}

every_external_way = pytest.mark.parametrize("way", ["node port", "load-balancer IP", "external IP"])
every_client_from_outside = pytest.mark.parametrize(
    "client", [pytest.param("outside", id="a client outside"), pytest.param("remote", id="another node")]
)
every_client = pytest.mark.parametrize(
    "client",
    [
        pytest.param("a3", id="a pod"),
        pytest.param("node", id="the node itself"),
        pytest.param("remote", id="another node"),
        pytest.param("outside", id="a client outside"),
    ],
)


@pytest.fixture
def served(node: ProxyNode) -> ProxyNode:
    node.sync(HERE, ELSEWHERE)
    return node


def place_of(service: Svc, way: str, family: int) -> tuple[str, int]:
    """Address and port of a Service in this way."""
    match way:
        case "node port":
            return NODE_ADDRESSES[family], service.node_ports[0]
        case "load-balancer IP":
            return service.ingress[family][0], 80
        case "external IP":
            return service.external_ips[family], 80
    return service.ips[family], 80


def answers(node: ProxyNode, client: str, place: tuple[str, int], transport: Transport) -> dict[str, str]:
    """Who answered six questions → the address that it saw the client at."""
    told = (ask(node.hosts[client], *place, transport) for _ in range(6))
    return {answer.server: answer.client for answer in told}


def is_silent(node: ProxyNode, client: str, place: tuple[str, int], transport: Transport) -> bool:
    """Whether nothing comes back, not even a refusal."""
    try:
        with Conversation(node.hosts[client], *place, transport, timeout_s=SILENCE_S) as talk:
            talk.ask()
    except TimeoutError:
        return True
    return False


def dropped(node: ProxyNode, family: int) -> int:
    """Packets that the rule for frontends without a local endpoint has dropped so far."""
    return packets(node.host, VERSIONS[family], "filter", "KUBE-PROXY-FIREWALL.*NO-LOCAL-ENDPOINTS.* -j DROP")


@every_family
@every_transport
@every_external_way
@pytest.mark.parametrize("client", OWN_ADDRESSES)
def test_k24_external_policy_local_leads_to_endpoints_here_which_see_the_address_of(
    served, client, way, transport, family
):
    found = answers(served, client, place_of(HERE, way, family), transport)
    assert found == dict.fromkeys(("a1", "a2"), OWN_ADDRESSES[client][family])


@every_family
@every_transport
@every_external_way
def test_k24_external_policy_local_leads_the_node_itself_to_endpoints_here(served, way, transport, family):
    assert set(answers(served, "node", place_of(HERE, way, family), transport)) == {"a1", "a2"}


@every_family
@every_external_way
def test_k24_an_endpoint_reaches_itself_through_external_policy_local_k03(served, way, family):
    found = answers(served, "a1", place_of(HERE, way, family), Transport.TCP)
    assert found == {"a1": BRIDGE[family], "a2": A1[family]}


@every_family
@every_transport
@every_client
def test_k24_external_policy_local_leaves_the_cluster_ip_alone(served, client, transport, family):
    assert set(answers(served, client, place_of(HERE, "cluster IP", family), transport)) == {"a1", "a2", "b1"}


@every_family
@every_transport
@every_external_way
@pytest.mark.parametrize("client", [pytest.param("a3", id="a pod"), pytest.param("node", id="the node itself")])
def test_k25_without_an_endpoint_here_other_nodes_serve(served, client, way, transport, family):
    """Masqueraded, so that the answer comes back through here."""
    found = answers(served, client, place_of(ELSEWHERE, way, family), transport)
    assert found == {"b1": NODE_ADDRESSES[family]}


@every_family
@every_transport
@every_external_way
@every_client_from_outside
def test_k25_without_an_endpoint_here_nothing_is_sent_on_for(served, client, way, transport, family):
    """Not to another node, which would answer past this one."""
    before = dropped(served, family)
    name = "for-the-endpoint"
    counter = f"mangle POSTROUTING -d {B1[family]} -m conntrack --ctstate NEW -m comment --comment {name}"
    with foreign_rules(served.host, VERSIONS[family], counter):
        assert is_silent(served, client, place_of(ELSEWHERE, way, family), transport)
        assert dropped(served, family) > before
        assert packets(served.host, VERSIONS[family], "mangle", name) == 0


@every_family
@every_transport
def test_k25_what_is_open_and_closed_follows_the_endpoints(served, transport, family):
    """The first endpoint here opens the address to clients outside, the last one that leaves closes it."""
    place = place_of(ELSEWHERE, "load-balancer IP", family)
    here_too = msgspec.structs.replace(ELSEWHERE, endpoints=ready(A1, B1))
    served.sync(HERE, here_too)
    assert answers(served, "outside", place, transport) == {"a1": OUTSIDE_ADDRESSES[family]}
    assert set(answers(served, "a3", place, transport)) == {"a1"}
    served.sync(HERE, ELSEWHERE)
    assert is_silent(served, "outside", place, transport)
    assert set(answers(served, "a3", place, transport)) == {"b1"}


@every_family
def test_k25_a_pod_is_answered_all_the_while_endpoints_come_and_go_here(served, family):
    place = place_of(ELSEWHERE, "load-balancer IP", family)
    for endpoints in ((A1, B1), (B1,)):
        for _ in served.syncing(HERE, msgspec.structs.replace(ELSEWHERE, endpoints=ready(*endpoints))):
            with contextlib.suppress(ConnectionResetError):  # of an endpoint that leaves just now
                assert ask(served.hosts["a3"], *place).server in {"a1", "b1"}


@every_family
def test_k25_a_stream_from_outside_to_the_last_endpoint_here_hears_a_reset_when_it_leaves(served, family):
    """And not silence: what is dropped then is the beginning of streams (K12)."""
    served.sync(HERE, msgspec.structs.replace(ELSEWHERE, endpoints=ready(A1, B1)))
    with Conversation(served.hosts["outside"], *place_of(ELSEWHERE, "load-balancer IP", family), timeout_s=3) as talk:
        assert talk.ask().server == "a1"
        served.sync(HERE, ELSEWHERE)
        with pytest.raises(ConnectionResetError):
            talk.ask()


@every_family
@every_transport
def test_a_policy_that_changes_between_local_and_cluster_does_so_for_every_client(served, transport, family):
    place = place_of(ELSEWHERE, "node port", family)
    served.sync(HERE, msgspec.structs.replace(ELSEWHERE, external_policy="Cluster"))
    assert answers(served, "outside", place, transport) == {"b1": NODE_ADDRESSES[family]}
    served.sync(HERE, ELSEWHERE)
    assert is_silent(served, "outside", place, transport)


@every_family
@every_transport
@every_client
def test_internal_policy_local_leads_to_endpoints_here(node, client, transport, family):
    node.sync(msgspec.structs.replace(HERE, internal_policy="Local"))
    assert set(answers(node, client, place_of(HERE, "cluster IP", family), transport)) == {"a1", "a2"}


@every_family
@every_transport
@every_client
def test_internal_policy_local_without_an_endpoint_here_refuses_at_once(node, client, transport, family):
    """Although external addresses of the Service lead elsewhere. IPVS drops the node's own UDP and says so: EPERM."""
    node.sync(msgspec.structs.replace(ELSEWHERE, internal_policy="Local", external_policy="Cluster"))
    refusal = PermissionError if (client, transport) == ("node", Transport.UDP) else ConnectionRefusedError
    with pytest.raises(refusal):
        ask(node.hosts[client], *place_of(ELSEWHERE, "cluster IP", family), transport)
    assert set(answers(node, client, place_of(ELSEWHERE, "load-balancer IP", family), transport)) == {"b1"}
