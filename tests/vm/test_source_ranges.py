"""Source ranges of load balancers with packets: who may come in (K35), and that nothing blinks open or shut (K36)."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Cluster
from tests.lab.probers import Asker, Knocker
from tests.lab.proxies import LOOK_AGAIN_S, Manifests
from tests.lab.traffic import Conversation, Transport
from tests.vm.foreign import PROGRAMS
from tests.vm.nodes import FLAGS, ProxyNode, knowing_nodes, proxy_on, rules, small_cluster
from tests.vm.places import A1, every_family, every_transport, ready

SILENCE_S = 0.5
"""How long a client listens where nothing should come."""

BOTH = ((80, "TCP"), (80, "UDP"))
EVERYBODY = {"a3", "node", "remote", "outside"}


def restricted(number: int, *ranges: str, families: Sequence[int] = (0, 1)) -> Svc:
    """A Service with a load balancer's address in these families, and these ranges."""
    return Svc(
        f"s{number}",
        tuple((f"10.96.5.{number}", f"2001:db8:96::5{number}")[family] for family in families),
        BOTH,
        ready(A1),
        ingress=tuple((vip(number, family), "VIP") for family in families),
        source_ranges=ranges,
    )


def vip(number: int, family: int) -> str:
    return (f"203.0.113.{100 + number}", f"2001:db8:113::{100 + number}")[family]


# The Services of the case by its numbers; from 10 on more of the kind. The clients' addresses are in lab/hosts.py.
SERVICES = (
    restricted(1, "198.51.100.0/24"),
    restricted(2),
    restricted(3, "0.0.0.0/0"),
    restricted(4, "::/0"),
    restricted(5, " 198.51.100.7/32 "),
    restricted(6, "198.51.100.9/24"),
    restricted(7, "nonsense"),
    restricted(8, "2001:db8:51::/64", families=(0,)),
    restricted(9, "198.51.100.0/24", "198.51.100.7/32", "198.51.100.0/24", "10.244.0.0/16"),
    restricted(10, "192.0.2.11/32", "2001:db8:1::11/128"),
    restricted(11, "2001:db8:51::7/128", "2001:db8:51::/64", "10.0.0.0/8"),
    restricted(12, "192.0.2.0/24", "2001:db8:1::/64"),
    restricted(13, "203.0.113.0/24", "2001:db8:113::/64"),
    restricted(14, "203.0.113.0/24", "192.0.2.11/32", "2001:db8:113::/64", "2001:db8:1::11/128"),
)


@pytest.fixture(scope="module")
def known(node: ProxyNode) -> Iterator[ProxyNode]:
    """The proxy knows its Node's addresses, by which it tells whether the node itself is in a range."""
    node.sync(*SERVICES)
    with knowing_nodes(node):
        yield node


@pytest.fixture
def served(known: ProxyNode) -> ProxyNode:
    known.sync(*SERVICES)
    return known


def reaches(node: ProxyNode, client: str, to: str, transport: Transport, source: str = "") -> bool:
    """Whether it is answered. Else it hears nothing; a process of the node that sends a datagram gets EPERM."""
    try:
        with Conversation(node.hosts[client], to, 80, transport, SILENCE_S, source=source) as talk:
            return talk.ask().server == "a1"
    except TimeoutError:
        return False
    except PermissionError:
        assert (client, transport) == ("node", Transport.UDP)
        return False


@every_transport
@pytest.mark.parametrize(
    "number, family, allowed",
    [
        pytest.param(1, 0, {"outside"}, id="a network"),
        pytest.param(1, 1, set(), id="a network of IPv4, over IPv6"),
        pytest.param(2, 0, EVERYBODY, id="no range"),
        pytest.param(2, 1, EVERYBODY, id="no range, over IPv6"),
        pytest.param(3, 0, EVERYBODY, id="every address"),
        pytest.param(4, 1, EVERYBODY, id="every address of IPv6"),
        pytest.param(5, 0, {"outside"}, id="blanks around an address"),
        pytest.param(6, 0, {"outside"}, id="an address within its network"),
        pytest.param(7, 0, set(), id="nonsense"),
        pytest.param(8, 0, set(), id="a range of IPv6 for a Service of IPv4"),
        pytest.param(9, 0, {"outside", "a3"}, id="ranges twice and within each other"),
        pytest.param(10, 0, {"node"}, id="the node alone"),
        pytest.param(10, 1, {"node"}, id="the node alone, over IPv6"),
        pytest.param(11, 0, {"a3"}, id="ranges of both families"),
        pytest.param(11, 1, {"outside"}, id="ranges of both families, over IPv6"),
        pytest.param(12, 0, {"node", "remote"}, id="the nodes' network"),
        pytest.param(12, 1, {"node", "remote"}, id="the nodes' network, over IPv6"),
        pytest.param(13, 0, set(), id="the VIP, which the node's packets have as source"),
        pytest.param(13, 1, set(), id="the VIP, over IPv6"),
        pytest.param(14, 0, {"node"}, id="the VIP and the node"),
        pytest.param(14, 1, {"node"}, id="the VIP and the node, over IPv6"),
    ],
)
def test_k35_source_ranges_let_in(served, number, family, allowed, transport):
    found = {client for client in sorted(EVERYBODY) if reaches(served, client, vip(number, family), transport)}
    assert found == allowed


@every_family
@every_transport
@pytest.mark.parametrize("number, is_open", [(1, False), (2, True), (10, True)])
def test_k35_source_ranges_hold_for_a_process_that_sends_from_the_nodes_own_address(
    served, number, is_open, transport, family
):
    """And not from the VIP, which the kernel would choose."""
    assert reaches(served, "node", vip(number, family), transport, NODE_ADDRESSES[family]) == is_open


@every_family
@every_transport
def test_k35_a_process_of_the_node_does_not_get_in_by_another_vip_that_is_in_the_ranges(served, transport, family):
    assert not reaches(served, "node", vip(13, family), transport, vip(2, family))


def test_k35_nonsense_is_told_with_the_name_of_its_service(served):
    told = [line for line in served.proxy.lines() if line["event"] == "object_rejected"]
    assert any("s7" in line["object"] and "nonsense" in line["reason"] for line in told)


OUTSIDE_ONLY = ("198.51.100.0/24", "2001:db8:51::/64")
CHANGES = (  # the client outside is always in them, the others never
    (*OUTSIDE_ONLY, "10.9.0.0/16", "2001:db8:9::/64"),
    ("198.51.100.7/32", "2001:db8:51::7/128"),
    ("198.51.96.0/19", "198.51.100.7/32", "2001:db8:51::/48"),
    OUTSIDE_ONLY,
)
GUARDED = restricted(1, *OUTSIDE_ONLY)
UNRELATED = tuple(
    restricted(number, "192.0.2.0/24", "10.244.0.0/16", "2001:db8:1::/64", "2001:db8:244::/56")
    for number in range(20, 24)
)
"""In their ranges is everybody who is not in those of the guarded one."""


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A node on which proxies come and go."""
    with small_cluster() as hosts:
        yield hosts


@contextlib.contextmanager
def proxy_at(place: Cluster, folder: Path, *services: Svc, flags: Sequence[str] = FLAGS) -> Iterator[ProxyNode]:
    """A proxy that has these Services in the kernel; killed at the end if it has not ended before."""
    with proxy_on(place.node, folder, *services, flags=flags) as proxy:
        proxy.wait_for_services()
        yield ProxyNode(place, Manifests(folder / "manifests"), proxy)


@contextlib.contextmanager
def knocked(place: Cluster, number: int = 1) -> Iterator[Callable[[], None]]:
    """All that are not in the ranges knock during the block; nobody is let in. Yields a wait for more of it."""
    addresses = (vip(number, 0), vip(number, 1))
    with contextlib.ExitStack() as stack:
        knockers = [stack.enter_context(Knocker(place[name], addresses, 80)) for name in ("remote", "a3", "node")]
        yield lambda: wait_for_more(*knockers)
    assert [knocker.account.succeeded for knocker in knockers] == [0, 0, 0]


@contextlib.contextmanager
def asked(place: Cluster) -> Iterator[Callable[[], None]]:
    """The one that is in the ranges asks during the block; it is always answered."""
    with Asker(place["outside"], (vip(1, 0), vip(1, 1)), 80) as asker:
        yield lambda: wait_for_more(asker)
    assert asker.account.errors == ()


def wait_for_more(*probers: Asker | Knocker) -> None:
    """A few rounds more of each."""
    for prober, enough in [(prober, prober.asked + 3) for prober in probers]:
        while prober.asked < enough:
            time.sleep(LOOK_AGAIN_S)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the proxies of one test."""
    return tmp_path_factory.mktemp("proxy")


def test_k36_the_knocking_would_be_noticed_if_it_were_let_in(place, folder):
    with proxy_at(place, folder, restricted(1)), Knocker(place["remote"], (vip(1, 0), vip(1, 1)), 80) as knocker:
        wait_for_more(knocker)
    assert knocker.account.succeeded > 0


def test_k36_while_unrelated_services_change_nobody_is_let_in_or_kept_out(place, folder):
    with proxy_at(place, folder, GUARDED) as node, knocked(place) as knock, asked(place) as ask_more:
        for count in (1, 4, 2, 3, 0, 4):
            node.sync(GUARDED, *UNRELATED[:count])
            knock()
            ask_more()


def test_k36_while_its_ranges_change_nobody_is_let_in_or_kept_out(place, folder):
    with proxy_at(place, folder, GUARDED) as node, knocked(place) as knock, asked(place) as ask_more:
        for ranges in (*CHANGES, *reversed(CHANGES)):
            node.sync(msgspec.structs.replace(GUARDED, source_ranges=ranges))
            knock()
            ask_more()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_k36_while_the_proxy_restarts_nobody_is_let_in_or_kept_out_after(place, folder, number):
    with proxy_at(place, folder, GUARDED) as node, knocked(place) as knock, asked(place) as ask_more:
        node.proxy.stop(number)
        knock()
        ask_more()
        with proxy_at(place, folder, GUARDED, *UNRELATED):
            knock()
            ask_more()


def test_k36_while_it_is_deleted_and_made_anew_nobody_is_let_in(place, folder):
    with proxy_at(place, folder, GUARDED, *UNRELATED) as node, knocked(place) as knock:
        for services in (UNRELATED, (GUARDED, *UNRELATED)):
            node.sync(*services)
            knock()


def test_k36_nobody_is_let_in_or_kept_out_any_more_when_an_audit_has_put_back_what_another_program_flushed(
    place, folder
):
    """What is open until then: test_rule_packets.py. Audits are a second apart here, not half a minute."""
    with proxy_at(place, folder, GUARDED, flags=(*FLAGS, "--ipvs-sync-period=1s")) as node:
        before = [rules(place.node, version) for version in PROGRAMS]
        for program in PROGRAMS.values():
            for table in ("filter", "mangle", "nat"):
                place.node.run(f"{program}-legacy", "-w", "5", "-t", table, "-F")
        node.proxy.wait_for("drift_found", lambda line: line["kind"] == "rules")
        node.proxy.wait_until(lambda: before == [rules(place.node, version) for version in PROGRAMS])
        with knocked(place) as knock, asked(place) as ask_more:
            knock()
            ask_more()
