"""Settings of the host at a start: what is written, and what is said of what cannot be."""

from __future__ import annotations

import errno

import pytest
from structlog.testing import capture_logs

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.fake import FakeHostFiles, FakeKernel
from ipvsproxy.plan.host_settings import (
    CONNTRACK_MAX,
    HASHSIZE,
    KEEPALIVE_TIME,
    OOM_SCORE_ADJ,
    RUN_ESTIMATION,
    HostSetting,
    conntrack_settings,
)
from ipvsproxy.sync.host_settings import KeptSettings, put_in_force, put_timeouts_in_force
from tests.builders import conntrack

LIMITS = conntrack_settings(conntrack(max_per_core=32768, min=131072), 2)
IDLE = "idle_connections_end_early"


def test_k41_what_is_too_low_is_raised_and_said_in_one_line():
    files = FakeHostFiles({CONNTRACK_MAX: 65536, HASHSIZE: 16384})
    with capture_logs() as lines:
        assert put_in_force(files, LIMITS) == 0
    assert files.files == {CONNTRACK_MAX: 131072, HASHSIZE: 32768}
    assert [(line["event"], line["nf_conntrack_max"], line["hashsize"]) for line in lines] == [
        ("host_settings_written", 131072, 32768)
    ]


def test_k41_what_is_high_enough_is_neither_written_nor_told():
    files = FakeHostFiles({CONNTRACK_MAX: 262144, HASHSIZE: 32768})
    with capture_logs() as lines:
        put_in_force(files, LIMITS)
    assert (files.written, lines) == ([], [])


def test_k41_on_a_read_only_tree_each_is_warned_of_once_and_the_rest_goes_on():
    files = FakeHostFiles(
        {CONNTRACK_MAX: 65536, HASHSIZE: 16384, OOM_SCORE_ADJ: 0}, read_only=[CONNTRACK_MAX, HASHSIZE]
    )
    with capture_logs() as lines:
        assert put_in_force(files, (*LIMITS, HostSetting(OOM_SCORE_ADJ, -999))) == 2
    refused = [line for line in lines if line["event"] == "host_setting_refused"]
    assert [(line["log_level"], line["file"], line["found"]) for line in refused] == [
        ("warning", f"/{CONNTRACK_MAX}", 65536),
        ("warning", f"/{HASHSIZE}", 16384),
    ]
    assert all(line["errno"].startswith("EROFS") and line["hint"] for line in refused)
    assert files.files[OOM_SCORE_ADJ] == -999


def test_k39_where_the_kernel_has_no_switch_for_estimation_it_is_warned_of_once():
    with capture_logs() as lines:
        put_in_force(FakeHostFiles({}), (HostSetting(RUN_ESTIMATION, 0),))
    (line,) = lines
    assert line["errno"].startswith("ENOENT")
    assert "statistics go on" in line["hint"]


def test_k39_estimation_is_switched_off_where_it_can_be():
    files = FakeHostFiles({RUN_ESTIMATION: 1})
    put_in_force(files, (HostSetting(RUN_ESTIMATION, 0),))
    assert files.files == {RUN_ESTIMATION: 0}


@pytest.mark.parametrize(
    "asked,keepalive_s,level",
    [
        pytest.param((300, 0, 0), 7200, "warning", id="asked for, below the keep-alive time"),
        pytest.param((0, 0, 60), 7200, "info", id="the kernel's own, below it"),
        pytest.param((7201, 0, 0), 7200, "", id="above it"),
        pytest.param((7200, 0, 0), 7200, "", id="equal to it"),
        pytest.param((300, 0, 0), 60, "", id="keep-alives come early"),
        pytest.param((300, 0, 0), None, "", id="the keep-alive time cannot be read"),
    ],
)
def test_k07_a_tcp_time_out_below_the_keep_alive_time_is_told(asked, keepalive_s, level):
    files = FakeHostFiles({} if keepalive_s is None else {KEEPALIVE_TIME: keepalive_s})
    with capture_logs() as lines:
        put_timeouts_in_force(FakeKernel().kernel.ipvs, files, *asked)
    assert [line["log_level"] for line in lines if line["event"] == IDLE] == ([level] if level else [])


def test_k07_only_what_is_asked_for_is_changed():
    kernel = FakeKernel()
    put_timeouts_in_force(kernel.kernel.ipvs, FakeHostFiles({}), 0, 0, 17)
    assert kernel.timeouts == (900, 120, 17)


def test_k07_without_a_time_out_the_kernel_is_told_nothing():
    kernel = FakeKernel()
    put_timeouts_in_force(kernel.kernel.ipvs, FakeHostFiles({}), 0, 0, 0)
    assert kernel.messages == 0


# What a module that is loaded anew has forgotten

NO_ESTIMATION = (HostSetting(RUN_ESTIMATION, 0),)


def reloaded(kernel: FakeKernel, files: FakeHostFiles) -> None:
    kernel.timeouts = (900, 120, 300)
    files.files[RUN_ESTIMATION] = 1


def kept(asked=(7500, 0, 60)) -> tuple[FakeKernel, FakeHostFiles, KeptSettings]:
    """Settings that have been put in force and looked at once."""
    kernel, files = FakeKernel(), FakeHostFiles({RUN_ESTIMATION: 0})
    kernel.kernel.ipvs.set_timeouts(*asked)
    made = KeptSettings(kernel.kernel.ipvs, files, asked, NO_ESTIMATION)
    made.check()
    return kernel, files, made


def test_k07_time_outs_that_are_lost_are_set_again_and_said():
    kernel, files, settings = kept()
    reloaded(kernel, files)
    with capture_logs() as lines:
        settings.check()
    assert kernel.timeouts == (7500, 120, 60)
    (line,) = [line for line in lines if line["event"] == "timeouts_lost"]
    assert (line["found_s"], line["wanted_s"], line["log_level"]) == ((900, 120, 300), (7500, 0, 60), "warning")


def test_k39_estimation_that_is_on_again_is_switched_off_again_and_said():
    kernel, files, settings = kept()
    reloaded(kernel, files)
    with capture_logs() as lines:
        settings.check()
    assert files.files[RUN_ESTIMATION] == 0
    assert [line["event"] for line in lines if "run_estimation" in line] == ["host_settings_written"]


def test_what_is_lost_again_at_once_is_set_again_too():
    kernel, files, settings = kept()
    for _ in range(3):
        reloaded(kernel, files)
        settings.check()
        assert (kernel.timeouts, files.files[RUN_ESTIMATION]) == ((7500, 120, 60), 0)


def test_what_is_in_force_is_neither_written_nor_told():
    kernel, files, settings = kept()
    before = kernel.messages
    with capture_logs() as lines:
        settings.check()
    assert (kernel.messages, files.written, lines) == (before, [], [])


def test_k07_time_outs_that_nobody_asked_for_are_the_nodes_own():
    kernel, _, settings = kept(asked=(0, 0, 0))
    kernel.timeouts = (1, 2, 3)
    settings.check()
    assert kernel.timeouts == (1, 2, 3)


def test_what_a_start_could_not_put_in_force_is_not_tried_by_each_audit():
    kernel, files = FakeKernel(), FakeHostFiles({RUN_ESTIMATION: 1}, read_only=[RUN_ESTIMATION])
    settings = KeptSettings(kernel.kernel.ipvs, files, (7500, 0, 0), NO_ESTIMATION)
    with capture_logs() as lines:
        settings.check()
    assert (kernel.timeouts, lines) == ((900, 120, 300), [])


def test_ipvs_that_does_not_answer_is_asked_again_at_the_next_audit():
    kernel, files, settings = kept()
    reloaded(kernel, files)
    answer = kernel.kernel.ipvs.timeouts

    def refuse() -> tuple[int, int, int]:
        raise KernelError("cannot read the time-outs", errno.ENOBUFS)

    kernel.kernel.ipvs.timeouts = refuse  # type: ignore[method-assign]
    settings.check()
    kernel.kernel.ipvs.timeouts = answer  # type: ignore[method-assign]
    settings.check()
    assert kernel.timeouts == (7500, 120, 60)
