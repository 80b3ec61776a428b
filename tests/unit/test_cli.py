"""The program from outside: its exit codes, its words on stderr, and what it loads to say them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ipvsproxy import __version__, cli
from ipvsproxy.errors import AlreadyRunning, ConfigError, IpvsproxyError, KernelError, Unsupported
from ipvsproxy.process import accept_signals

# Output that is written at once has nothing left to fail later, so a developer's setting must not reach the program.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
MANIFESTS = ("--manifests", "objects")


class Calls:
    """Stands for all commands: remembers what was called, answers what it was told."""

    def __init__(self, answer=0):
        self.answer = answer
        self.seen = []

    def program(self, name):
        def call(*arguments):
            self.seen.append((name, *arguments))
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return call

    @property
    def programs(self):
        return cli.Programs(
            *(
                self.program(name)
                for name in (
                    "serve",
                    "write",
                    "prepare",
                    "clean_up",
                    "plan",
                    "status",
                    "ipvsadm",
                    "diff",
                    "explain",
                    "top",
                )
            )
        )


def run_program(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "ipvsproxy", *words], capture_output=True, text=True, check=False, timeout=60, **options
    )


@pytest.fixture(autouse=True)
def own_signals():
    """Nothing is held when a test is over."""
    yield
    accept_signals()


@pytest.mark.parametrize(
    "words,held",
    [
        pytest.param(MANIFESTS, {signal.SIGHUP}, id="serve, which has no handler yet"),
        pytest.param(["plan", "-o", "json", *MANIFESTS], set(), id="plan"),
        pytest.param(["--cleanup"], set(), id="clean-up"),
    ],
)
def test_a_hang_up_waits_for_who_serves_and_ends_all_else(words, held):
    masks = []
    calls = Calls()
    calls.program = lambda _: lambda *_: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])) or 0
    cli.run(words, calls.programs)
    assert masks == [held]


@pytest.mark.parametrize(
    "words,name",
    [
        pytest.param([*MANIFESTS], "serve", id="flags alone"),
        pytest.param(["--init-only"], "prepare", id="what needs privileges"),
        pytest.param(["--cleanup"], "clean_up", id="clean-up"),
        pytest.param(["plan", "-o", "json", *MANIFESTS], "plan", id="plan"),
        pytest.param(["status", "-L", "-n"], "status", id="status"),
        pytest.param(["ipvsadm", "-L", "-n"], "ipvsadm", id="as a link named ipvsadm calls it"),
        pytest.param(["diff", *MANIFESTS], "diff", id="diff"),
        pytest.param(["explain", "default/web", *MANIFESTS], "explain", id="explain"),
        pytest.param(["top", "--once"], "top", id="top"),
    ],
)
def test_each_form_calls_its_program_and_answers_its_code(words, name):
    calls = Calls(answer=7)
    assert cli.run(words, calls.programs) == 7
    assert [seen[0] for seen in calls.seen] == [name]


@pytest.mark.parametrize(
    "error,code",
    [
        pytest.param(ConfigError("a", "b"), 1, id="configuration"),
        pytest.param(IpvsproxyError("a", "b"), 1, id="any other of ours"),
        pytest.param(KernelError("a", 5), 1, id="the kernel refused something"),
        pytest.param(Unsupported("a", 2), 3, id="the kernel lacks something"),
        pytest.param(AlreadyRunning("a", "b"), 4, id="another instance runs"),
    ],
)
def test_an_error_of_ours_ends_with_its_code_and_its_text(error, code, capsys):
    assert cli.run(MANIFESTS, Calls(error).programs) == code
    assert capsys.readouterr() == ("", f"Error: {error}\n")


def test_an_error_says_what_and_why_and_what_to_do(capsys):
    cli.run(MANIFESTS, Calls(ConfigError("the folder x", "it is empty", "Put objects into it")).programs)
    assert capsys.readouterr().err == "Error: the folder x: it is empty. Put objects into it\n"


def test_a_broken_invariant_is_not_hidden():
    with pytest.raises(AssertionError):
        cli.run(MANIFESTS, Calls(AssertionError("ours")).programs)


def test_ctrl_c_is_quiet(capsys):
    assert cli.run(MANIFESTS, Calls(KeyboardInterrupt()).programs) == 130
    assert capsys.readouterr() == ("", "")


def test_every_error_of_a_configuration_is_a_line_of_its_own(capsys):
    calls = Calls()
    assert cli.run(["--ipvs-scheduler=?", "--ipvs-sync-period=0", *MANIFESTS], calls.programs) == 1
    assert calls.seen == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["Error:", "Error:"]
    assert {line.split()[-1] for line in lines} == {"(--ipvs-scheduler)", "(--ipvs-sync-period)"}


def test_the_version_is_told_without_loading_what_serving_needs():
    heavy = {"kubernetes", "pyroute2", "gnlpy", "iptc", "structlog", "yaml", "ipvsproxy.kernel", "ipvsproxy.kube"}
    program = (
        "import sys\nfrom ipvsproxy.cli import Programs, run\n"
        f"code = run(['--version'], Programs())\nsys.exit(code or str({heavy} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr.strip()) == (f"ipvsproxy {__version__}\n", "")


def test_status_is_told_without_loading_what_serving_needs():
    heavy = {"kubernetes", "iptc", "structlog", "yaml", "ipvsproxy.daemon", "ipvsproxy.kube"}
    program = (
        "import sys\nfrom ipvsproxy import status_command\nimport ipvsproxy.kernel.ipvs\n"
        f"print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_daemon_that_watches_no_folder_starts_without_loading_pyroute2():
    program = "import sys\nimport ipvsproxy.daemon\nprint({'pyroute2', 'kubernetes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    "words,message",
    [
        pytest.param(["--no-such-flag"], "Error: unknown flag --no-such-flag: ", id="an unknown flag"),
        pytest.param(["nonsense"], 'Error: unexpected argument "nonsense": ', id="a word"),
        pytest.param(["plan"], "Error: --output: not given", id="a plan of nothing"),
        pytest.param(
            ["--proxy-mode=iptables", *MANIFESTS], "Error: KubeProxyConfiguration.Mode.ProxyMode: ", id="a mode"
        ),
        pytest.param([b"--v=\xff"], "Error: --v: invalid value ", id="bytes that are no UTF-8"),
    ],
)
def test_what_is_refused_ends_with_1_and_one_sentence(words, message):
    done = run_program(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error():
    words = [sys.executable, "-m", "ipvsproxy", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_output_that_cannot_be_written_is_an_error():
    words = ["sh", "-c", '"$0" -m ipvsproxy --help >/dev/full', sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=BUFFERED)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write to standard output: ENOSPC (No space left on device)\n"


def test_a_closed_standard_output_is_an_error():
    words = ["sh", "-c", '"$0" -m ipvsproxy --version >&-', sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write to standard output: it is closed\n"


@pytest.mark.parametrize(
    "text,code",
    [
        pytest.param("{apiVersion: v1, kind: Node, metadata: {name: n1}}", 0, id="a good one"),
        pytest.param("{apiVersion: v1, kind: Service, spec: 5}", 2, id="one that had to be left out"),
    ],
)
def test_a_plan_tells_by_its_code_whether_every_object_is_in_it(tmp_path, text, code):
    (tmp_path / "object.yaml").write_text(text)
    words = ("plan", "-o", "ipvsadm", "--manifests", str(tmp_path), "--hostname-override", "n1")
    assert run_program(*words).returncode == code
