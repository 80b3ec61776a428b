"""Runs the test stages named on the command line, all of them even if one fails, and closes with one summary.

    python tests/lab/stages.py pure kube vm

A stage is a pytest run over some folders, here or in a machine whose kernel has what it needs. Its JUnit file and
whatever else it leaves lie in build/STAGE. Folders that do not exist yet are left out.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab import helm, image, machine, programs, summary  # noqa: E402  # needs the line above


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A pytest run."""

    folders: tuple[str, ...]
    options: tuple[str, ...] = ("-m", "not long")
    machine_with: str | None = None
    """What its machine's kernel must have, as a probe of tests/lab/machine.py; this machine is taken if it has it."""
    prepare: Callable[[], object] = lambda: None
    """Makes what its tests need and what takes long; raises LabError where that cannot be had."""
    timeout_s: float = 3000
    """For all of it, the start of the machine included; only stages in a machine have one."""


# Under emulation everything takes some thirty times as long, hence other limits for a single test.
REAL = ("--kernel=real", "--timeout=300", "-p", "no:cacheprovider")
# Packet tests share a node, whose kernel remembers for minutes: the same order finds the same leftovers each time.
IN_ORDER = ("-p", "no:randomly")
UNSTEADY = 3
"""So many failed tests of a machine run once more in another one: under emulation a packet may take seconds. The
closing lines count those that passed only then, for a fault may hide there; more than these are no chance."""

NETFILTER = (
    *(
        f"tests/contract/test_{name}.py"
        for name in ("rules", "odd_rules", "glance", "ipsets", "conntrack", "iptables_backend")
    ),
    "tests/vm/test_rule_packets.py",
)


def make_for_chart() -> None:
    """Helm, the schemas' checker, a control plane with controllers, kube-proxy, kubeadm, the image. Raises LabError."""
    helm.make()
    image.make()
    programs.make()
    programs.make_controllers()
    programs.make_program("kube-proxy")
    programs.make_program("kubeadm")


def make_for_take_over() -> None:
    """A control plane, and the real kube-proxy. Raises LabError."""
    programs.make()
    programs.make_program("kube-proxy")


STAGES = {
    "pure": Stage(folders=("tests/unit", "tests/golden", "tests/property", "tests/contract", "tests/perf")),
    "kube": Stage(folders=("tests/kube",)),
    "chart": Stage(folders=("tests/chart",), prepare=make_for_chart),
    "api": Stage(folders=("tests/api",), options=("-m", "not long", "--timeout=300"), prepare=programs.make),
    "api-long": Stage(folders=("tests/api",), options=("-m", "long", "-p", "no:randomly"), prepare=make_for_take_over),
    # Kernels with all this are far more common than kernels with IPVS, and emulation takes thirty times as long.
    "netfilter": Stage(folders=NETFILTER, options=("-m", "not long", *REAL), machine_with=machine.NETFILTER),
    "vm": Stage(
        folders=("tests/contract", "tests/vm"),
        options=("-m", "not long", *REAL, *IN_ORDER, *(f"--ignore={path}" for path in NETFILTER)),
        machine_with=machine.IPVS,
    ),
    "vm-long": Stage(folders=("tests/vm",), options=("-m", "long", *REAL), machine_with=machine.IPVS),
    # Starts a machine of its own, whose clock counts instructions.
    "figures": Stage(folders=("tests/perf",), options=("-m", "long", "--timeout=2400")),
}


def run_stage(name: str, stage: Stage, folders: Sequence[str]) -> int:
    """Run one stage; the exit code of pytest or of the machine."""
    out = ROOT / "build" / name
    shutil.rmtree(out, ignore_errors=True)  # an old result must not count
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", *stage.options, f"--junitxml={out / 'junit.xml'}", *folders]
    print(f"== stage {name}: {' '.join(folders)}", flush=True)
    try:
        stage.prepare()
    except machine.LabError as error:
        print(f"error: {error}", flush=True)
        return machine.NO_MACHINE
    if stage.machine_with is None:
        return subprocess.run(command, check=False).returncode
    leave_byte_code(stage, folders)
    settings = {"CI": os.environ["CI"]} if "CI" in os.environ else {}
    try:
        code = machine.run(command, out, timeout_s=stage.timeout_s, env=settings, host_probe=stage.machine_with)
        if not 0 < len(failed := summary.failed(out / "junit.xml")) <= UNSTEADY:
            return code
        print(f"== stage {name}: once more in another machine, {' '.join(failed)}", flush=True)
        command = [sys.executable, "-m", "pytest", *stage.options, f"--junitxml={out / summary.AGAIN}", *failed]
        return machine.run(command, out, timeout_s=stage.timeout_s, env=settings, host_probe=stage.machine_with)
    except machine.LabError as error:
        print(f"error: {error}", flush=True)
        return machine.NO_MACHINE


def leave_byte_code(stage: Stage, folders: Sequence[str]) -> None:
    """Collect once here, so that the emulated machine need not compile each test; if that fails, it fails there too."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for module in (["compileall", "-q", "ipvsproxy"], ["pytest", "--collect-only", "-q", *stage.options, *folders]):
        subprocess.run([sys.executable, "-m", *module], check=False, env=environment, capture_output=True)


def main(argv: Sequence[str]) -> int:
    """Run the stages; 0 only if each one ran tests and all of them passed."""
    os.chdir(ROOT)
    unknown = [name for name in argv if name not in STAGES]
    if unknown or not argv:
        print(f"stages are {', '.join(STAGES)}; not {', '.join(unknown) or 'none'}", file=sys.stderr)
        return 2
    exit_codes: dict[str, int] = {}
    for name in argv:
        folders = [folder for folder in STAGES[name].folders if Path(folder).exists()]
        if folders:
            exit_codes[name] = run_stage(name, STAGES[name], folders)
        else:
            print(f"== stage {name}: left out, no folder {' or '.join(STAGES[name].folders)} yet", flush=True)
    return summary.report({name: Path("build", name, "junit.xml") for name in exit_codes}, exit_codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
