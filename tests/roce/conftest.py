"""The devices of this machine; without them every test here is left out by name."""

from __future__ import annotations

import os
from typing import Any

import numba.core.event
import pytest

from dgpp.net.verbs.packages import PACKAGES


@pytest.fixture(scope="session")
def devices() -> list[str]:
    names = os.environ.get("DGPP_TEST_ROCE_DEVICES", "").split()
    if not names:
        pytest.skip("needs RoCE devices: scripts/roce-vm test, or DGPP_TEST_ROCE_DEVICES='A B'")
    pytest.importorskip("pyverbs", reason="needs pyverbs")
    return names


events: Any = numba.core.event
PREPARED = bool(os.environ.get("DGPP_TEST_ROCE_SAID"))
"""By the host of an emulated machine."""


class NothingIsCompiled(events.Listener):
    """Fails whatever would be compiled in a machine that takes minutes for it."""

    def on_start(self, event: Any) -> None:
        raise AssertionError(f"tests/roce/warm.py leaves out {event.data['dispatcher']}")

    def on_end(self, event: Any) -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    if PREPARED:
        events.register("numba:compile", NothingIsCompiled())


@pytest.fixture(params=PACKAGES)
def package(request) -> str:
    """Each that binds the verbs library."""
    pytest.importorskip(request.param, reason=f"needs {request.param}", exc_type=ImportError)
    return request.param


@pytest.fixture(scope="session")
def gid_index() -> int:
    return int(os.environ.get("DGPP_TEST_ROCE_GID", "1"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A test takes seconds in an emulated machine; others may have its processor.
    for item in items:
        if "roce" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(240))
