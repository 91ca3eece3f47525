"""The block drafter beside its target, against reference values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from reference_fixtures import fixture_directory
from typer.testing import CliRunner

from dgpp.cli.check import app
from dgpp.errors import CheckpointError

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

DRAFTER, TARGET = "qwen3.8-27b-dflash2", "qwen3.8-27b-bf16"


def run(directory: Path, *extra: str):
    target = str(fixture_directory(TARGET))
    arguments = ["--checkpoint", str(directory), "--expected", str(directory / "expected.npz")]
    return CliRunner().invoke(app, ["forward", *arguments, "--target", target, *extra])


@pytest.mark.parametrize("world", ["1", "2", "4"])
def test_blocks_are_those_of_the_reference(world: str) -> None:
    directory = fixture_directory(DRAFTER)
    result = run(directory, "--json", "--threads", "1", "--world", world)
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["ok"]
    assert report["candidates_equal"]
    # Three anchors: inside the window, beyond it, and behind the whole prompt.
    assert report["drafts_equal"] == report["drafts_total"] == 3 * 7
    assert max(report[name] for name in report if name.endswith("_max_abs")) < 2e-4


def test_a_wrong_value_fails_by_name(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(fixture_directory(DRAFTER), directory)
    arrays = dict(np.load(directory / "expected.npz"))
    arrays["path_scores"][1, 2, 3] += 0.01
    arrays["draft_ids"][2, 0] += 1
    np.savez(directory / "expected.npz", **arrays)
    result = run(directory, "--tolerance", "0.001")
    assert result.exit_code == 1
    assert "FAIL drafts: not identical" in result.stdout
    assert "FAIL path scores: off by up to 0.01" in result.stdout
    assert "20 of 21 tokens equal" in result.stdout


def test_a_target_of_other_sizes_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(fixture_directory(DRAFTER), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_target_layers": 9}))
    result = run(directory, "--tolerance", "1")
    assert isinstance(result.exception, CheckpointError)
    assert "num_target_layers of the drafter is 9, the target has 8" in str(result.exception)
