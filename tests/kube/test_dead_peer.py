"""An API server whose host dies: from one moment on nothing passes between it and us, and nobody tells (K16).

    client 192.0.2.1 ──veth── 192.0.2.2 server, at its own 203.0.113.9

Its address lies behind the link's, as behind a router: a neighbour that is gone would be told of by our own kernel.
What the kernel does by itself about a dead peer comes much later, and so does the end of our patience with silence. So
only the time-out for dead peers can find it out, and the reason that is logged shows that it did. Probes on an idle
watch and a request in flight are two timers of the kernel under one time-out. It takes root: network namespaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.recovery import Cause, Timing
from tests.kube.following import QUICK, Following, eventually, following
from tests.kube.scripted_server import (
    HOLD,
    Answer,
    ScriptedServer,
    added,
    bookmark,
    page,
    refusal,
    service,
    serving,
    stream,
)
from tests.lab.certificates import issue, make_authority, server_context
from tests.lab.hosts import Namespace

CLIENT, LINK, SERVER = "192.0.2.1", "192.0.2.2", "203.0.113.9"
DEAD_PEER_S = 2
"""The least that it can be: a second of silence until the first probe, and one more for its answer."""
PATIENT = dataclasses.replace(QUICK, silence_s=10.0 * DEAD_PEER_S)
LIMIT_S = 20.0 * DEAD_PEER_S

A1, B2, C3 = service("a", 1), service("b", 2), service("c", 3)
EXPIRED = refusal(410, "Expired")


class Way(NamedTuple):
    """How the client reaches the server."""

    context: ssl.SSLContext | None
    access: Callable[[ScriptedServer], Access]
    noticed: str
    """How the reason begins when the connection's peer is dead."""


HTTP = Way(None, lambda server: Access(master=server.url), "cut: ETIMEDOUT (Connection timed out)")


def tls(folder: Path) -> Way:
    """As a pod has it. Not every Python tells the errno over TLS: see _read_timed_out of client.py."""
    identity = issue(make_authority(folder, "ca"), folder, "server", [SERVER])
    (folder / "token").write_text("token")

    def access(server: ScriptedServer) -> Access:
        place = {"KUBERNETES_SERVICE_HOST": SERVER, "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}
        return Access(pod_files=folder, environ=place)

    return Way(server_context(identity), access, Cause.CUT)


@pytest.fixture(params=["HTTP", "TLS"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    if request.param == "HTTP":
        return HTTP
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates to test TLS with")
    return tls(tmp_path)


class Hosts:
    """The server's host, which can die, and the client's, whose watch logs to `logs`."""

    def __init__(self, client: Namespace, server: Namespace, logs: Sequence[EventDict]) -> None:
        self._client = client
        self._server = server
        self._logs = logs
        self._logged_alive = 0
        self._died = threading.Event()
        client.ip(
            f"link add eth0 type veth peer name eth0 netns {server.path}",
            f"addr add {CLIENT}/30 dev eth0",
            "link set eth0 up",
            f"route add {SERVER} via {LINK}",
        )
        client.set_sysctl("net/ipv4/tcp_keepalive_probes", "100")  # the kernel's own end of probes, as many seconds
        server.ip(f"addr add {LINK}/30 dev eth0", "link set eth0 up", f"addr add {SERVER}/32 dev lo")
        for host in (client, server):  # the kernel takes the link up a little later
            eventually(lambda host=host: " state UP " in host.run("ip", "link", "show", "eth0"))

    def die(self) -> None:
        """From now on nothing comes in and nothing goes out."""
        self._logged_alive = len(self._logs)
        self._server.ip(
            f"route add blackhole {CLIENT}", f"addr del {SERVER}/32 dev lo", f"route add blackhole {SERVER}"
        )
        self._died.set()

    def live(self) -> None:
        """The server is back."""
        self._server.ip(
            f"route del blackhole {SERVER}", f"addr add {SERVER}/32 dev lo", f"route del blackhole {CLIENT}"
        )

    def losses(self) -> list[str]:
        """Why connections ended since the death, or without one since the start, in order."""
        return [entry["reason"] for entry in self._logs[self._logged_alive :] if entry["event"] == "watch_lost"]

    def wait_for_loss(self, noticed: str) -> None:
        """Wait until the death is noticed, and the server then missed; nothing else may end the connection."""
        assert self._died.wait(LIMIT_S)
        eventually(lambda: len(self.losses()) >= 2, LIMIT_S)
        first, second, *_ = self.losses()
        assert first.startswith(noticed)
        assert second.startswith(Cause.UNREACHABLE)

    @contextlib.contextmanager
    def serving(self, way: Way, *script: Answer) -> Iterator[ScriptedServer]:
        """The scripted server on its host."""
        with contextlib.ExitStack() as stack:
            with self._server.inside():
                server = stack.enter_context(serving(script, way.context, SERVER))
            yield server

    @contextlib.contextmanager
    def following(
        self,
        access: Access,
        reactions: Mapping[str, Callable[[], None]] = MappingProxyType({}),
        timing: Timing = PATIENT,
    ) -> Iterator[Following]:
        """A watch on the client's host: its thread keeps the namespace that it was started in."""
        api = ApiServer(access, connect_s=1.5, dead_peer_s=DEAD_PEER_S)
        with contextlib.ExitStack() as stack:
            with self._client.inside():
                found = stack.enter_context(following(api, timing=timing, reactions=reactions))
            yield found


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(capture_logs())
        try:
            client = stack.enter_context(Namespace("client"))
        except PermissionError:
            pytest.skip("not root: no network namespaces, and so no host that can die")
        yield Hosts(client, stack.enter_context(Namespace("server")), logs)


def test_k16_dead_peer_of_an_idle_watch_shows_by_probes_and_is_listed_again_when_it_lives(hosts: Hosts, way: Way):
    watch = stream(added(A1, B2), bookmark(9, ends_list=True), HOLD)
    relist = stream(added(B2), bookmark(30, ends_list=True), HOLD)
    with hosts.serving(way, watch, EXPIRED, relist) as server, hosts.following(way.access(server)) as found:
        found.wait_for("+a", "+b", "Listed", limit_s=LIMIT_S)
        hosts.die()
        hosts.wait_for_loss(way.noticed)
        assert found.told == ["+a", "+b", "Listed"]
        assert len(server.requests) == 1
        hosts.live()
        found.wait_for("+a", "+b", "Listed", "-a", "Listed", limit_s=LIMIT_S)
        assert [request.query.get("resourceVersion") for request in server.requests] == [None, "9", None]


def test_k16_dead_peer_of_a_request_in_flight_shows_and_its_half_list_removes_nothing(hosts: Hosts, way: Way):
    """It dies between two pages of a list, which share a connection: the second one is asked for and never heard."""
    script = [refusal(422, "Invalid"), page([A1, B2], 9), EXPIRED, page([C3], 12, "more"), page([B2, C3], 14)]
    with (
        hosts.serving(way, *script) as server,
        hosts.following(way.access(server), {"+c": hosts.die}) as found,
    ):
        found.wait_for("+a", "+b", "Listed", "+c", limit_s=LIMIT_S)
        hosts.wait_for_loss(way.noticed)
        assert found.told == ["+a", "+b", "Listed", "+c"]
        assert len(server.requests) == 4
        hosts.live()
        found.wait_for("+a", "+b", "Listed", "+c", "-a", "Listed", limit_s=LIMIT_S)
        assert "continue" not in server.requests[4].query


def test_k16_peer_that_says_nothing_but_lives_is_not_taken_for_dead(hosts: Hosts):
    """Its kernel answers the probes, so it is waited for as long as silence may last."""
    silence = dataclasses.replace(PATIENT, silence_s=2.0 * DEAD_PEER_S)
    watch = stream(added(A1), bookmark(9, ends_list=True), HOLD)
    with hosts.serving(HTTP, watch) as server, hosts.following(HTTP.access(server), timing=silence):
        eventually(lambda: any(loss.startswith(Cause.SILENT) for loss in hosts.losses()), LIMIT_S)
        assert not [loss for loss in hosts.losses() if loss.startswith(Cause.CUT)]
