"""What the composition root makes of the configuration and says of it; that the daemon works with it: tests/vm."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ipvsproxy import daemon
from ipvsproxy.clock import SystemClock
from ipvsproxy.config.command_line import Serve, parse_command_line
from ipvsproxy.config.read import read_config
from ipvsproxy.errors import IpvsproxyError, Unsupported
from ipvsproxy.kube.client import Access, ApiServer
from ipvsproxy.kube.resources import watched
from ipvsproxy.kube.watch import Watch
from ipvsproxy.model.enums import Family
from ipvsproxy.model.vitals import Heard, Moment
from ipvsproxy.sync.runner import Periods, Runner, Signal
from tests.clusters import Node

LOOPBACK = "loopback_serves_no_node_ports"
GAP = "configuration_has_a_gap"
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
    assert daemon.periods(config) == Periods(min_sync_s=2.0, audit_s=45.0)


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


def test_the_queue_tells_when_a_message_was_put_in(monkeypatch):
    inbox = daemon.QueueInbox()
    monkeypatch.setattr(daemon.time, "monotonic", iter((7.0, 9.0)).__next__)
    inbox.deliver([])
    inbox.put(Signal.STOP)
    assert [(inbox.get(0), inbox.arrived_at) for _ in range(2)] == [((), 7.0), (Signal.STOP, 9.0)]
