"""`ipvsproxy top`: its words, its keys, what it leaves behind on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import msgspec
import pytest

from ipvsproxy import cli, top_command
from ipvsproxy.clock import SystemClock
from ipvsproxy.cluster.known import Known, KnownHead, KnownPort, KnownService
from ipvsproxy.config.command_line import ExitCode, Top, parse_command_line
from ipvsproxy.errors import ConfigError, IpvsproxyError, KernelError
from ipvsproxy.model.enums import Family
from ipvsproxy.model.figures import Figures, Undone
from ipvsproxy.model.kernel_objects import Kind
from ipvsproxy.model.observed import ObservedVirtualServer
from ipvsproxy.serve.local_socket import listen_at
from ipvsproxy.status.names_options import NamesFrom
from ipvsproxy.status_server import status_server
from ipvsproxy.top.figures import Order, Sample
from ipvsproxy.top.options import TopOptions, parse_options
from tests.builders import FakeClock, addr
from tests.top_figures import BEFORE, FIGURES, NOW
from tests.unit.test_status_server import ask, running

NOTHING_ASKED = TopOptions()


class ScriptedTerminal:
    """Keys at their times after the start, and what was drawn before each."""

    def __init__(self, clock: FakeClock, *keys: tuple[float, str]) -> None:
        self.clock = clock
        self.keys = list(keys)
        self.drawn: list[object] = []
        self.size = (80, 24)

    def draw(self, screen: object) -> None:
        self.drawn.append(screen)

    def wait(self, timeout_s: float) -> str | None:
        at, key = self.keys[0]
        if at > self.clock.now + timeout_s:
            self.clock.now += timeout_s
            return None
        self.clock.now = at
        del self.keys[0]
        return key


class Looks:
    """Counts looks; each is a sample of its moment."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.at: list[float] = []

    def __call__(self) -> Sample:
        self.at.append(self.clock.now)
        return msgspec.structs.replace(NOW, at=self.clock.now)


def followed(monkeypatch, *keys, options=NOTHING_ASKED):
    """When it looked, and by what each screen was sorted: (order, reversed)."""
    clock = FakeClock()
    looks, terminal, views = Looks(clock), ScriptedTerminal(clock, *keys), []
    monkeypatch.setattr(top_command, "screen", lambda _, view: views.append((view.order, view.is_reversed)))
    top_command.follow(options, looks, terminal, clock)
    assert len(views) == len(terminal.drawn)
    return looks.at, views


def test_it_looks_every_two_seconds_until_q(monkeypatch):
    looks, views = followed(monkeypatch, (5.0, "q"))
    assert (looks, len(views)) == ([0.0, 2.0, 4.0], 3)


def test_it_looks_as_often_as_is_asked_for(monkeypatch):
    assert followed(monkeypatch, (1.2, "q"), options=TopOptions(interval_s=0.5))[0] == [0.0, 0.5, 1.0]


def test_a_key_sorts_at_once_and_again_the_other_way_round_without_another_look(monkeypatch):
    looks, views = followed(monkeypatch, (0.1, "a"), (0.2, "a"), (0.3, "d"), (0.4, "?"), (0.5, "q"))
    assert looks == [0.0]
    assert views == [
        (Order.CONNECTIONS, False),
        (Order.ACTIVE, False),
        (Order.ACTIVE, True),
        (Order.DRAINING, False),
        (Order.DRAINING, False),
    ]


def test_keys_do_not_put_the_next_look_off(monkeypatch):
    keys = [(0.3 * n, "a") for n in range(1, 10)]
    assert followed(monkeypatch, *keys, (3.0, "q"))[0] == [0.0, 2.0]


@pytest.mark.parametrize("key", ["q", "Q", "\x04", ""])
def test_it_ends_by(key, monkeypatch):
    assert followed(monkeypatch, (0.1, key))[0] == [0.0]


def test_v_shows_virtual_servers_in_the_place_of_services_and_back(monkeypatch):
    clock, views = FakeClock(), []
    monkeypatch.setattr(top_command, "screen", lambda _, view: views.append(view.by_vip))
    terminal = ScriptedTerminal(clock, (0.1, "v"), (0.2, "a"), (0.3, "v"), (0.4, "q"))
    top_command.follow(NOTHING_ASKED, Looks(clock), terminal, clock)
    assert views == [False, True, True, False]


def test_a_listing_has_every_virtual_server_and_its_columns_stand_below_each_other():
    assert list(top_command.listing(FIGURES, Order.NAME)) == [
        "virtual server             service             up/all  active  inact  conn/s  pkt/s  in B/s  out B/s",
        "10.96.0.10:53/UDP          kube-system/dns:53     2/2       0    801      2k     8k    320k     960k",
        "[2001:db8:96::20]:443/TCP  shop/cart:https        1/1       1      0     0.5     20    4.5k    13.5k",
        "10.102.199.132:80/TCP      shop/web:http          2/3     120     33      42    12k    4.2M    12.6M  1 drain",
        "192.0.2.11:30080/TCP       -                      0/0       0      0       0      0       0        0  empty",
    ]


@pytest.mark.parametrize(
    "words,slept,rate",
    [
        pytest.param(["--once"], [], " 0 ", id="one look, which has the kernel's estimate"),
        pytest.param(["--once", "--interval=2"], [2.0], " 42 ", id="two looks, an interval apart"),
    ],
)
def test_once_prints_lines_and_ends(words, slept, rate, monkeypatch, capsys):
    samples, pauses = [BEFORE, NOW], []
    monkeypatch.setattr(top_command, "kernel_samples", lambda _: contextlib.nullcontext(lambda: samples.pop(0)))
    monkeypatch.setattr(top_command.time, "sleep", pauses.append)
    assert top_command.run(words) == ExitCode.OK
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("10.102.199.132:80/TCP")]
    assert (pauses, rate in line) == (slept, True)


def test_without_a_terminal_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(top_command, "kernel_samples", lambda _: contextlib.nullcontext(None))
    with pytest.raises(IpvsproxyError, match="--once"):
        top_command.run([])


def test_a_terminal_that_moves_no_cursor_is_told_what_to_do(monkeypatch):
    """rich would draw nothing there until the end."""
    monkeypatch.setattr(top_command, "kernel_samples", lambda _: contextlib.nullcontext(None))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(IpvsproxyError, match=r"takes lines only.*--once"):
        top_command.run([])


@pytest.mark.parametrize(
    "words,options",
    [
        pytest.param([], TopOptions(), id="nothing"),
        pytest.param(["--once"], TopOptions(once=True), id="once"),
        pytest.param(["--interval", "0.5"], TopOptions(interval_s=0.5), id="an interval"),
        pytest.param(["--manifests", "DIR"], TopOptions(names_from=NamesFrom("DIR")), id="a folder of names"),
        pytest.param(
            ["--kubeconfig=F"], TopOptions(names_from=NamesFrom("", cluster=True, kubeconfig="F")), id="an API server"
        ),
        pytest.param(["--sort=draining"], TopOptions(order=Order.DRAINING), id="an order"),
    ],
)
def test_the_words_mean(words, options):
    assert parse_options(words) == options


@pytest.mark.parametrize(
    "words", [["--nonsense"], ["x"], ["--interval=0"], ["--interval=x"], ["--interval=nan"], ["--sort=x"]]
)
def test_other_words_are_refused(words):
    with pytest.raises(ConfigError, match="top"):
        parse_options(words)


def test_names_have_one_source():
    with pytest.raises(ConfigError, match="one place alone"):
        parse_options(["--manifests=DIR", "--from-cluster"])


def test_help_is_told_without_a_look_at_the_kernel(capsys):
    assert cli.run(["top", "--help"], cli.Programs()) == ExitCode.OK
    assert capsys.readouterr().out.startswith("usage: ipvsproxy top")


def test_its_words_are_its_own():
    assert parse_command_line(["top", "--once", "x"]) == Top(("--once", "x"))


def test_a_kernel_that_cannot_be_read_is_an_error():
    def fail(_):
        raise KernelError("cannot read IPVS", 1)

    assert cli.run(["top"], cli.Programs(top=fail)) == ExitCode.ERROR


# On a terminal

PROGRAM = textwrap.dedent("""\
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have it ignored
    from ipvsproxy import top_command
    from tests.top_figures import NOW
    from ipvsproxy.top.options import TopOptions
    top_command._show(TopOptions(), lambda: NOW)
    print("ended")
    """)
ALTERNATE_SCREEN, FORMER_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.parametrize("key", [pytest.param(b"q", id="q"), pytest.param(b"\x03", id="Ctrl-C")])
def test_it_gives_the_terminal_back_as_it_was(key):
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path.cwd()), "COLUMNS": "80", "LINES": "24"}
    command = ["setsid", "--ctty", "--wait", sys.executable, "-c", PROGRAM]  # whose Ctrl-C is a signal to the program
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as program:
        try:
            shown = _read_until(ours, b"q quits")
            os.write(ours, key)
            shown += _read_until(ours, b"ended")
            assert program.wait(timeout=30) == 0
            assert termios.tcgetattr(theirs) == before
        finally:
            os.close(ours)  # a terminal that hangs up ends what still runs there
    os.close(theirs)
    assert ALTERNATE_SCREEN in shown
    assert b"shop/web:http" in shown
    assert shown.index(FORMER_SCREEN) < shown.index(b"ended")


def _read_until(terminal: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        found += os.read(terminal, 65536)
    return found


# What a daemon tells

WEB = KnownService("shop", "web", "", ("10.96.0.20",), (KnownPort("TCP", 80, "http"),))


def known(*services: KnownService) -> Known:
    return Known(KnownHead(1), services)


def server(ip: str) -> ObservedVirtualServer:
    return ObservedVirtualServer(Family.IPV4, 6, addr(ip), 80, 0, "rr", 0, 0, bytes(4))


def test_services_are_asked_for_every_half_minute_and_kept_while_nobody_answers():
    clock, answers = FakeClock(), [known(), None, known(WEB), None]
    services = top_command.Services(lambda: answers.pop(0), clock)
    names = []
    for _ in range(6):
        names.append(services.now()(server("10.96.0.20")))
        clock.now += 15
    clock.now += 30
    names.append(services.now()(server("10.96.0.20")))
    assert names == ["", "", "", "", "shop/web:http", "shop/web:http", "shop/web:http"]
    assert services.now()(server("10.96.0.21")) == ""


def test_a_name_cannot_command_the_terminal():
    services = top_command.Services(lambda: known(msgspec.structs.replace(WEB, name="\x1b[31m")), FakeClock())
    assert services.now()(server("10.96.0.20")) == "shop/?[31m:http"


def test_a_source_that_was_named_has_to_answer():
    services = top_command.Services(top_command._names_reader(NamesFrom("/nosuch")), FakeClock())
    with pytest.raises(ConfigError, match="cannot be read"):
        services.now()


def test_what_is_refused_is_what_the_daemon_says_and_nothing_without_one(tmp_path):
    path = tmp_path / "status.sock"
    figures = Figures(refused={Kind.ADDRESS: 2}, waiting={Kind.VIRTUAL_SERVER: 1})
    with running(status_server(lambda _: None, lambda: figures, SystemClock(), "n1", str(path))):
        ask(path, "/undone")  # it listens
        assert top_command.undone(str(path)) == Undone(2, 1)
    assert top_command.undone(str(path)) is None


def test_a_daemon_that_does_not_answer_at_once_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(top_command, "_UNDONE_PATIENCE_S", 0.01)
    path = tmp_path / "status.sock"
    with listen_at(str(path)):
        assert top_command.undone(str(path)) is None
