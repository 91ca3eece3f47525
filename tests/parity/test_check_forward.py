"""`dgpp check forward` on the GLM-4.7 fixtures."""

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

FIXTURES = Path(__file__).parents[1] / "fixtures"


def run(directory: Path, *extra: str):
    arguments = ["--checkpoint", str(directory), "--expected", str(directory / "expected.npz")]
    return CliRunner().invoke(app, ["forward", *arguments, *extra])


@pytest.mark.parametrize("variant", ["bf16", "nvfp4"])
@pytest.mark.parametrize("extra", [[], ["--per-layer"]])
def test_fixtures_are_within_their_tolerance(variant: str, extra: list[str]) -> None:
    result = run(FIXTURES / f"glm-4.7-{variant}", "--json", *extra)
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["ok"]
    assert (report["family"], report["variant"]) == ("glm-4.7", variant)
    assert (report["backend"], report["world"], report["rule"]) == ("cpu", 1, "float32")
    assert report["argmax_agree"] == 1.0
    assert report["logits_max_abs"] < 1e-3
    assert report["greedy_equal"] == report["greedy_total"] == 24
    assert report["router_equal"]
    assert report["mtp_router_equal"]
    assert report["selected_equal"]
    assert all(layer["ok"] for layer in report["layers"])


def test_blocks_and_rounded_rows_are_told() -> None:
    result = run(fixture_directory("deepseek-v4-flash-mxfp4-fp8"))
    assert result.exit_code == 0, result.stdout
    plain, rounded = result.stdout.split("with rounded cache rows:")
    for part in (plain, rounded):
        assert "24 of 24 tokens equal" in part
        assert "  blocks       max |error|" in part
        assert "15 of 15 tokens equal" in part
    assert rounded.rstrip().endswith("ok")


def test_float32_passes_by_the_bf16_rule_too() -> None:
    result = run(FIXTURES / "glm-4.7-bf16", "--json", "--per-layer", "--rule", "bf16")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["rule"] == "bf16"
    # A tenth of what bf16 may cost is more than float32 does.
    assert all(layer["of_change"] < 1e-3 for layer in report["layers"][1:])


def test_the_bf16_rule_needs_a_stated_bf16_run(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    result = run(directory, "--rule", "bf16", "--tolerance", "1")
    assert isinstance(result.exception, CheckpointError)
    assert "rule bf16: no index.json states" in str(result.exception)
    result = run(directory, "--rule", "fp8")
    assert result.exit_code == 1
    assert "--rule: 'fp8' is not one of auto, float32, bf16" in result.stderr


def test_a_wrong_value_fails_by_name(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    arrays = dict(np.load(directory / "expected.npz"))
    arrays["logits"][7, 3] += 0.01
    arrays["router_ids"][0, 0] = [6, 7]
    arrays |= {"image_0": np.zeros(2), "attention": np.zeros(2)}
    np.savez(directory / "expected.npz", **arrays)
    result = run(directory)
    assert result.exit_code == 1
    assert "--tolerance" in result.stderr
    result = run(directory, "--tolerance", "0.004")
    assert result.exit_code == 1
    assert "FAIL logits: off by up to 0.0" in result.stdout
    assert "FAIL router ids of layer 2: not identical" in result.stdout
    assert "FAIL attention: holds values that nothing was compared with" in result.stdout
    assert "image_0 was not compared: images are not served" in result.stdout


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "--tolerance", "1")
    assert isinstance(result.exception, CheckpointError)
    assert "config.json" in str(result.exception)
    assert run(tmp_path, "--backend", "cuda").exit_code == 1


@pytest.mark.parametrize("extra", [(), ("--per-layer",)])
def test_another_number_of_layers_is_named(tmp_path: Path, extra: tuple[str, ...]) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    arrays = dict(np.load(directory / "expected.npz"))
    held = len(arrays["hidden"])
    arrays["hidden"] = arrays["hidden"][:-1]
    np.savez(directory / "expected.npz", **arrays)
    result = run(directory, "--tolerance", "1", *extra)
    assert isinstance(result.exception, CheckpointError)
    assert f"hold {held - 1} hidden states, the model has {held}" in str(result.exception)
