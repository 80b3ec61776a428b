"""When the daemon starts anew for its configuration, and when it goes on with the one that it has."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ipvsproxy import daemon
from ipvsproxy.config.command_line import Serve, parse_command_line
from ipvsproxy.config.types import ProxyConfig
from ipvsproxy.config_file import read_bytes
from ipvsproxy.config_follower import ConfigFollower
from ipvsproxy.errors import ConfigError
from ipvsproxy.process import accept_signals
from ipvsproxy.sync.runner import Signal

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
SH, LC, BAD = (HEAD + f"ipvs: {{scheduler: {name}}}\n" for name in ("sh", "lc", '"no such"'))


class Scripted:
    """A file that has another text at each look, the last one from then on; None: it is not there."""

    def __init__(self, *texts: str | None) -> None:
        self._texts = list(texts)

    def read(self, _path: str) -> bytes:
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        if text is None:
            raise ConfigError("--config c.yaml", "No such file or directory")
        return text.encode()


def follow(file: Scripted, *steps):
    """Take each step and look; how often a restart was asked for, and what was told."""
    command = parse_command_line(["--config=c.yaml"], file.read)
    assert isinstance(command, Serve)
    restarts: list[ProxyConfig] = []
    follower = ConfigFollower(command.config, command.reread, restarts.append)
    for step in steps:
        step(follower)
    follower.stop()
    with capture_logs() as logs:
        follower.run()
    return len(restarts), [(line["event"], line.get("changed", line.get("reason"))) for line in logs]


@pytest.mark.parametrize(
    "before,after",
    [
        pytest.param(
            "conntrack: {tcpEstablishedTimeout: 24h}", "conntrack: {tcpEstablishedTimeout: 24h0m0s}", id="24h"
        ),
        pytest.param("conntrack: {tcpEstablishedTimeout: 24h}", "", id="a default that is given"),
        pytest.param('mode: ""', "mode: ipvs", id="the mode that blank means"),
        pytest.param("ipvs: {syncPeriod: 60s}", "ipvs: {syncPeriod: 1m}", id="60s and 1m"),
        pytest.param(
            "metricsBindAddress: 127.0.0.1", "metricsBindAddress: 127.0.0.1:10249", id="the port that is meant"
        ),
        pytest.param("clusterCIDR: 10.244.3.7/16", "clusterCIDR: 10.244.0.0/16", id="host bits"),
        pytest.param("nftables: {syncPeriod: 1m}", "nftables: {syncPeriod: 2m}", id="what has no effect here"),
    ],
)
def test_what_means_the_same_in_other_words_restarts_nothing(before, after):
    assert follow(Scripted(HEAD + before, HEAD + after)) == (0, [])


def test_text_that_looks_like_a_duration_and_is_none_is_compared_as_text():
    count, told = follow(Scripted(HEAD + "hostnameOverride: 60s", HEAD + "hostnameOverride: 1m"))
    assert (count, told) == (1, [("restarting", ("hostnameOverride",))])


def look(follower):
    follower.look()


def hup(follower):
    follower.reload()


@pytest.mark.parametrize(
    "texts,steps,restarts,events",
    [
        pytest.param([SH, SH], [], 0, [], id="nothing has changed"),
        pytest.param([SH, LC], [], 1, ["restarting"], id="it changed before it was followed"),
        pytest.param([SH, SH, LC], [look], 1, ["restarting"], id="it changes"),
        pytest.param([SH, SH, SH + "# a comment\n"], [look], 0, [], id="its text changes, and not what it means"),
        pytest.param([SH, SH, BAD, BAD], [look, look], 0, ["configuration_refused"], id="a bad file is told once"),
        pytest.param(
            [SH, SH, BAD, BAD], [look, hup], 0, ["configuration_refused"] * 2, id="and again to who asks for it"
        ),
        pytest.param(
            [SH, SH, BAD, SH, BAD],
            [look] * 3,
            0,
            ["configuration_refused"] * 2,
            id="and when it has been good meanwhile",
        ),
        pytest.param(
            [SH, SH, BAD, LC],
            [look, look],
            1,
            ["configuration_refused", "restarting"],
            id="a bad file is put right",
        ),
        pytest.param([SH, SH, None], [look], 0, ["configuration_refused"], id="the file is gone"),
        pytest.param([SH, SH, "mode: ["], [look], 0, ["configuration_refused"], id="the file is half written"),
        pytest.param([SH, SH, SH], [hup], 1, ["restarting"], id="a restart is asked for"),
        pytest.param([SH, SH, LC, SH], [look, look], 1, ["restarting"], id="one restart is enough"),
    ],
)
def test_a_restart_comes_when_the_meaning_changes_or_somebody_asks(texts, steps, restarts, events):
    count, told = follow(Scripted(*texts), *steps)
    assert count == restarts
    assert [event for event, _ in told] == events


def test_a_change_is_told_with_the_fields_and_a_refusal_with_its_reason():
    _, told = follow(Scripted(SH, SH, BAD, LC), look, look)
    (refused, reason), (changed, fields) = told
    assert (refused, changed) == ("configuration_refused", "restarting")
    assert "KubeProxyIPVSConfiguration.Scheduler" in str(reason)
    assert fields == ("ipvs.scheduler",)


def test_a_restart_is_for_the_text_that_was_loaded_whatever_the_file_becomes(tmp_path):
    write_anew(tmp_path, SH)
    command = parse_command_line([f"--config={tmp_path / 'config.conf'}"], read_bytes)
    assert isinstance(command, Serve)
    write_anew(tmp_path, LC)
    ending = daemon._Ending(daemon.QueueInbox())
    ConfigFollower(command.config, command.reread, ending.restart).run()
    write_anew(tmp_path, "mode: [")
    outcome = ending.outcome(0)
    accept_signals()
    assert outcome == daemon.Restart(LC.encode())


def swap_config_map(folder: Path, text: str) -> None:
    """As the kubelet does it: a new folder, and the link to the old one renamed over."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "config.conf").write_text(text)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")


def rename_over(folder: Path, text: str) -> None:
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "config.conf")


def write_anew(folder: Path, text: str) -> None:
    (folder / "config.conf").write_text(text)


def mounted(folder: Path) -> None:
    swap_config_map(folder, SH)
    (folder / "config.conf").symlink_to("..data/config.conf")


@pytest.mark.parametrize(
    "place,change",
    [
        pytest.param(mounted, swap_config_map, id="a ConfigMap volume is swapped"),
        pytest.param(lambda folder: write_anew(folder, SH), write_anew, id="the file is written anew"),
        pytest.param(lambda folder: write_anew(folder, SH), rename_over, id="another file is renamed over it"),
        pytest.param(mounted, rename_over, id="a file is renamed over the link to it"),
    ],
)
def test_every_way_to_change_the_file_is_noticed(place, change, tmp_path):
    place(tmp_path)
    command = parse_command_line([f"--config={tmp_path / 'config.conf'}"], read_bytes)
    assert isinstance(command, Serve)
    inbox = daemon.QueueInbox()
    ending = daemon._Ending(inbox)
    looked = threading.Event()

    def reread() -> ProxyConfig:
        config = command.reread()
        looked.set()
        return config

    follower = ConfigFollower(command.config, reread, ending.restart)
    workers = daemon._config_workers(command.config, follower, inbox)
    for worker in workers:
        worker.thread.start()
    assert looked.wait(30)  # the look at the start is over: from here on only a notification leads to another
    change(tmp_path, LC)
    assert inbox.get(30) is Signal.STOP
    assert ending.next == daemon.Restart(LC.encode())
    for worker in workers:
        worker.stop()
        worker.thread.join()
        assert worker.failure is None


def test_without_a_file_only_a_signal_restarts():
    command = parse_command_line(["--manifests=x"])
    assert isinstance(command, Serve)
    inbox = daemon.QueueInbox()
    follower = ConfigFollower(command.config, command.reread, daemon._Ending(inbox).restart)
    (worker,) = daemon._config_workers(command.config, follower, inbox)
    follower.reload()
    worker.thread.start()
    assert inbox.get(30) is Signal.STOP
    worker.thread.join()
