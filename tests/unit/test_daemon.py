"""What the composition root makes of the configuration and says of it; that the daemon works with it: tests/vm."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from structlog.testing import capture_logs

from ipvsproxy import daemon
from ipvsproxy.clock import SystemClock
from ipvsproxy.config.command_line import Serve, parse_command_line
from ipvsproxy.config.read import read_config
from ipvsproxy.errors import AlreadyRunning, IpvsproxyError, Unsupported
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.resources import watched
from ipvsproxy.kube.watch import Watch
from ipvsproxy.model.enums import Family
from ipvsproxy.model.vitals import Heard, Moment
from ipvsproxy.process import accept_signals
from ipvsproxy.sync.runner import Periods, Runner, Signal
from tests.clusters import Node

LOOPBACK = "loopback_serves_no_node_ports"
GAP = "configuration_has_a_gap"
CONFIG = replace(read_config({}), config_text=b"mode: ipvs")
CIDR = "--cluster-cidr=10.244.0.0/16,fd00:244::/56"


@pytest.mark.parametrize(
    "flags,warnings",
    [
        pytest.param([CIDR, "--nodeport-addresses=localhost"], [LOOPBACK], id="localhost"),
        pytest.param([CIDR, "--nodeport-addresses=127.0.0.0/8,::1/128,192.0.2.0/24"], [LOOPBACK], id="networks of it"),
        pytest.param([CIDR, "--nodeport-addresses=all"], [], id="all, which does not mean loopback"),
        pytest.param([CIDR, "--nodeport-addresses=192.0.2.0/24"], [GAP], id="a network of one family"),
        pytest.param(["--detect-local-mode=NodeCIDR"], [], id="NodeCIDR"),
    ],
)
def test_k22_a_start_warns_once_of(flags, warnings):
    command = parse_command_line(["--proxy-mode=ipvs", "--manifests=.", *flags])
    assert isinstance(command, Serve)
    with capture_logs() as logs:
        daemon._mode(command.config, frozenset(Family))
    assert [(event["event"], event["log_level"]) for event in logs] == [(name, "warning") for name in warnings]


def test_audits_come_at_the_sync_period_and_syncs_no_faster_than_the_minimum():
    config = read_config({"--ipvs-min-sync-period": "2s", "--ipvs-sync-period": "45s"})
    assert daemon.periods(config) == Periods(min_sync_s=2.0, audit_s=45.0, glance_s=1.0)


def test_k45_an_unknown_scheduler_is_an_event_on_the_node_before_the_program_ends():
    node, told = Node(), []
    source = daemon._Source((), tell_now=told.append)
    with pytest.raises(Unsupported, match='cannot use the scheduler "nosuch"'):
        daemon._start(read_config({"--ipvs-scheduler": "nosuch"}), node.fake.kernel, node.reconciler, source, "n1")
    (notice,) = told
    assert (notice.kind, notice.name, notice.reason) == ("Node", "n1", "UnknownScheduler")
    assert "set --ipvs-scheduler to rr" in notice.text


def test_what_a_watch_has_heard_is_told_by_the_wall_clock():
    watches = [Watch(ApiServer(Access(master="http://127.0.0.1:1")), kind, SystemClock()) for kind in watched("n1")]
    watches[0].is_connected, watches[0].heard_at = True, 5.0
    heard = daemon._Source((), watches=tuple(watches)).hear(Moment(monotonic=10.0, unix=1000.0))
    assert heard == {
        "Service": Heard(is_connected=True, at=995.0),
        "EndpointSlice": Heard(is_connected=False),
        "Node": Heard(is_connected=False),
    }


def test_a_server_that_must_listen_and_cannot_ends_the_daemon_with_its_reason():
    inbox, node = daemon.QueueInbox(), Node()
    runner = Runner(inbox, node.tracker, node.reconciler, SystemClock(), Periods())

    def listen() -> None:
        raise IpvsproxyError("cannot serve metrics at 127.0.0.1:10249", "EADDRINUSE (Address already in use)")

    with capture_logs() as logs:
        assert daemon._serve(runner, (daemon._Worker("metrics", listen, lambda: None, inbox),)) == 1
    assert [(log["thread"], log["reason"]) for log in logs if log["event"] == "thread_ended"] == [
        ("metrics", "cannot serve metrics at 127.0.0.1:10249: EADDRINUSE (Address already in use)")
    ]


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Handlers as they were, and nothing held, when the test is over."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    accept_signals()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def serve_until(
    before: Callable[[daemon._Ending], None], joining: Callable[[daemon._Ending], None]
) -> int | daemon.Restart:
    """What the daemon answers; `before` comes before it serves, `joining` while it waits for its threads."""
    inbox, node = daemon.QueueInbox(), Node()
    ending, over = daemon._Ending(inbox), Event()
    daemon._stop_on_signals(ending)
    before(ending)

    def stop() -> None:
        joining(ending)
        over.set()

    runner = Runner(inbox, node.tracker, node.reconciler, SystemClock(), Periods())
    return ending.outcome(daemon._serve(runner, (daemon._Worker("events", lambda: over.wait(30), stop, inbox),)))


def sigterm(_ending: daemon._Ending) -> None:
    signal.raise_signal(signal.SIGTERM)


def sigint(_ending: daemon._Ending) -> None:
    signal.raise_signal(signal.SIGINT)


def restart(ending: daemon._Ending) -> None:
    ending.restart(CONFIG)


def both(*steps: Callable[[daemon._Ending], None]) -> Callable[[daemon._Ending], None]:
    def take(ending: daemon._Ending) -> None:
        for step in steps:
            step(ending)

    return take


def nobody(_ending: daemon._Ending) -> None:
    """Nobody asks for anything at that time."""


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(
    "before,joining,code",
    [
        pytest.param(restart, nobody, daemon.Restart(b"mode: ipvs"), id="a restart alone"),
        pytest.param(sigterm, nobody, 0, id="a stop alone"),
        pytest.param(both(sigterm, restart), nobody, 0, id="the stop comes first"),
        pytest.param(both(restart, sigterm), nobody, 0, id="the restart comes first"),
        pytest.param(restart, sigterm, 0, id="the stop comes while threads end"),
        pytest.param(restart, sigint, 0, id="Ctrl-C comes while threads end"),
        pytest.param(sigterm, restart, 0, id="the restart comes while threads end"),
    ],
)
def test_a_stop_wins_over_a_restart_whenever_it_comes(before, joining, code):
    assert serve_until(before, joining) == code


@pytest.mark.usefixtures("own_signals")
def test_a_stop_after_the_decision_to_restart_waits_for_the_next_run():
    assert serve_until(restart, nobody) == daemon.Restart(b"mode: ipvs")
    signal.raise_signal(signal.SIGTERM)
    assert signal.SIGTERM in signal.sigpending()


def test_no_other_thread_takes_a_signal_that_is_held_for_the_next_run():
    inbox, masks = daemon.QueueInbox(), []
    worker = daemon._Worker(
        "events", lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), lambda: None, inbox
    )
    worker.thread.start()
    worker.thread.join()
    assert masks == [{signal.SIGTERM, signal.SIGINT, signal.SIGHUP}]


def test_every_further_start_is_told_that_one_runs_already_however_many_there_are(monkeypatch):
    monkeypatch.setattr(daemon, "_INSTANCE", f"\0ipvsproxy-test-{os.getpid()}")
    with daemon._single_instance() as held, ThreadPoolExecutor() as pool:
        asked = pool.submit(daemon._let_ask, held)
        try:
            for _ in range(10):
                with pytest.raises(AlreadyRunning, match=rf"another ipvsproxy \(process {os.getpid()}\)"):
                    daemon._single_instance().__enter__()
        finally:
            held.shutdown(socket.SHUT_RDWR)
        assert asked.result(timeout=10) is None


def test_a_daemon_of_another_container_has_no_number_here(monkeypatch):
    monkeypatch.setattr(daemon, "_INSTANCE", f"\0ipvsproxy-test-{os.getpid()}")
    monkeypatch.setattr(daemon, "_holder", lambda: (0, os.geteuid()))
    with (
        daemon._single_instance(),
        pytest.raises(AlreadyRunning, match="another ipvsproxy, of another container, runs in"),
    ):
        daemon._single_instance().__enter__()


def test_the_queue_tells_when_a_message_was_put_in(monkeypatch):
    inbox = daemon.QueueInbox()
    monkeypatch.setattr(daemon.time, "monotonic", iter((7.0, 9.0)).__next__)
    inbox.deliver([])
    inbox.put(Signal.STOP)
    assert [(inbox.get(0), inbox.arrived_at) for _ in range(2)] == [((), 7.0), (Signal.STOP, 9.0)]
