"""The folders of expected texts: one a case, found here, and rewritten under --golden-update."""

from __future__ import annotations

import pytest

from tests.golden.cases import CASES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-update", action="store_true", help="write what the planner says now into the golden files"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `case` runs for each folder."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case.name for case in CASES])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under --golden-update run only what writes: the other tests read what is about to change."""
    if config.getoption("--golden-update"):
        items[:] = [item for item in items if "plan_format" in getattr(item, "fixturenames", ())]
