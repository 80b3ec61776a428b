"""The configuration file on disk."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from ipvsproxy.config_file import FirstHandedOver, read_bytes, write_text
from ipvsproxy.errors import ConfigError


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=f"^--config {tmp_path}: Is a directory$"):
        read_bytes(str(tmp_path))


def test_a_pipe_is_refused_and_nobody_waits_for_who_writes_into_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="it is no regular file"):
        read_bytes(str(tmp_path / "pipe"))


def test_a_device_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="it is no regular file"):
        read_bytes("/dev/zero")


def test_a_file_that_no_configuration_can_fill_is_refused(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"#" * (4 << 20))
    assert len(read_bytes(str(tmp_path / "c.yaml"))) == 4 << 20
    (tmp_path / "c.yaml").write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(ConfigError, match="it has more than 4194304 bytes"):
        read_bytes(str(tmp_path / "c.yaml"))


def test_what_was_handed_over_is_read_once_and_then_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("on disk")
    file = FirstHandedOver(b"handed over")
    assert [file.read(str(tmp_path / "c.yaml")) for _ in range(3)] == [b"handed over", b"on disk", b"on disk"]
    assert FirstHandedOver(None).read(str(tmp_path / "c.yaml")) == b"on disk"


def test_a_new_file_is_written_for_all_to_read(tmp_path):
    write_text(str(tmp_path / "c.yaml"), "mode: ipvs # é\n")
    assert (tmp_path / "c.yaml").read_bytes() == "mode: ipvs # é\n".encode()
    assert (tmp_path / "c.yaml").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_a_file_that_is_written_anew_keeps_its_permissions_and_the_links_to_it(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    write_text(str(tmp_path / "link"), "new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "real").read_text()) == (True, "new")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(str(tmp_path / "pipe"), "mode: ipvs")
    assert os.read(reader, 100) == b"mode: ipvs"
    os.close(reader)


def test_where_there_is_no_room_the_old_file_stays_whole(tmp_path):
    (tmp_path / "c.yaml").write_text("old")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"^--write-config-to .*: File too large$"):
            write_text(str(tmp_path / "c.yaml"), "0123456789 and more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("c.yaml", "old")]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"^--write-config-to .*/no/c.yaml: No such file or directory$"):
        write_text(str(tmp_path / "no" / "c.yaml"), "")
