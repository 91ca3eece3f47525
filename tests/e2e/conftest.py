"""Servers for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import TINY, Starter


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A model's text files without weights: tokenizer and chat template."""
    return TINY


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    """Servers of one test."""
    starter = Starter(tmp_path)
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def serve_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """Servers that the tests of a module share."""
    starter = Starter(tmp_path_factory.mktemp("servers"))
    yield starter
    starter.close()
