"""One API server for all tests here. `python tests/lab/programs.py` makes its programs, once a machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.node import Objects
from tests.lab.apiserver import ControlPlane, running


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane."""
    with running(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[Objects]:
    """Makes objects, and removes those that are left at the end."""
    objects = Objects(plane)
    yield objects
    objects.remove_all()
