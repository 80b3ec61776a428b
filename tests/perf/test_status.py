"""What listing 10,000 virtual servers of ten real servers each costs: memory, and time beside the real ipvsadm."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.ipvsadm_oracle.oracle import Oracle
from tests.documented import documented
from tests.perf.status_figures import OURS, THEIRS, cost, large_state

MEMORY_BYTES = 30 << 20  # for the whole table
TIMES = 3
(COMMAND,) = documented("docs/status.md", program="python")
# Lists like the command, and then says on stderr by how much its memory grew over what its imports had taken.
MEASURING = """\
import sys
from pathlib import Path
from ipvsproxy import status_command
import ipvsproxy.kernel.ipvs

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten, proc(5)
before = kilobytes("VmRSS")
code = status_command.run(sys.argv[1:])
print((kilobytes("VmHWM") - before) * 1024, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return Oracle(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def table():
    return large_state()


@pytest.mark.timeout(600)  # the table is made and sent by Python, too
@pytest.mark.parametrize(
    "words,share",
    [
        pytest.param(["-Ln", "--stats"], 10, id="a tenth of it, with statistics"),
        pytest.param(["-Ln"], 1, id="all of it", marks=pytest.mark.long),
        pytest.param(["-Ln", "--stats"], 1, id="all of it, with statistics", marks=pytest.mark.long),
    ],
)
def test_a_hundred_thousand_real_servers_are_listed_in_bounded_memory(oracle, words, share):
    table = large_state(10_000 // share)
    done = oracle.run(table, words, program=(sys.executable, "-c", MEASURING))
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 110_000 // share + 3
    assert int(done.stderr) < MEMORY_BYTES / share


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", [["-Ln"], ["-Ln", "--stats"], ["-Sn"]], ids=" ".join)
def test_the_same_bytes_take_less_than_three_times_as_long(oracle, table, words):
    """Processor time of the programs themselves, the best of three: what else the machine does is left out."""
    ours, theirs = ([cost(oracle, table, program, words) for _ in range(3)] for program in (OURS, THEIRS))
    assert ours[0].output == theirs[0].output
    assert min(run.all_s for run in ours) < TIMES * min(run.all_s for run in theirs)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_command_of_the_page_measures_it_anew():
    program, *words = shlex.split(COMMAND.text)
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *words], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.endswith("same bytes") for line in lines)
