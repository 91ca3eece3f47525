"""Where the checkpoints with reference values are: some here, the rest beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fixtures"


def fixture_directory(name: str, file: str = "config.json") -> Path:
    """The directory of fixture `name` that holds `file`; the test is skipped where there is none on
    this machine."""
    places = [HERE, *(parent / "shared" / "fixtures" for parent in HERE.parents[2:])]
    for place in places:
        if (place / name / file).is_file():
            return place / name
    pytest.skip(f"{name}/{file} is neither in tests/fixtures nor in ../shared/fixtures")
