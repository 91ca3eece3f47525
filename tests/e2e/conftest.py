"""Servers for the end-to-end tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import CALLING_TEMPLATE, TINY, Server, Starter


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


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for whatever a test may send: it knows calls, and every answer ends soon."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copytree(TINY, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(CALLING_TEMPLATE)
    starter = Starter(folder)
    yield starter(
        model=folder / "model",
        placement="inline",
        step_ms=0,
        kv_capacity=2048,
        default_max_tokens=4,
        queue_limit=256,
    )
    starter.close()
