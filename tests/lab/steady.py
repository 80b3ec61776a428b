"""Senders of UDP that keep their source port, so that all that one sends is one flow; and the flows that there are.

The answers (tests/lab/traffic.py) tell who got the datagrams, and their number how many were lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from ipvsproxy.kernel.conntrack import GET, decode, header
from ipvsproxy.kernel.netlink import NETLINK_NETFILTER, NetlinkSocket
from ipvsproxy.model.enums import Family
from ipvsproxy.model.flows import UdpFlow
from tests.lab.flows import create
from tests.lab.hosts import Namespace
from tests.lab.traffic import Conversation, Transport

BETWEEN_S = 0.02
"""50 datagrams a second from each."""
SETTLED_S = 30.0
"""A safety limit for an emulated machine."""


class Sender:
    """One socket that sends a datagram whenever it is told to, and does not wait for the answer."""

    def __init__(self, talk: Conversation) -> None:
        self.sent = 0
        self.refusals = 0
        self.answers: list[str] = []
        self._talk = talk

    def send(self) -> None:
        """One more, after a look at what has come back."""
        self.take()
        try:
            self._talk.send(b"who is there?\n")
            self.sent += 1
        except (ConnectionRefusedError, PermissionError):  # tells of an earlier one, and nothing is sent
            self.refusals += 1

    def take(self) -> None:
        """Note the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    self.answers.append(self._talk.receive().decode().split()[0])
                except ConnectionRefusedError:
                    self.refusals += 1

    @property
    def server(self) -> str:
        """Who has answered last; empty before anybody has."""
        return self.answers[-1] if self.answers else ""

    @property
    def lost(self) -> int:
        """How many have no answer, or none yet."""
        return self.sent - len(self.answers)


@contextlib.contextmanager
def senders(*places: tuple[Namespace, str, int]) -> Iterator[list[Sender]]:
    """One for each (host, address, port)."""
    with contextlib.ExitStack() as stack:
        talks = [Conversation(*place, Transport.UDP, timeout_s=0) for place in places]
        yield [Sender(stack.enter_context(talk)) for talk in talks]


def send_until(sending: Sequence[Sender], done: Callable[[], bool]) -> None:
    """Everybody sends steadily until it is `done`."""
    deadline = time.monotonic() + SETTLED_S
    while not done():
        assert time.monotonic() < deadline, [(each.sent, each.refusals, each.answers[-3:]) for each in sending]
        for each in sending:
            each.send()
        time.sleep(BETWEEN_S)


def wait_for_answers(sending: Sequence[Sender]) -> None:
    """Nobody sends; until no answer has come for a while."""
    before = -1
    while before != (before := sum(len(each.answers) for each in sending)):
        time.sleep(20 * BETWEEN_S)
        for each in sending:
            each.take()


def flows_in(host: Namespace, family: Family) -> set[UdpFlow]:
    """Every UDP flow that connection tracking knows in this namespace."""
    with host.inside(), contextlib.closing(NetlinkSocket(NETLINK_NETFILTER, "the table")) as netlink:
        found = {decode(body) for body in netlink.dump(GET, header(family))}
    return {each for each in found if each}


def put_flows(host: Namespace, flows: Sequence[UdpFlow]) -> None:
    """Flows of clients that have gone silent."""
    with host.inside(), contextlib.closing(NetlinkSocket(NETLINK_NETFILTER, "the table")) as netlink:
        assert set(create(netlink, flows)) == {0}
