"""The proxy ends, crashes, starts again: clients do not feel it, and what drained is neither revived nor forgotten."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipvsproxy.config.command_line import ExitCode
from tests.clusters import Svc
from tests.lab.hosts import Cluster, Namespace
from tests.lab.proxies import Proxy, fork
from tests.lab.traffic import ask, stream_to
from tests.vm.nodes import FLAGS, bound, cleaned_up, manifest, proxy_on, sets, small_cluster, virtual_servers, weights
from tests.vm.places import A1, A2

VIP = "10.96.0.20"
MANY = tuple(Svc(f"s{n}", (f"10.96.1.{n}",), endpoints=((A1[0], True), (A2[0], True))) for n in range(1, 11))
every_end = pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, id="SIGTERM"), pytest.param(signal.SIGKILL, id="SIGKILL")]
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    with small_cluster() as hosts:
        yield hosts


@pytest.fixture
def clean(hosts: Cluster, tmp_path: Path) -> Cluster:
    """Without what another test's clients have left to drain."""
    assert cleaned_up(hosts.node, tmp_path / "clean").exit_code == ExitCode.OK
    return hosts


def web(*pods: tuple[str, str], drain: str = "15m") -> Svc:
    return Svc("web", (VIP,), endpoints=tuple((pod[0], True) for pod in pods), drain=drain)


def state(host: Namespace) -> tuple[object, ...]:
    return virtual_servers(host), bound(host), sets(host)


def knock(client: Namespace) -> None:
    """A new connection to each of the Services; raises what befalls it."""
    for service in MANY:
        assert ask(client, service.ips[0], 80, aborts=True).server in {"a1", "a2"}


def lost(proxy: Proxy) -> set[str]:
    """The kinds of objects whose watch has not come about."""
    return {line["kind"] for line in proxy.lines() if line["event"] == "watch_lost"}


def is_through(proxy: Proxy) -> bool:
    return any(line["event"] == "sync_finished" and line["services"] for line in proxy.lines())


@pytest.mark.parametrize("client", ["a3", "outside"])
@every_end
def test_k14_no_connection_fails_from_the_end_of_a_proxy_to_the_first_sync_of_the_next(
    clean: Cluster, tmp_path: Path, number, client
):
    with proxy_on(clean.node, tmp_path, *MANY) as proxy:
        proxy.wait_for_services()
        before = state(clean.node)
        proxy.stop(number)
    knock(clean[client])
    with proxy_on(clean.node, tmp_path, *MANY) as proxy:
        while not is_through(proxy):
            assert proxy.exit_code is None, proxy.text()
            knock(clean[client])
        assert proxy.wait_for_services()["operations"] == 0
    assert state(clean.node) == before


def test_k14_while_the_api_server_is_unreachable_nothing_is_taken_away(clean: Cluster, tmp_path: Path):
    with proxy_on(clean.node, tmp_path, *MANY, web(A1, A2)) as proxy:
        proxy.wait_for_services()
    clean.node.run("ipvsadm", "-e", "-t", f"{VIP}:80", "-r", f"{A1[0]}:8080", "-m", "-w", "0")
    before = state(clean.node)
    with fork(clean.node, [*FLAGS, "--master=http://127.0.0.1:9", "--ipvs-sync-period=1s"], tmp_path / "log") as proxy:
        proxy.wait_until(lambda: {"Service", "EndpointSlice"} <= lost(proxy))
        knock(clean["outside"])
    assert state(clean.node) == before


def test_k13_k14_after_a_crash_what_drained_gets_nothing_new_and_ends_and_what_is_ready_serves(
    hosts: Cluster, tmp_path: Path
):
    client = hosts["outside"]
    with contextlib.ExitStack() as stack:
        with proxy_on(hosts.node, tmp_path, web(A1, A2)) as proxy:
            proxy.wait_for_services()
            talk = stack.enter_context(stream_to("a1", client, VIP, 80))
            rewrite(tmp_path, web(A2))
            proxy.wait_until(lambda: weights(hosts.node, VIP) == {A1[0]: 0, A2[0]: 1})
            assert proxy.stop(signal.SIGKILL) == -signal.SIGKILL
        assert {ask(client, VIP, 80, aborts=True).server for _ in range(10)} == {"a2"}
        assert talk.ask().server == "a1"
        hosts.node.run("ipvsadm", "-e", "-t", f"{VIP}:80", "-r", f"{A2[0]}:8080", "-m", "-w", "0")
        with proxy_on(hosts.node, tmp_path, web(A2, drain="4s")) as proxy:
            proxy.wait_for_services()
            assert weights(hosts.node, VIP) == {A1[0]: 0, A2[0]: 1}
            assert {ask(client, VIP, 80, aborts=True).server for _ in range(10)} == {"a2"}
            assert talk.ask().server == "a1"
            proxy.wait_until(lambda: weights(hosts.node, VIP) == {A2[0]: 1})
            with pytest.raises(ConnectionResetError):
                talk.ask()


def test_k13_a_service_that_went_while_no_proxy_ran_drains_and_ends(hosts: Cluster, tmp_path: Path):
    with contextlib.ExitStack() as stack:
        with proxy_on(hosts.node, tmp_path, web(A1, A2), MANY[0]) as proxy:
            proxy.wait_for_services()
            talk = stack.enter_context(stream_to("a1", hosts["a3"], VIP, 80))
        with proxy_on(hosts.node, tmp_path, MANY[0], flags=(*FLAGS, "--ipvs-drain-timeout=4s")) as proxy:
            proxy.wait_for_services()
            with pytest.raises(ConnectionRefusedError):
                ask(hosts["a3"], VIP, 80)
            assert talk.ask().server == "a1"
            proxy.wait_until(lambda: weights(hosts.node, VIP) is None)
            with pytest.raises(ConnectionResetError):
                talk.ask()


def test_k18_a_stream_outlives_a_restart_with_another_scheduler_which_is_set_in_place(hosts: Cluster, tmp_path: Path):
    with contextlib.ExitStack() as stack:
        with proxy_on(hosts.node, tmp_path, web(A1)) as proxy:
            proxy.wait_for_services()
            talk = stack.enter_context(stream_to("a1", hosts["a3"], VIP, 80))
            assert proxy.stop(signal.SIGTERM) == 0
        with proxy_on(hosts.node, tmp_path, web(A1), flags=(*FLAGS, "--ipvs-scheduler=lc")) as proxy:
            proxy.wait_for_services()
            assert f"-A -t {VIP}:80 -s lc" in virtual_servers(hosts.node)
            assert talk.ask().server == "a1"


def rewrite(folder: Path, *services: Svc) -> None:
    """The manifests of `proxy_on` say this from now on, in one step."""
    hidden = folder / "manifests" / ".next"
    hidden.write_text(manifest(*services))
    hidden.rename(folder / "manifests" / "services.json")
