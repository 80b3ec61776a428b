"""K04: every cell of the table of docs/snat.md, sent through the kernel. A sample of them is no long test.

Each is sent to two ports of the Service, of which one has the number of another Service's node port.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import BRIDGE as BRIDGE_NAME
from tests.lab.hosts import NODE_ADDRESSES, OUTSIDE_ADDRESSES, REMOTE_ADDRESSES, Cluster, Namespace
from tests.lab.traffic import TIMEOUT_S, Transport
from tests.tables.snat import Cell, Config, Is, Policy, Seen, Source, Way, cells
from tests.vm.nodes import FLAGS, proxy_on
from tests.vm.places import A2, A3, B1, BRIDGE, ready

SILENCE_S = 0.5
"""Nothing for so long: it has been dropped. What is too slow for that makes no test fail."""

SEEN = dict(cells())
HOSTS = {Source.POD: "a3", Source.NODE: "node", Source.OTHER_NODE: "remote", Source.OUTSIDE: "outside"}
OWN_ADDRESSES = {Source.POD: A3, Source.OTHER_NODE: REMOTE_ADDRESSES, Source.OUTSIDE: OUTSIDE_ADDRESSES}
ENDPOINTS = {
    Policy.CLUSTER_HERE: (A2,),
    Policy.CLUSTER_ELSEWHERE: (B1,),
    Policy.LOCAL_HERE: (A2, B1),
    Policy.LOCAL_ELSEWHERE: (B1,),
}


def address(way: Way, policy: Policy, family: int) -> str:
    """Where the Service of this policy is reached in this way."""
    number = list(Policy).index(policy)
    if way is Way.NODE_PORT:
        return NODE_ADDRESSES[family]
    prefix = ("10.96.4.", "2001:db8:96::4") if way is Way.CLUSTER_IP else ("203.0.113.", "2001:db8:113::")
    return f"{prefix[family]}{list(Way).index(way)}{number}"


def service(policy: Policy) -> Svc:
    """A Service with every kind of address."""

    def both(way: Way) -> tuple[str, str]:
        return address(way, policy, 0), address(way, policy, 1)

    name = policy.value.split(",")[0]
    return Svc(
        policy.name.lower().replace("_", "-"),
        both(Way.CLUSTER_IP),
        tuple((port, "UDP") for port in OWN_PORTS),
        ready(*ENDPOINTS[policy]),
        node_ports=(node_port(policy),),
        external_ips=both(Way.EXTERNAL_IP),
        ingress=tuple((ip, "VIP") for ip in both(Way.LOAD_BALANCER)),
        internal_policy=name,
        external_policy=name,
    )


def node_port(policy: Policy) -> int:
    return 30400 + list(Policy).index(policy)


OWN_PORTS = (80, node_port(Policy.CLUSTER_HERE))
"""Those of every Service: that one has a node port of the second one's number says nothing about the others."""


def ports(way: Way, policy: Policy) -> tuple[int, ...]:
    """Where the Service of this policy is reached in this way."""
    return (node_port(policy),) if way is Way.NODE_PORT else OWN_PORTS


class Arrival(NamedTuple):
    """What came of a datagram: the pod that got it and from where, and whether its answer, or a refusal, came back."""

    pod: str = ""
    source: str = ""
    answered: bool = False
    refused: bool = False


class Pods:
    """The pods' sockets, which answer while somebody looks. UDP, so that what arrives shows without an answer."""

    def __init__(self, hosts: Cluster) -> None:
        self._selector = selectors.DefaultSelector()
        for name, addresses in (("a2", A2), ("b1", B1)):
            for own, port in product(addresses, OWN_PORTS):
                opened = udp(hosts[name], own)
                opened.bind((own, 8000 + port))
                self._selector.register(opened, selectors.EVENT_READ, name)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def send(self, client: Namespace, to: str, port: int, wait_s: float) -> Arrival:
        """Send a datagram; until it is answered or refused, or nothing has happened for so long."""
        arrival = Arrival()
        with udp(client, to) as asking:
            asking.connect((to, port))
            self._selector.register(asking, selectors.EVENT_READ)
            try:
                asking.send(b"?")
                while events := self._selector.select(wait_s):
                    for key, _ in events:
                        if key.fileobj is asking:
                            asking.recv(16)
                            return arrival._replace(answered=True)
                        _, sender = key.fileobj.recvfrom(16)
                        key.fileobj.sendto(b"!", sender)
                        arrival = Arrival(key.data, sender[0])
            except (ConnectionRefusedError, PermissionError):
                return arrival._replace(refused=True)
            finally:
                self._selector.unregister(asking)
        return arrival


def udp(host: Namespace, address: str) -> socket.socket:
    """A socket for this address's family."""
    return host.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, *Transport.UDP.value)


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A cluster of its own: other proxies run on its node."""
    with Cluster() as hosts:
        for name, addresses in (("a2", A2), ("a3", A3)):
            hosts.add_pod(name, *addresses)
        hosts.add_remote(*B1)
        hosts.add_outside()
        yield hosts


@pytest.fixture(scope="module")
def pods(place: Cluster) -> Iterator[Pods]:
    with contextlib.closing(Pods(place)) as pods:
        yield pods


class Running(NamedTuple):
    """A proxy's settings for a column pair of the table, and how it tells pods where it does."""

    config: Config
    flags: tuple[str, ...]


CLUSTER_CIDR = tuple(flag for flag in FLAGS if "cluster-cidr" in flag)
BRIDGE_MODE = ("--detect-local-mode=BridgeInterface", f"--pod-bridge-interface={BRIDGE_NAME}")
PREFIX_MODE = ("--detect-local-mode=InterfaceNamePrefix", f"--pod-interface-name-prefix={BRIDGE_NAME[:3]}")
ALL = ("--masquerade-all",)


@pytest.fixture(scope="module")
def config(
    request: pytest.FixtureRequest, place: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Config]:
    """The settings of a proxy that runs on the node."""
    config, flags = request.param
    common = [flag for flag in FLAGS if flag not in CLUSTER_CIDR]
    services = [service(policy) for policy in Policy]
    with proxy_on(place.node, tmp_path_factory.mktemp("proxy"), *services, flags=[*common, *flags]) as proxy:
        proxy.wait_for_services()
        yield config
        assert proxy.stop() == ExitCode.OK


every_config = pytest.mark.parametrize(
    "config",
    [
        pytest.param(Running(Config(Is.NO, Is.YES), CLUSTER_CIDR), id="cluster CIDR"),
        pytest.param(Running(Config(Is.NO, Is.NO), ()), id="pods not known"),
        pytest.param(Running(Config(Is.YES, Is.YES), (*CLUSTER_CIDR, *ALL)), id="cluster CIDR, masquerade all"),
        pytest.param(Running(Config(Is.YES, Is.NO), ALL), id="pods not known, masquerade all", marks=pytest.mark.long),
        pytest.param(Running(Config(Is.NO, Is.YES), BRIDGE_MODE), id="pods known by a bridge", marks=pytest.mark.long),
        pytest.param(Running(Config(Is.NO, Is.YES), PREFIX_MODE), id="pods known by a prefix", marks=pytest.mark.long),
    ],
    indirect=True,
)


def combinations() -> Iterator[object]:
    """All; a quarter is no long test: half of the sources, ways and policies with each other, in one family."""
    for source, way, policy, family in product(Source, Way, Policy, range(2)):
        numbers = (list(Source).index(source), list(Way).index(way), list(Policy).index(policy))
        is_sample = sum(numbers) % 2 == 0 and sum(numbers) // 2 % 2 == family
        name = f"{source.value}, {way.value}, {policy.value}, IPv{(4, 6)[family]}"
        marks = [] if is_sample else [pytest.mark.long]
        yield pytest.param((source, way, policy), family, id=name, marks=marks)


@every_config
@pytest.mark.parametrize("sent, family", list(combinations()))
def test_k04_a_pod_sees(place, pods, config, sent, family):
    source, way, policy = sent
    expected = SEEN[Cell(config, source, way, policy)]
    to = address(way, policy, family)
    wait_s = SILENCE_S if expected in {Seen.DROPPED, Seen.CLIENT_UNANSWERED} else TIMEOUT_S
    pod = "b1" if "elsewhere" in policy.value else "a2"
    for port in ports(way, policy):
        arrival = pods.send(place[HOSTS[source]], to, port, wait_s)
        match expected:
            case Seen.REFUSED:
                assert arrival == Arrival(refused=True)
            case Seen.DROPPED:
                assert arrival == Arrival()
            case Seen.NODE:
                assert arrival == Arrival(pod, (BRIDGE if pod == "a2" else NODE_ADDRESSES)[family], answered=True)
            case Seen.SENT_TO:
                assert arrival == Arrival(pod, to, answered=True)
            case Seen.CLIENT:
                assert arrival == Arrival(pod, OWN_ADDRESSES[source][family], answered=True)
            case Seen.CLIENT_UNANSWERED if source is Source.OTHER_NODE and not family:
                assert arrival == Arrival()  # the endpoint's own node takes no IPv4 packet that comes from itself
            case Seen.CLIENT_UNANSWERED:
                assert arrival == Arrival(pod, OWN_ADDRESSES[source][family])
