"""Servers for the end-to-end tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import CALLING_TEMPLATE, THINKING_TEMPLATE, THINKING_TEXT, TINY, Server, Starter

from dgpp.text.tokenizer import Tokenizer


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


@pytest.fixture(scope="session")
def thinking_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's text files whose template knows reasoning and calls."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory, thinking_dir: Path) -> Iterator[Server]:
    """A server whose every choice says THINKING_TEXT and ends."""
    tokenizer = Tokenizer.load(thinking_dir)
    ids = [*tokenizer.encode(THINKING_TEXT), min(tokenizer.stop_ids)]
    starter = Starter(tmp_path_factory.mktemp("talking"))
    yield starter(thinking_dir, [{"ids": ids, "per_step": [1, 5, 2]}], placement="inline")
    starter.close()
