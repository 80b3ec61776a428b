"""What the tests of connections share."""

from __future__ import annotations

import shutil

import pytest

from tests.lab.certificates import Identity, issue, make_authority


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates to test TLS with")
    return make_authority(tmp_path_factory.mktemp("ca"), "authority")


@pytest.fixture(scope="module")
def server_identity(ca: Identity, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return issue(ca, tmp_path_factory.mktemp("server"), "server")
