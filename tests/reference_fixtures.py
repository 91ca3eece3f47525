"""Where the checkpoints with reference values are: some here, the rest beside the project."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fixtures"


def fixture_directory(name: str) -> Path:
    """The directory of fixture `name`; the test is skipped where it is not on this machine."""
    places = [HERE, *(parent / "shared" / "fixtures" for parent in HERE.parents[2:])]
    for place in places:
        if (place / name / "config.json").is_file():
            return place / name
    pytest.skip(f"{name} is neither in tests/fixtures nor in ../shared/fixtures")
