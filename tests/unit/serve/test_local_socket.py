"""The Unix socket of a daemon."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

import pytest

from ipvsproxy.serve.local_socket import FOLDER, listen_at, local_hint, socket_path


def test_it_is_under_run_and_named_after_the_network_namespace():
    assert socket_path() == f"/run/ipvsproxy/net-{os.stat('/proc/thread-self/ns/net').st_ino}.sock"  # noqa: PTH116
    assert FOLDER == "/run/ipvsproxy"


def test_only_its_owner_may_connect(tmp_path):
    path = tmp_path / "made" / "status.sock"
    with contextlib.closing(listen_at(str(path))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_mode_is_right_whatever_the_umask_and_leaves_that_alone(tmp_path):
    before = os.umask(0)
    try:
        with contextlib.closing(listen_at(str(tmp_path / "status.sock"))):
            assert stat.S_IMODE((tmp_path / "status.sock").stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_what_a_dead_daemon_left_is_replaced(tmp_path):
    path = str(tmp_path / "status.sock")
    listen_at(path).close()
    with contextlib.closing(listen_at(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_the_socket_of_a_daemon_that_answers_is_not_taken(tmp_path):
    path = str(tmp_path / "status.sock")
    with contextlib.closing(listen_at(path)):
        with pytest.raises(OSError) as refused:
            listen_at(path)
        assert refused.value.errno == errno.EADDRINUSE
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_what_is_no_socket_is_not_deleted(tmp_path):
    path = tmp_path / "status.sock"
    path.write_text("precious")
    with pytest.raises(OSError) as refused:
        listen_at(str(path))
    assert refused.value.errno == errno.EEXIST
    assert path.read_text() == "precious"


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EEXIST, errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_every_failure_has_a_hint(number):
    assert local_hint(number, "/run/ipvsproxy/net-1.sock")
