from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.lab.kubelet import PodError, _host_path


def test_a_path_of_the_node_is_made_where_its_type_says_so(tmp_path: Path):
    folder = _host_path({"path": str(tmp_path / "a" / "b"), "type": "DirectoryOrCreate"})
    file = _host_path({"path": str(folder / "lock"), "type": "FileOrCreate"})
    assert (folder.is_dir(), file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (True, b"", 0o644)


def test_what_is_there_stays(tmp_path: Path):
    (tmp_path / "lock").write_text("x")
    assert _host_path({"path": str(tmp_path / "lock"), "type": "FileOrCreate"}).read_text() == "x"
    assert _host_path({"path": str(tmp_path), "type": "Directory"}) == tmp_path


def test_a_folder_that_must_be_there_and_is_not_is_told(tmp_path: Path):
    with pytest.raises(PodError, match="modules is no folder of this node"):
        _host_path({"path": str(tmp_path / "modules"), "type": "Directory"})
