"""A client whose ports come round again while IPVS still remembers what they were used for (K01)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from tests.clusters import Svc
from tests.lab.hosts import NODE_ADDRESSES, Namespace
from tests.lab.traffic import Conversation
from tests.vm.nodes import ProxyNode
from tests.vm.places import A1, every_family, ready

VIPS = ("10.96.0.20", "2001:db8:96::20")
WEB = Svc("web", VIPS, endpoints=ready(A1), node_ports=(30080,))
SOURCE_PORT = 40123
TIMES = 20


def syns_sent(node: ProxyNode, client: str, address: str, port: int) -> int:
    """How many SYNs a whole connection took, which the server closes first."""
    with Conversation(node.hosts[client], address, port, source_port=SOURCE_PORT) as talk:
        sent = 1 + talk.retransmissions
        talk.send(b"GET / HTTP/1.1\r\n\r\n")
        received = b"".join(iter(talk.receive, b""))
    assert received.partition(b"\r\n\r\n")[2].startswith(b"a1 ")
    while is_closing(node.hosts[client]):  # until the last acknowledgement has come, the kernel refuses the port
        time.sleep(0.01)
    return sent


@contextlib.contextmanager
def counting_syns(pod: Namespace, family: int) -> Iterator[Callable[[], int]]:
    """Tells how many SYNs have come to the pod in the `with` block."""
    iptables = ("iptables-legacy", "ip6tables-legacy")[family]
    rule = ("INPUT", "-p", "tcp", "--syn", "--dport", "8080")
    pod.run(iptables, "-A", *rule)
    try:
        yield lambda: int(pod.run(iptables, "-nvxL", "INPUT").splitlines()[2].split()[0])
    finally:
        pod.run(iptables, "-D", *rule)


def is_closing(host: Namespace) -> bool:
    """Whether the client's kernel still has its socket."""
    return f":{SOURCE_PORT} " in host.run("ss", "-tanH", "state", "last-ack")


@every_family
@pytest.mark.parametrize("client", ["a3", "node", "outside"])
@pytest.mark.parametrize(
    "addresses, port", [pytest.param(VIPS, 80, id="cluster IP"), pytest.param(NODE_ADDRESSES, 30080, id="node port")]
)
def test_k01_no_syn_is_lost_when_a_client_uses_one_port_again_and_again(
    node: ProxyNode, client, addresses, port, family
):
    """Each that is sent comes in; an emulated machine may be so slow that some are sent twice."""
    node.sync(WEB)
    with counting_syns(node.hosts["a1"], family) as received:
        assert sum(syns_sent(node, client, addresses[family], port) for _ in range(TIMES)) == received() >= TIMES


def test_k01_a_kernel_that_drops_no_syn_keeps_its_reuse_mode(node: ProxyNode):
    node.sync(WEB)
    assert node.host.sysctl("net/ipv4/vs/conn_reuse_mode") == "1"
