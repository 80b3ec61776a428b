"""The package as it is given away: built as sdist and wheel, and installed into an empty environment as the page says.

Here, since it takes a minute: the packages it needs are unpacked, and two of them compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import ipvsproxy
from ipvsproxy.config.command_line import Serve, parse_command_line
from tests.documented import ROOT, documented

pytestmark = pytest.mark.timeout(900)

VERSION = ipvsproxy.__version__
PREFIX = "/opt/ipvsproxy"
PAGE = (ROOT / "docs" / "install.md").read_text()
BLOCK = documented("docs/install.md", "A service of systemd", in_block=True)
(APT,) = documented("docs/install.md", "A service of systemd", program="apt")
GIVEN = {
    "share/bash-completion/completions/ipvsproxy",
    "share/fish/vendor_completions.d/ipvsproxy.fish",
    "share/man/man8/ipvsproxy.8",
    "share/zsh/site-functions/_ipvsproxy",
}


def run(*words: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, words)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(source: Path, kind: str, out: Path) -> Path:
    """The one file that comes of it, by the build packages of this environment."""
    options = ["--no-build-isolation", f"--python={sys.executable}", f"--out-dir={out}", "--offline"]
    run(Path(sys.executable).parent / "uv", "build", f"--{kind}", *options, source)
    (made,) = (path for path in out.iterdir() if path.suffix in {".whl", ".gz"})
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the sdist, as whoever has no tree makes it; nothing is left in ours."""
    folder = tmp_path_factory.mktemp("wheel")
    run("tar", "--extract", f"--file={sdist}", f"--directory={folder}")  # tarfile's filters are not in Debian's 3.11.2
    return build(folder / sdist.name.removesuffix(".tar.gz"), "wheel", folder / "out")


def test_the_sdist_is_named_for_the_one_version(sdist: Path):
    assert sdist.name == f"ipvsproxy-{VERSION}.tar.gz"


def test_the_wheel_has_the_code_its_data_and_what_shells_and_man_look_for(wheel: Path):
    assert wheel.name == f"ipvsproxy-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"ipvsproxy-{VERSION}.data/data/{path}" for path in GIVEN} <= names
    assert {"ipvsproxy/py.typed", "ipvsproxy/config/schema.json", "ipvsproxy/status/schema.json"} <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ipvsproxy").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if name.startswith(("tests", "docs", "charts"))]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment made by the block of the page, of the wheel in the place of the tree."""
    prefix = tmp_path_factory.mktemp("opt") / "ipvsproxy"
    assert sum(PREFIX in command.text for command in BLOCK) == 5
    text = (
        "\n".join(command.text for command in BLOCK)
        .replace(PREFIX, str(prefix))
        .replace("--no-build-isolation .", f"--no-build-isolation {wheel}")
    )
    assert str(wheel) in text
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = run("bash", "-euo", "pipefail", "-c", text, environment=environment)
    assert done.stdout.endswith(f"ipvsproxy {VERSION}\n")
    return prefix


def test_debian_has_the_packages_that_the_page_names():
    """As it would install them: nothing is changed."""
    run(*APT.text.split(), "--simulate", environment=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


def test_nothing_that_it_needs_is_missing(installed: Path):
    run(installed / "bin" / "pip", "check")


def test_the_program_works_by_its_name_as_a_module_and_as_ipvsadm(installed: Path, tmp_path: Path):
    name = f"ipvsproxy {VERSION}\n"
    assert run(installed / "bin" / "ipvsproxy", "--version").stdout == name
    assert run(installed / "bin" / "python", "-m", "ipvsproxy", "--version").stdout == name
    plan = ["plan", "--manifests=tests/golden/nginx-demo", "--hostname-override=n1", "-o", "ipvsadm"]
    expected = (ROOT / "tests/golden/nginx-demo/ipvsadm.txt").read_text()
    assert run(installed / "bin" / "ipvsproxy", *plan).stdout == expected
    link = tmp_path / "ipvsadm"
    link.symlink_to(installed / "bin" / "ipvsproxy")
    zeroing = subprocess.run([link, "--zero"], capture_output=True, text=True, check=False)  # asks no kernel
    assert (zeroing.returncode, "ipvsproxy lists what IPVS has" in zeroing.stderr) == (2, True)


def test_completions_and_manual_lie_where_shells_and_man_look(installed: Path):
    assert {str(path.relative_to(installed)) for path in (installed / "share").rglob("*") if path.is_file()} == GIVEN


def test_the_unit_of_systemd_starts_what_the_program_takes():
    (words,) = re.findall(rf"^ExecStart={PREFIX}/bin/ipvsproxy (.*)$", PAGE, re.MULTILINE)
    (file,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    command = parse_command_line(words.split(), lambda _: file.encode())
    assert isinstance(command, Serve)
    assert (command.config.mode, command.config.kubeconfig) == ("ipvs", "/etc/ipvsproxy/kubeconfig")
    assert not command.config.remarks
