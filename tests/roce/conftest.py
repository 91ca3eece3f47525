"""The devices of this machine; without them every test here is left out by name."""

from __future__ import annotations

import os

import pytest

from dgpp.net.verbs.packages import PACKAGES


@pytest.fixture(scope="session")
def devices() -> list[str]:
    names = os.environ.get("DGPP_TEST_ROCE_DEVICES", "").split()
    if not names:
        pytest.skip("needs RoCE devices: scripts/roce-vm test, or DGPP_TEST_ROCE_DEVICES='A B'")
    pytest.importorskip("pyverbs", reason="needs pyverbs")
    return names


@pytest.fixture(params=PACKAGES)
def package(request) -> str:
    """Each that binds the verbs library."""
    pytest.importorskip(request.param, reason=f"needs {request.param}", exc_type=ImportError)
    return request.param


@pytest.fixture(scope="session")
def gid_index() -> int:
    return int(os.environ.get("DGPP_TEST_ROCE_GID", "1"))
