from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab import image


@pytest.mark.parametrize("argument, place", [("BASE_IMAGE", 0), ("BUILD_IMAGE", 1)])
def test_a_base_has_what_the_dockerfile_would_install(argument: str, place: int):
    looked_for = re.findall(r'packages="([^"]+)"', (image.ROOT / "Dockerfile").read_text())
    assert tuple(looked_for[place].split()) == image.BASES[argument][1]


def test_a_file_with_two_names_takes_its_room_once_and_a_link_its_own(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").write_bytes(bytes(1000))
    (tmp_path / "folder" / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("a")
    assert image.size(tmp_path) == 1000 + len("a")


def test_a_component_is_named_as_scanners_look_for_it():
    assert image._component("pypi", "six", "1.17.0", "MIT") == {
        "type": "library",
        "name": "six",
        "version": "1.17.0",
        "purl": "pkg:pypi/six@1.17.0",
        "licenses": [{"expression": "MIT"}],
    }
    assert "licenses" not in image._component("deb/debian", "kmod", "30+20221128-1", "")


def test_what_is_sent_to_the_builder_is_what_it_copies():
    ignored = (image.ROOT / ".dockerignore").read_text().splitlines()
    copied = {
        name
        for words in re.findall(r"^COPY --chown=\S+ (.+) \S+$", (image.ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for name in words.split()
    }
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied


def test_another_byte_in_a_source_makes_another_image_and_byte_code_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(image, "ROOT", tmp_path)
    (tmp_path / "ipvsproxy" / "__pycache__").mkdir(parents=True)
    (tmp_path / "tests/lab").mkdir(parents=True)
    (tmp_path / ".dockerignore").write_text("*\n!ipvsproxy\n**/__pycache__\n")
    for name in ("Dockerfile", "tests/lab/image.py", "ipvsproxy/a.py"):
        (tmp_path / name).write_text("1")
    first = image.made_of()
    (tmp_path / "ipvsproxy/__pycache__/a.pyc").write_text("2")
    assert image.made_of() == first
    (tmp_path / "ipvsproxy/a.py").write_text("2")
    assert image.made_of() != first
