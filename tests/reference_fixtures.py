"""Where the checkpoints with reference values are: some here, the rest beside the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.loading import DummyModel

HERE = Path(__file__).parent / "fixtures"


def fixture_directory(name: str, file: str = "config.json") -> Path:
    """The directory of fixture `name` that holds `file`; the test is skipped where there is none on
    this machine."""
    places = [HERE, *(parent / "shared" / "fixtures" for parent in HERE.parents[2:])]
    for place in places:
        if (place / name / file).is_file():
            return place / name
    pytest.skip(f"{name}/{file} is neither in tests/fixtures nor in ../shared/fixtures")


def model_of(name: str) -> Checkpoint | DummyModel:
    """A fixture's checkpoint, or random weights where there is its config.json alone, which says as
    much of what any weights must give."""
    directory = fixture_directory(name)
    if list(directory.glob("*.safetensors")):
        return Checkpoint(directory)
    return DummyModel(json.loads((directory / "config.json").read_text("utf-8")))
