"""The tests here play many worlds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sim_world import many_worlds


@pytest.fixture(scope="module", autouse=True)
def worlds() -> Iterator[None]:
    with many_worlds():
        yield
