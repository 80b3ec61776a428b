"""Builds the image from packages alone, for no image registry can be reached here: `make image`.

The base is made by mmdebstrap, the image by buildah from the Dockerfile; both are Debian packages, and run as root. In
build/image lie the image as an archive, its bill of materials (CycloneDX), its root file system, and its settings
(config.json, as the OCI image specification has them).
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path

from ipvsproxy import __version__  # noqa: E402  # needs the line above
from tests.lab import programs  # noqa: E402
from tests.lab.containers import Image  # noqa: E402
from tests.lab.machine import LabError  # noqa: E402

OUT = ROOT / "build" / "image"
IMAGE = f"localhost/ipvsproxy:{__version__}"
"""In the archive too, and so on a node that it is imported into. By `ipvsproxy` alone a kubelet means an image of its
default registry, and does not find this one."""
LARGEST_MIB = 200
SUITE = "bookworm"
BASES = {
    "BASE_IMAGE": (
        "localhost/ipvsproxy-base:latest",
        ("ca-certificates", "ipset", "iptables", "kmod", "libip4tc2", "libip6tc2", "libxtables12", "python3"),
    ),
    "BUILD_IMAGE": (
        "localhost/ipvsproxy-build-base:latest",
        ("ca-certificates", "gcc", "libc6-dev", "python3-dev", "python3-venv"),
    ),
}
"""The Dockerfile's two bases, by their argument: name, and the packages that it looks for."""
LEFT_OUT = ("share/doc", "share/man", "share/locale", "share/info", "lib/*/gconv")
# What the image depends on, beside what the package mirrors have by now.
SOURCES = ("Dockerfile", ".dockerignore", "tests/lab/image.py")
# How this machine reaches package registries is its own affair, and no part of the image.
SETTINGS = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
_SBOM = """
import importlib.metadata as m, json
print(json.dumps([[d.name, d.version, d.metadata.get("License-Expression") or ""] for d in m.distributions()]))
"""


def make() -> None:
    """Build it if something that it depends on has changed since, or it was never built. Raises LabError."""
    if not (OUT / "made-of").exists() or (OUT / "made-of").read_text() != made_of():
        build()


def find() -> Image:
    """The image as it was built. Raises LabError."""
    if not (OUT / "made-of").exists():
        raise LabError(f"no image in {OUT.relative_to(ROOT)}. Run: make image")
    settings = json.loads((OUT / "config.json").read_text())
    environment = dict(entry.split("=", 1) for entry in settings["Env"])
    return Image(OUT / "rootfs", settings["Entrypoint"], environment)


def made_of() -> str:
    """A digest of the files that it is made of."""
    allowed = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    tops = [ROOT / name for name in (*SOURCES, *allowed)]
    paths = sorted(path for top in tops for path in (top.rglob("*") if top.is_dir() else [top]))
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def build() -> Path:
    """The root file system of the image, unpacked. Raises LabError."""
    for program in ("mmdebstrap", "buildah"):
        if shutil.which(program) is None:
            raise LabError(f"no {program} here. Install Debian's packages: apt-get install mmdebstrap buildah runc")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    for name, packages in BASES.values():
        if not _run("buildah", "images", "--quiet", "--filter", f"reference={name}"):
            _make_base(name, packages, OUT / "base.tar")
    programs.say("image: building it")
    _run("buildah", "build", "--quiet", *options(), f"--build-arg=VERSION={__version__}", f"--tag={IMAGE}", str(ROOT))
    _run("buildah", "push", "--quiet", IMAGE, f"oci-archive:{OUT / 'ipvsproxy.tar'}:{IMAGE}")
    found = json.loads(_run("buildah", "inspect", "--type", "image", IMAGE))
    (OUT / "config.json").write_text(json.dumps(found["OCIv1"]["config"], indent=1) + "\n")
    rootfs = _unpack(OUT / "rootfs")
    (OUT / "made-of").write_text(made_of())
    return rootfs


def options() -> list[str]:
    """Of buildah, to build on bases and with packages as this machine has them."""
    bases = {argument: name for argument, (name, _) in BASES.items()}
    given = bases | {"REVISION": _revision()}
    arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
    settings = [f"--volume={path}:{path}:ro" for path in SETTINGS if Path(path).exists()]
    return ["--layers", "--isolation=chroot", "--network=host", *arguments, *settings]


def _make_base(name: str, packages: Sequence[str], tar: Path) -> None:
    programs.say(f"image: making {name} of packages")
    excluded = [f"--dpkgopt=path-exclude=/usr/{path}/*" for path in LEFT_OUT]
    hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    included = f"--include=usr-is-merged,{','.join(packages)}"
    _run("mmdebstrap", "--quiet", "--variant=essential", hooks, included, *excluded, SUITE, str(tar))
    container = _run("buildah", "from", "scratch")
    try:
        _run("buildah", "add", "--quiet", container, str(tar), "/")
        _run("buildah", "commit", "--quiet", container, name)
    finally:
        _run("buildah", "rm", container)
        tar.unlink()


def _unpack(folder: Path) -> Path:
    container = _run("buildah", "from", IMAGE)
    try:
        mounted = _run("buildah", "mount", container)
        _run("cp", "--archive", mounted, str(folder))  # device nodes too, which shutil would read
        bill = bill_of_materials(folder)
        (OUT / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    finally:
        _run("buildah", "rm", container)
    return folder


def bill_of_materials(rootfs: Path) -> Mapping[str, object]:
    """What the image is made of, in CycloneDX 1.6: Debian's packages, and Python's."""
    format_ = "${Package}\\t${Version}\\n"
    listed = _run("dpkg-query", f"--admindir={rootfs / 'var/lib/dpkg'}", "--show", f"--showformat={format_}")
    pairs = [line.partition("\t") for line in listed.splitlines()]
    components = [_component("deb/debian", name, version, "") for name, _, version in pairs]
    found = _run("chroot", str(rootfs), "/opt/ipvsproxy/bin/python3", "-c", _SBOM)
    components += [_component("pypi", *distribution) for distribution in json.loads(found)]
    about = {"type": "container", "name": "ipvsproxy", "version": __version__}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": about}, "components": components}


def _component(kind: str, name: str, version: str, licence: str) -> Mapping[str, object]:
    found: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{version}",
    }
    return found | ({"licenses": [{"expression": licence}]} if licence else {})


def size(folder: Path) -> int:
    """Bytes of all files in it, a file with two names counted once."""
    return sum({(found.st_dev, found.st_ino): found.st_size for found in _files(folder)}.values())


def _files(folder: Path) -> Iterator[os.stat_result]:
    for path, _, names in os.walk(folder):
        yield from (os.lstat(os.path.join(path, name)) for name in names)  # noqa: PTH118  # tens of thousands


def _revision() -> str:
    return _run("git", "-C", str(ROOT), "rev-parse", "HEAD")


def _run(*command: str) -> str:
    """Its stdout. Raises LabError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-3000:]}")
    return done.stdout.strip()


def main(_argv: Sequence[str]) -> int:
    """Build it and print its size; 1 where it is larger than it may be."""
    mib = size(build()) / 2**20
    print(
        f"{IMAGE}: {mib:.0f} MiB unpacked; archive, bill of materials and root file system in {OUT.relative_to(ROOT)}"
    )
    return int(mib > LARGEST_MIB)


if __name__ == "__main__":
    with programs.complaining():
        sys.exit(main(sys.argv[1:]))
