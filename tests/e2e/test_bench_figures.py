"""What a measurement prints about an engine that runs, in figures that agree with one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgpp.bench.cut import cut_layers
from dgpp.cli.bench import app
from dgpp.models.plan import MemorySettings, plan_memory

TINY = Path(__file__).parents[1] / "fixtures" / "glm-4.7-nvfp4" / "config.json"
DUMMY = ["--checkpoint", str(TINY), "--load", "dummy", "--backend", "cpu", "--runs", "1"]
# The first of them compiles those of the CPU's kernels that no earlier tier has.
compiles = pytest.mark.timeout(600)


@compiles
def test_decode_prints_figures_that_agree_with_one_another() -> None:
    context, batch = ["--context", "32,16"], ["--batch", "1,2", "--steps", "2", "--layers", "3"]
    result = CliRunner().invoke(app, ["decode", *DUMMY, *context, *batch, "--json"])
    assert result.exit_code == 0, result.exception
    report = json.loads(result.stdout)
    assert (report["backend"], report["load"], report["layers"]) == ("cpu", "dummy", 3)
    figures = report["figures"]
    assert [(f["context"], f["batch"]) for f in figures] == [(16, 1), (16, 2), (32, 1), (32, 2)]
    plan = plan_memory(cut_layers(json.loads(TINY.read_text()), 3), MemorySettings())
    for f in figures:
        assert 3 <= f["experts"] <= 3 * f["batch"]
        assert f["weight_bytes"] == plan.work.read_bytes(f["experts"])
        assert f["kv_bytes"] == plan.token_bytes * (f["context"] + 1) * f["batch"]
        rate = (f["weight_bytes"] + f["kv_bytes"]) / f["ms"] * 1e3
        assert f["of_bandwidth"] == pytest.approx(rate / f["bandwidth"])
        assert f["tokens_per_second"] == pytest.approx(f["batch"] / f["ms"] * 1e3)
        assert f["ms_min"] <= f["ms"] <= f["ms_max"]


@compiles
def test_prefill_prints_a_table() -> None:
    result = CliRunner().invoke(app, ["prefill", *DUMMY, "--context", "48"])
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    assert "(dummy), cpu on this host" in lines[0]
    assert lines[1].startswith("yardstick: float32 product")
    assert lines[2].split() == ["tokens", "ms", "min", "max", "tok/s", "TFLOP/s", "of", "product"]
    assert lines[3].split()[0] == "48"
