"""What every test folder shares: hypothesis profiles, the kernel of contract tests, a log configuration a test."""

import os
from collections.abc import Iterator
from functools import partial

import hypothesis
import pytest
import structlog

from ipvsproxy import log

# A busy machine makes any example slow, so no profile has a deadline; pytest-timeout finds what hangs.
hypothesis.settings.register_profile("dev", deadline=None, max_examples=40)
# CI runs the same examples each time: a red run is about the change, and shows again on any machine.
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=40
)
# For a night, or a change to what the properties are about: HYPOTHESIS_PROFILE=thorough.
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernel",
        choices=("fake", "real"),
        default="fake",
        help="which kernel `kernel_kind` names: the in-memory one, or this machine's (through tests/lab/machine.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real kernel of a developer's machine out of it: the lab's machines set $LAB_OUT."""
    real = config.getoption("--kernel") == "real"
    if real and not config.option.collectonly and "LAB_OUT" not in os.environ:
        raise pytest.UsageError(
            "--kernel=real changes the running kernel's virtual servers, addresses and rules. Run it in a machine of "
            "its own: `make test`, or python tests/lab/machine.py --auto -- .venv/bin/python -m pytest --kernel=real …"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test or fixture that asks for `kernel_kind` gets "fake", or "real" under --kernel=real; never both in a run."""
    if "kernel_kind" in metafunc.fixturenames:
        metafunc.parametrize("kernel_kind", [metafunc.config.getoption("--kernel")], scope="session")


@pytest.fixture(autouse=True)
def _log_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that a test calls in this process configures logging for that test alone.

    Without caching: a logger in use would keep what it met first, whatever is configured behind it. The standard
    library's logging is pytest's own here: it has handlers already, so `log.configure` adds none.
    """
    monkeypatch.setattr(log, "configure", partial(log.configure, cache=False))
    configuration = structlog.get_config()
    yield
    structlog.configure(**configuration)


@pytest.fixture
def real_kernel() -> None:
    """Asked for by tests of what only a real kernel has; they belong to the runs with --kernel=real."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that ask for `real_kernel` to the runs that have one: not skipped, but no part of the others."""
    if config.getoption("--kernel") == "real":
        return
    left = [item for item in items if "real_kernel" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
