"""GLM-4.7 fixtures on the GPU: `dgpp check forward`, by the rule for bf16 activations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgpp.cli.check import app

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize("extra", [[], ["--per-layer"]], ids=["whole", "per-layer"])
@pytest.mark.parametrize("name", ["glm-4.7-bf16", "glm-4.7-nvfp4"])
def test_a_fixture_is_as_near_as_bf16_allows(cuda: None, name: str, extra: list[str]) -> None:
    folder = FIXTURES / name
    arguments = ["--checkpoint", str(folder), "--expected", str(folder / "expected.npz"), "--json"]
    result = CliRunner().invoke(app, ["forward", *arguments, "--backend", "cuda", *extra])
    report = json.loads(result.stdout)
    print(name, {key: value for key, value in report.items() if key != "layers"})
    print(name, [(layer["max_abs"], layer["of_change"]) for layer in report["layers"]])
    assert result.exit_code == 0, report["failures"]
    assert (report["backend"], report["rule"]) == ("cuda", "bf16")
    assert report["greedy_equal"] == report["greedy_total"] == 24
