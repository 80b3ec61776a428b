"""One API server for all tests here. `python tests/lab/programs.py` makes its programs, once a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api import chart_role
from tests.api.node import Objects
from tests.lab.apiserver import ControlPlane, running


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane."""
    with running(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def proxy(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig of the ServiceAccount that the chart makes, with the rights that it gives to it."""
    account = chart_role.install(plane)
    return chart_role.kubeconfig(plane, tmp_path_factory.mktemp("proxy") / "kubeconfig", account)


@pytest.fixture
def objects(plane: ControlPlane) -> Iterator[Objects]:
    """Makes objects, and removes those that are left at the end."""
    objects = Objects(plane)
    yield objects
    objects.remove_all()
