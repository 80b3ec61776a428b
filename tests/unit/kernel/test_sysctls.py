"""Names of settings, error numbers, the kernel's version."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ipvsproxy.errors import KernelError
from ipvsproxy.kernel.sysctls import ProcSysctls, kernel_release, sysctl_path
from ipvsproxy.model.kernel_objects import Kind, Operation, Verb


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("net/ipv4/ip_forward", "net/ipv4/conf/eth0.100/arp_ignore"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("0\n")
    return tmp_path


@pytest.mark.parametrize(
    "name,path",
    [
        pytest.param("net.ipv4.ip_forward", "net/ipv4/ip_forward", id="dots separate"),
        pytest.param("net/ipv4/conf/eth0.100/arp_ignore", "net/ipv4/conf/eth0.100/arp_ignore", id="slashes keep dots"),
    ],
)
def test_a_name_means_a_file(root, name, path):
    assert sysctl_path(name, root, root / "net") == root / path
    assert ProcSysctls([name], root).apply([Operation(Verb.EDIT, Kind.SYSCTL, name, "1")]) == [0]
    assert (root / path).read_text().startswith("1")


def test_settings_of_the_network_are_where_the_hosts_folder_is_mounted(root, tmp_path):
    """As in a container, whose own /proc/sys is read-only."""
    mounted = tmp_path / "host"
    (root / "net").rename(mounted)
    sysctls = ProcSysctls(["net.ipv4.ip_forward"], root, mounted)
    assert sysctls.apply([Operation(Verb.EDIT, Kind.SYSCTL, "net.ipv4.ip_forward", "1")]) == [0]
    assert sysctls.read() == {Kind.SYSCTL: {"net.ipv4.ip_forward": "1"}}


def test_values_are_read_without_blanks_and_missing_names_are_left_out(root):
    sysctls = ProcSysctls(["net.ipv4.ip_forward", "net.ipv4.vs.conntrack"], root)
    assert sysctls.read() == {Kind.SYSCTL: {"net.ipv4.ip_forward": "0"}}


def test_a_value_that_is_no_text_is_another_one_than_any_we_want(root):
    (root / "net/ipv4/ip_forward").write_bytes(b"caf\xe9\n")
    sysctls = ProcSysctls(["net.ipv4.ip_forward"], root)
    assert sysctls.read() == {Kind.SYSCTL: {"net.ipv4.ip_forward": "caf\N{REPLACEMENT CHARACTER}"}}
    assert sysctls.fingerprint()


@pytest.mark.parametrize(
    "name,verb,number",
    [
        pytest.param("net.ipv4.vs.conntrack", Verb.EDIT, errno.ENOENT, id="a setting that is not there"),
        pytest.param("net.ipv4", Verb.EDIT, errno.EISDIR, id="a folder"),
        pytest.param("net.ipv4.ip_forward", Verb.DELETE, errno.EPERM, id="deleting"),
    ],
)
def test_what_cannot_be_done_answers_its_errno_and_makes_no_file(root, name, verb, number):
    before = sorted(root.rglob("*"))
    assert ProcSysctls([], root).apply([Operation(verb, Kind.SYSCTL, name, "1")]) == [number]
    assert sorted(root.rglob("*")) == before


def test_a_setting_that_the_kernel_only_shows_answers_eacces():
    sysctls = ProcSysctls([])
    assert sysctls.apply([Operation(Verb.EDIT, Kind.SYSCTL, "kernel.osrelease", "1")]) == [errno.EACCES]


def test_an_unreadable_setting_raises_with_its_name(root):
    with pytest.raises(KernelError, match=r"net\.ipv4: EISDIR"):
        ProcSysctls(["net.ipv4"], root).read()


@pytest.mark.parametrize(
    "text,release",
    [
        pytest.param("6.12.117-cloud-amd64\n", (6, 12), id="Debian"),
        pytest.param("5.9-rc1\n", (5, 9), id="a release candidate"),
        pytest.param("4.18.0-553.el8.x86_64", (4, 18), id="RHEL"),
    ],
)
def test_the_kernel_release_is_its_first_two_numbers(tmp_path, text, release):
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/osrelease").write_text(text)
    assert kernel_release(tmp_path) == release


def test_a_release_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/osrelease").write_text("next-20260101\n")
    with pytest.raises(KernelError, match="next-20260101"):
        kernel_release(tmp_path)


def test_a_release_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(KernelError, match="ENOENT"):
        kernel_release(tmp_path)


def test_the_running_kernel_has_a_release():
    assert kernel_release() >= (3, 0)
