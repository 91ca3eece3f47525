"""Every family against its references: layers, experts, tokens, drafts, alone and in worlds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference_fixtures import fixture_directory

from dgpp.check.expected import Expected, stated_tolerances
from dgpp.check.forward import CheckOptions, check_checkpoint
from dgpp.check.report import ForwardReport
from dgpp.checkpoint.checkpoint import Checkpoint

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

# Of each fixture the worlds that its family is served in.
FIXTURES = {
    "glm-5.3-bf16": (1, 2, 4),
    "glm-5.3-int4-int8": (1, 2, 4),
    "glm-5.3-flash-bf16": (1, 2, 4),
    "glm-5.3-flash-fp8": (1, 4),
    "glm-5.3-flash-nvfp4-fp8": (1, 2),
    "mimo-bf16": (1, 2, 4),
    "mimo-mxfp4-fp8": (1, 2, 4),
    "qwen3.8-27b-bf16": (1, 2, 4),
    "qwen3.8-27b-fp8": (1, 2, 4),
}


def check(folder: Path, **options) -> tuple[ForwardReport, Expected]:
    expected = Expected(folder / "expected.npz")
    tolerances = stated_tolerances(folder / "expected.npz")
    assert tolerances is not None
    chosen = CheckOptions(threads=1, **options)
    return check_checkpoint(Checkpoint(folder), expected, tolerances, chosen), expected


@pytest.mark.parametrize(
    ("name", "world"), [(name, world) for name, worlds in FIXTURES.items() for world in worlds]
)
def test_served_as_it_would_be(name: str, world: int) -> None:
    report, expected = check(fixture_directory(name), world=world)
    assert report.failures == ()
    assert report.ok
    assert len(report.layers) == len(expected["hidden"])
    assert report.greedy_equal == report.greedy_total == len(expected["greedy"])
    assert report.argmax_agree == 1.0
    assert report.router_equal
    assert report.selected_equal
    assert (report.mtp_max_abs is not None) == ("mtp_logits" in expected)


@pytest.mark.parametrize("name", FIXTURES)
def test_layer_by_layer(name: str) -> None:
    report, _ = check(fixture_directory(name), per_layer=True)
    assert report.failures == ()
    assert all(layer.ok for layer in report.layers)


@pytest.mark.parametrize(
    ("name", "array", "failure"),
    [
        ("mimo-bf16", "mtp2_logits", "draft level 2 logits: off by"),
        ("mimo-bf16", "mtp1_hidden", "draft level 1 hidden: off by"),
        ("mimo-bf16", "router_ids", "router ids of layer 1: not identical"),
        ("glm-5.3-bf16", "selected", "selection of layer 0: not identical"),
        ("glm-5.3-bf16", "mtp_selected", "draft selection of layer 7: not identical"),
        ("glm-5.3-flash-bf16", "hidden", "hidden after layer 0: off by"),
        ("glm-5.3-flash-bf16", "selected", "selection of layer 2: not identical"),
        ("mimo-bf16", "hidden", "hidden after layer 0: off by"),
        ("qwen3.8-27b-bf16", "mtp_chain_logits", "draft chain: off by"),
        ("qwen3.8-27b-bf16", "mtp_chain_ids", "draft chain: tokens"),
    ],
)
def test_a_wrong_value_fails_by_name(name: str, array: str, failure: str) -> None:
    folder = fixture_directory(name)
    expected = Expected(folder / "expected.npz")
    wrong = expected.arrays[array].copy()
    place = (1, *(0,) * (wrong.ndim - 1)) if array == "hidden" else (0,) * wrong.ndim
    wrong[place] = 7 if wrong.dtype.kind == "i" else wrong[place] + 1
    expected.arrays[array] = wrong
    tolerances = stated_tolerances(folder / "expected.npz")
    assert tolerances is not None
    report = check_checkpoint(Checkpoint(folder), expected, tolerances, CheckOptions(threads=1))
    assert not report.ok
    assert len(report.failures) == 1
    assert report.failures[0].startswith(failure)
    assert np.isfinite(report.logits_max_abs)
