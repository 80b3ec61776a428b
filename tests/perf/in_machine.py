"""All figures in one run, inside the lab's machine: one program after the other, each on a clean kernel.

    python -m tests.perf.in_machine FOLDER      what `make bench` runs there; the result is FOLDER/measured.json

Deleted real servers stay in the kernel's list for minutes, and each new one walks it. A network namespace or a kernel
that served before would so be slower; hence everything is removed and the module unloaded between two measurements.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tests.perf import tool_figures, workload

LIMIT_S = 300
IDLE_LIMIT_S = 900  # a start, and two minutes in which nothing happens
RESULT = "measured.json"
LIBRARIES = ("gnlpy", "kubernetes", "msgspec", "pyroute2", "python-iptables", "structlog")
IPVS_MODULES = ("ip_vs_rr", "ip_vs")
_BARE = """
fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(fields["VmRSS"].split()[0])
"""

Figures = dict[str, int]


def main(argv: list[str]) -> None:
    """Measure everything."""
    given = Path(argv[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "input")  # in memory: what is read during a measurement must not wait for the host
        shutil.copytree(given / "input", folder)
        result = Path(name, "result.json")
        figures = {"memory.bare.rss_bytes": int(_python("-c", _BARE).strip()) * 1024}
        figures |= _start(folder, result)
        for services in (workload.FEW_SERVICES, workload.SERVICES):
            _tell(f"{services} Services")
            _python("-m", "tests.perf.sync_figures", str(services), str(folder / str(services)), str(result))
            figures |= json.loads(result.read_text())
            _unload()
        _tell("the daemon while nothing changes")
        _python(
            "-m", "tests.perf.idle_figures", str(folder / str(workload.SERVICES)), str(result), limit_s=IDLE_LIMIT_S
        )
        figures |= json.loads(result.read_text())
        _python("-m", "ipvsproxy", "--cleanup", f"--hostname-override={workload.NODE_NAME}")
        _unload()
        _tell("the other Nodes")
        _python("-m", "tests.perf.node_figures", str(result))
        figures |= json.loads(result.read_text())
        _tell("stale UDP flows")
        _python("-m", "tests.perf.flow_figures", str(result))
        figures |= json.loads(result.read_text())
        _tell("the tools")
        figures |= tool_figures.measure(folder)
    (given / RESULT).write_text(json.dumps({"environment": environment(), "figures": figures}, indent=1))


def environment() -> dict[str, str]:
    """What the figures depend on besides the code."""
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"Linux": platform.release(), "Python": platform.python_version(), **versions}


def _start(folder: Path, result: Path) -> Figures:
    """The second of two runs: the first brings the files into the page cache."""
    arguments = ("--proxy-mode=ipvs", f"--manifests={folder / 'one'}", f"--hostname-override={workload.NODE_NAME}")
    for _ in range(2):
        _tell("the program's start")
        _python("-m", "tests.perf.start_figures", str(result), *arguments)
        _python("-m", "ipvsproxy", "--cleanup", arguments[-1])
        _unload()
    figures: Figures = json.loads(result.read_text())
    return figures


def _python(*arguments: str, limit_s: float = LIMIT_S) -> str:
    """What a program of ours prints; its log is shown only where it fails."""
    done = subprocess.run([sys.executable, *arguments], timeout=limit_s, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    done.check_returncode()
    return done.stdout


def _unload() -> None:
    """Take IPVS out of the kernel, with what it keeps of the past."""
    subprocess.run(["modprobe", "-r", *IPVS_MODULES], check=True, timeout=LIMIT_S)
    if Path("/proc/net/ip_vs").exists():
        raise AssertionError("ip_vs is still there: the next measurement would not start on a clean kernel")


def _tell(what: str) -> None:
    sys.stderr.write(f"bench: measuring {what}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
