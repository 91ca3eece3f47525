"""Nothing that a file of expected values holds is passed over: each array is compared by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reference_fixtures import fixture_directory

from dgpp.check import drafter, forward
from dgpp.check.compare import compare
from dgpp.check.expected import PARTS, Expected, Tolerances, stated_tolerances
from dgpp.check.forward import CheckOptions
from dgpp.check.judge import Float32Judge
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.forms import ModelForms

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

OPTIONS = CheckOptions(threads=1)
# One of each family, that with the most arrays; all fixtures are compared whole by test_families.
V4, V41 = "deepseek-v4-flash-mxfp4-fp8", "deepseek-v4.1-flash-mxfp4-fp8"
FAMILIES = (
    V4,
    V41,
    "glm-4.7-bf16",
    "glm-5.3-bf16",
    "glm-5.3-flash-bf16",
    "mimo-bf16",
    "qwen3.8-27b-bf16",
    "qwen3.8-flash-next-fp8",
)
DRAFTER, TARGET = "qwen3.8-27b-dflash2", "qwen3.8-27b-bf16"
# What is given rather than compared: the prompt, and what only the bf16 rule asks for.
GIVEN = {"ids", "greedy_margin", "anchor_pos", "anchor_id", "dspark_anchor_pos", "dspark_next_id"}

Verdict = Callable[[Expected], list[str]]


def tolerances_of(name: str) -> Tolerances:
    stated = stated_tolerances(fixture_directory(name) / "expected.npz")
    assert stated is not None
    return stated


def expected_of(name: str) -> Expected:
    return Expected(fixture_directory(name) / "expected.npz", ("ids",))


@cache
def ran(name: str) -> Verdict:
    """One run of a fixture's checkpoint; failures of whatever it is then compared with."""
    checkpoint, held = Checkpoint(fixture_directory(name)), expected_of(name)
    if name == DRAFTER:
        target = Checkpoint(fixture_directory(TARGET))
        blocks = drafter.run_rank(checkpoint, target, held, OPTIONS, 0, None)
    else:
        limits = forward.engine_limits(checkpoint.config, len(held["ids"]) + len(held["greedy"]))
        forms = ModelForms(rounded_rows=False)
        run = forward.run_rank(checkpoint, held, limits, OPTIONS, 0, None, forms=forms).run

    def verdict(expected: Expected) -> list[str]:
        judge = Float32Judge(tolerances_of(name))
        for given in GIVEN & expected.arrays.keys():
            _ = expected[given]
        if name == DRAFTER:
            drafter.compare_blocks(judge, blocks, expected)
        else:
            compare(judge, run, expected)
        return judge.failures

    return verdict


def altered(values: np.ndarray) -> np.ndarray:
    """The same but for one value, the last of the second entry (the first where there is one)."""
    wrong = values.copy()
    place = (min(1, len(wrong) - 1), *(-1,) * (wrong.ndim - 1))
    wrong[place] = "1" if wrong.dtype.kind == "U" else wrong[place] + 1
    return wrong


@pytest.mark.parametrize("name", [*FAMILIES, DRAFTER])
def test_every_array_is_compared(name: str) -> None:
    verdict = ran(name)
    assert verdict(expected_of(name)) == []
    names = {array for array in expected_of(name).arrays if not array.startswith(PARTS)}
    for array in sorted(names - GIVEN):
        expected = expected_of(name)
        expected.arrays[array] = altered(expected.arrays[array])
        assert verdict(expected), array


@pytest.mark.parametrize(
    ("name", "array", "failure"),
    [
        ("mimo-bf16", "mtp2_logits", "draft level 2 logits: off by"),
        ("mimo-bf16", "mtp1_hidden", "draft level 1 hidden: off by"),
        ("mimo-bf16", "router_ids", "router ids of layer 2: not identical"),
        ("glm-4.7-bf16", "router_weights", "router weights of layer 3: off by"),
        ("glm-5.3-bf16", "selected", "selection of layer 1: not identical"),
        ("glm-5.3-bf16", "mtp_selected", "draft selection of layer 7: not identical"),
        ("glm-5.3-bf16", "indexer_layers", "selection of layer 1: not that of layer 0"),
        ("glm-5.3-flash-bf16", "hidden", "hidden after layer 0: off by"),
        ("glm-5.3-flash-bf16", "hidden_last", "hidden last: off by"),
        ("qwen3.8-27b-bf16", "hidden_first", "hidden first: off by"),
        ("qwen3.8-27b-bf16", "mtp_chain_logits", "draft chain: off by"),
        ("qwen3.8-27b-bf16", "mtp_chain_ids", "draft chain: tokens"),
        (V4, "dspark_ids", "blocks: 14 of 15 tokens equal"),
        (V4, "dspark_conf", "block confidence: off by"),
        (V41, "engram_rows", "engram_rows: not identical"),
        ("qwen3.8-flash-next-fp8", "ngram_rows", "ngram_rows: not identical"),
        (V41, "token_map", "token_map: not identical"),
        (DRAFTER, "block_hidden", "block hidden: off by"),
        (DRAFTER, "cand_ids", "candidates: not identical"),
    ],
)
def test_a_wrong_value_fails_by_name(name: str, array: str, failure: str) -> None:
    expected = expected_of(name)
    expected.arrays[array] = altered(expected.arrays[array])
    failures = ran(name)(expected)
    assert len(failures) == 1
    assert failures[0].startswith(failure)


@pytest.mark.parametrize("name", [FAMILIES[0], DRAFTER])
def test_an_array_that_no_comparison_knows_is_a_failure(name: str) -> None:
    expected = expected_of(name)
    expected.arrays |= {"attention_3": np.zeros(3), "image_1": np.zeros(3)}
    assert ran(name)(expected) == ["attention_3: holds values that nothing was compared with"]
    assert expected.unread() == {"attention_3": "", "image_1": "images are not served"}


def test_options_that_would_compare_nothing_are_refused(tmp_path: Path) -> None:
    checkpoint, stated = Checkpoint(fixture_directory(TARGET)), tolerances_of(TARGET)
    expected = expected_of(TARGET)
    del expected.arrays["hidden"]
    layers = CheckOptions(threads=1, per_layer=True)
    with pytest.raises(ConfigError, match="--per-layer: the expected values have no `hidden`"):
        forward.check_checkpoint(checkpoint, expected, stated, layers)
    blocks, held = Checkpoint(fixture_directory(DRAFTER)), expected_of(DRAFTER)
    with pytest.raises(ConfigError, match="--target: a block drafter is checked beside"):
        forward.check_checkpoint(blocks, held, stated, OPTIONS)
    for options, key in ((layers, "--per-layer"), (CheckOptions(rule="bf16"), "--rule")):
        with pytest.raises(ConfigError, match=key):
            drafter.check_drafter(blocks, checkpoint, held, stated, options)


def test_values_of_rounded_rows_are_compared_once_more() -> None:
    expected, checkpoint = expected_of(V4), Checkpoint(fixture_directory(V4))
    expected.arrays["qdq_logits"] = altered(expected.arrays["qdq_logits"])
    expected.arrays["qdq_more"] = np.zeros(2)
    # As far off as twenty times what noise does to the row; the next row is not.
    rows = expected.arrays["qdq_greedy_logits"] = expected.arrays["qdq_greedy_logits"].copy()
    rows[3] += 1e-2
    noise = expected.arrays["qdq_row_tol"] = expected.arrays["qdq_row_tol"].copy()
    noise[len(expected["ids"]) + 2] = 1e-3
    report = forward.check_checkpoint(checkpoint, expected, tolerances_of(V4), OPTIONS)
    assert report.failures == (
        "rounded rows: logits: off by up to 1",
        "rounded rows: qdq_more: holds values that nothing was compared with",
    )
    assert not report.ok
    assert report.rounded is not None
    assert report.rounded.greedy_logits_max_abs == pytest.approx(1e-2, abs=1e-3)


def test_values_of_bounded_prefill_are_compared_once_more() -> None:
    expected, checkpoint = expected_of(V41), Checkpoint(fixture_directory(V41))
    for name in ("bounded_logits_last", "bounded_dspark_ids", "qdq_bounded_dspark_conf"):
        expected.arrays[name] = altered(expected.arrays[name])
    expected.arrays["bounded_floor"] = expected.arrays["bounded_floor"] + 1
    expected.arrays["bounded_more"] = np.zeros(2)
    report = forward.check_checkpoint(checkpoint, expected, tolerances_of(V41), OPTIONS)
    floor = "bounded prefill: the tail begins at 28, not where it should"
    assert report.failures == (
        floor,
        "bounded prefill: logits: off by up to 1",
        "bounded prefill: blocks: 4 of 5 tokens equal",
        "bounded prefill: bounded_more: holds values that nothing was compared with",
        f"rounded rows: {floor}",
        "rounded rows: bounded prefill: block confidence: off by up to 1",
    )


def test_the_mean_of_streams_is_no_layer_s_input() -> None:
    layers = CheckOptions(threads=1, per_layer=True)
    with pytest.raises(ConfigError, match="the mean of streams, which is no layer's input"):
        forward.check_checkpoint(
            Checkpoint(fixture_directory(V4)), expected_of(V4), tolerances_of(V4), layers
        )


def test_prompts_with_images_are_refused() -> None:
    folder = fixture_directory("glm-5.3-flash-bf16", "expected_vision.npz")
    values, stated = folder / "expected_vision.npz", tolerances_of(folder.name)
    with pytest.raises(CheckpointError, match=r"images \(image0_pixel_values\), not served"):
        forward.open_and_check(folder, values, stated, OPTIONS)
