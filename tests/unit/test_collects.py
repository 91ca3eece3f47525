"""Tests that need what this machine lacks are at least found: nothing they import has moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("tier", ["gpu", "roce"])
def test_device_tests_can_be_imported(tier: str) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    found = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(TESTS / tier)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{tier}/test_ranks.py::" in found.stdout
