"""What `kernel/api.py` promises of HostFiles, on the fake and on the real kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ipvsproxy.kernel.api import HostFiles
from ipvsproxy.kernel.fake import FakeHostFiles
from ipvsproxy.kernel.host_files import RootFiles
from ipvsproxy.plan.host_settings import OOM_SCORE_ADJ

TTL = "proc/sys/net/ipv4/ip_default_ttl"  # a network namespace has its own
MISSING = "proc/sys/net/ipv4/no_such_setting"


@pytest.fixture
def files(pick: Callable) -> HostFiles:
    return pick(FakeHostFiles({TTL: 64, OOM_SCORE_ADJ: 0}), RootFiles)


def test_a_written_number_reads_back(files):
    for value in (63, 64):
        assert files.write(TTL, value) == 0
        assert files.read(TTL) == value


def test_a_negative_number_reads_back(files):
    assert files.write(OOM_SCORE_ADJ, -17) == 0
    assert files.read(OOM_SCORE_ADJ) == -17
    assert files.write(OOM_SCORE_ADJ, 0) == 0


def test_a_file_that_is_not_there_has_no_number_and_is_not_made(files):
    assert files.read(MISSING) is None
    assert files.write(MISSING, 1) == errno.ENOENT
    assert files.read(MISSING) is None


def test_there_is_at_least_one_cpu(files):
    assert files.online_cpus() >= 1


def test_a_number_that_the_kernel_does_not_take_answers_einval(files, real_kernel):  # noqa: ARG001
    assert files.write(TTL, 256) == errno.EINVAL


@pytest.mark.parametrize(
    "content,cpus",
    [
        pytest.param("0-3,8\n", 5, id="a list"),
        pytest.param("0\n", 1, id="one"),
    ],
)
def test_the_hosts_online_cpus_are_counted_not_our_share_of_them(tmp_path, content, cpus):
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text(content)
    assert RootFiles(tmp_path).online_cpus() == cpus


def test_settings_of_the_network_are_where_the_hosts_folder_is_mounted(tmp_path):
    for name in ("root/proc/self/oom_score_adj", "mounted/netfilter/nf_conntrack_max"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("7\n")
    files = RootFiles(tmp_path / "root", tmp_path / "mounted")
    for path in ("proc/sys/net/netfilter/nf_conntrack_max", "proc/self/oom_score_adj"):
        assert files.read(path) == 7
        assert files.write(path, 8) == 0
        assert files.read(path) == 8


def test_what_is_no_number_is_none(tmp_path):
    Path(tmp_path, "file").write_text("many\n")
    assert RootFiles(tmp_path).read("file") is None
