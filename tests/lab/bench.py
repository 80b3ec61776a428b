"""The figures of docs/performance.md: measured, counted in instructions, printed beside those that are checked in.

    python tests/lab/bench.py [--out DIR] [--update]

One run in the lab's machine, whose single CPU has a clock that counts instructions, so that two runs agree within two
percent on any host. --update writes tests/perf/figures.json and the table in docs/performance.md anew.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by path, before anything is installed

from ipvsproxy.config.command_line import ExitCode  # noqa: E402  # needs the line above
from tests.lab import machine  # noqa: E402
from tests.perf import in_machine, report, tool_figures, workload  # noqa: E402

TIME_LIMIT_S = 2100


def measure(out: Path) -> report.Measured:
    """Run everything; files go to `out`. Raises LabError."""
    prepare(out)
    command = [sys.executable, "-m", "tests.perf.in_machine", str(out)]
    # Hashes of text decide the order of sets and so, a little, the work.
    settings = {"PYTHONHASHSEED": "0"}
    code = machine.run(command, out, shape=machine.Shape(icount=True), timeout_s=TIME_LIMIT_S, env=settings)
    if code:
        raise machine.LabError(f"the measurement ended with exit code {code}. Its own output above says why.")
    return report.Measured.load(out / in_machine.RESULT)


def prepare(out: Path) -> None:
    """What is measured on, made here: it takes long under emulation."""
    shutil.rmtree(out, ignore_errors=True)
    folder = out / "input"
    for services in (workload.FEW_SERVICES, workload.SERVICES):
        (folder / str(services)).mkdir(parents=True)
        numbers = range(1, services + 1)
        workload.write_watch(folder / str(services) / "services.jsonl", map(workload.service, numbers))
        workload.write_watch(folder / str(services) / "slices.jsonl", map(workload.endpoint_slice, numbers))
    workload.write_manifests(folder / "one", 1)
    workload.write_manifests(out / "all", workload.SERVICES)
    tool_figures.write_input(folder, {name: _plan(out / "all", name) for name in ("ipvsadm", "addresses", "ipset")})
    for package in ("ipvsproxy", "tests/perf"):
        compileall.compile_dir(ROOT / package, quiet=1)


def _plan(manifests: Path, plan_format: str) -> str:
    command = [sys.executable, "-m", "ipvsproxy", "plan", "-o", plan_format, f"--manifests={manifests}"]
    command.append(f"--hostname-override={workload.NODE_NAME}")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode not in {ExitCode.OK, ExitCode.INCOMPLETE}:  # there is no Node, which it says
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 where a figure has changed by more than the test allows."""
    parser = argparse.ArgumentParser(description="Count what ipvsproxy costs, in instructions.")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench", help="where files go (%(default)s)")
    parser.add_argument("--update", action="store_true", help="make this the checked-in figures")
    arguments = parser.parse_args(argv)
    try:
        measured = measure(arguments.out.resolve())
    except machine.LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return machine.NO_MACHINE
    print(report.table(measured))
    if arguments.update:
        report.publish(measured)
        return 0
    changes = report.changes(measured, report.Measured.load(report.CHECKED_IN))
    for sentence in changes:
        print(sentence)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
