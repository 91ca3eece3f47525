"""The bf16 rule: what it explains passes, what it does not is named."""

from __future__ import annotations

import numpy as np
import pytest

from dgpp.check.bf16 import Bf16Judge
from dgpp.check.noise import Noise, stated_noise

NOISE = Noise(mean_abs=0.02, argmax_agree=1.0, logit_std=2.0)
RELATIVE = 0.01


def judge(gaps: dict[int, list[float]] | None = None) -> Bf16Judge:
    told = None if gaps is None else {layer: np.array(row) for layer, row in gaps.items()}
    return Bf16Judge(NOISE, None if told is None else lambda: told)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def noisy(reference: np.ndarray, mean: float, seed: int = 1) -> np.ndarray:
    """`reference` with errors of this mean |size|."""
    return reference + mean * np.sqrt(np.pi / 2) * values(*reference.shape, seed=seed)


def test_two_ways_of_stating_the_noise() -> None:
    glm = {"hf_bf16_vs_fp32": {"mean_abs": 0.02, "max_abs": 1, "argmax_agree": 1.0}, "logit_std": 2}
    assert stated_noise(glm) == NOISE
    qwen = {"bf16_run_rel_err": 0.01, "bf16_run_argmax_equal": 1.0, "logits_std": 2.0}
    assert stated_noise(qwen) == NOISE
    assert NOISE.relative == RELATIVE
    for silent in ({}, {"logit_std": 2.0}, {"hf_bf16_vs_fp32": None, "logit_std": 2.0}):
        assert stated_noise(silent) is None


@pytest.mark.parametrize(("mean", "good"), [(0.9, True), (1.2, False)])
def test_values_are_held_to_the_share_of_their_spread(mean: float, good: bool) -> None:
    reference = 3 * values(40, 500)
    found = judge()
    found.near("final norm", noisy(reference, mean * RELATIVE * 3), reference)
    assert bool(found.failures) != good
    if not good:
        assert found.failures[0].startswith("final norm: mean |error| 0.03")


def test_one_wrong_element_of_a_layer_is_seen() -> None:
    hidden = np.stack([values(20, 64), values(20, 64, seed=2)])
    change = np.abs(hidden[1] - hidden[0]).max()
    good = hidden[1] + np.float32(0.5 * RELATIVE) * (hidden[1] - hidden[0])
    found = judge()
    assert found.layer(1, good, hidden, alone=True).ok
    bad = good.copy()
    bad[7, 3] += 1.5 * RELATIVE * change
    error = found.layer(1, bad, hidden, alone=True)
    assert not error.ok
    assert error.of_change is not None
    assert error.of_change > RELATIVE
    assert found.failures[0].startswith("layer 0: error is 0.01")


def test_a_layer_that_is_off_everywhere_by_little_is_seen() -> None:
    """Small against the largest change, but not against the mean one."""
    before = values(50, 64)
    after = before + values(50, 64, seed=3) ** 9
    found = judge()
    change = np.abs(after - before)
    assert not found.layer(
        1,
        after + np.float32(2 * RELATIVE * change.mean()) + 0.01 * np.abs(after),
        np.stack([before, after]),
        alone=True,
    ).ok


def test_errors_that_added_up_are_told_but_not_judged() -> None:
    hidden = np.stack([values(20, 64), values(20, 64, seed=2)])
    found = judge()
    assert found.layer(1, hidden[1] + 1, hidden, alone=False).ok
    assert not found.failures


IDS = np.array([[0, 3], [1, 2], [4, 5]])
WEIGHTS = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(("gap", "allowed"), [(0.019, True), (0.021, False)])
def test_experts_may_differ_where_float32_holds_them_close(gap: float, allowed: bool) -> None:
    other = IDS.copy()
    other[1] = [1, 6]
    found = judge({2: [0.5, gap, 0.5]})
    equal, _ = found.routed("router", 2, (other, WEIGHTS), (IDS, WEIGHTS))
    assert not equal
    assert [(flip.layer, flip.row, flip.allowed) for flip in found.flips] == [(2, 1, allowed)]
    assert bool(found.failures) != allowed
    if not allowed:
        assert "layer 2, row 1: 0.021 apart in float32, bf16 explains 0.02" in found.failures[0]


def test_a_row_with_other_experts_is_not_compared_further() -> None:
    other = IDS.copy()
    other[1] = [1, 6]
    hidden = np.stack([values(3, 64), values(3, 64, seed=2), values(3, 64, seed=3)])
    got = hidden[2].copy()
    got[1] += 100
    found = judge({1: [0.5, 0.001, 0.5]})
    found.routed("router", 1, (other, WEIGHTS), (IDS, WEIGHTS))
    assert found.layer(2, got, hidden, alone=True).ok
    got[0, 0] += 100
    assert not found.layer(2, got, hidden, alone=True).ok


def test_without_the_reference_input_choices_are_told_but_not_judged() -> None:
    other = IDS.copy()
    other[0] = [0, 7]
    found = judge()
    assert found.routed("router", 2, (other, WEIGHTS), (IDS, WEIGHTS))[0] is False
    assert not found.flips
    assert not found.failures


def test_the_best_token_may_differ_between_near_equals_alone() -> None:
    wanted = np.zeros((2, 8), np.float32)
    wanted[:, 2], wanted[:, 5] = 4.0, [3.97, 3.0]
    near, far = wanted.copy(), wanted.copy()
    near[0, 5] = 4.01
    far[1, 5] = 4.01
    found = judge()
    found.logits(near, wanted)
    assert not found.failures
    found.logits(far, wanted)
    assert "best token agrees in 0.000 of 1 rows" in found.failures[-1]


def test_the_mean_error_is_that_of_the_references_own_run_at_most() -> None:
    wanted = 2 * values(44, 512)
    found = judge()
    found.logits(noisy(wanted, 0.015), wanted)
    assert not found.failures
    found.logits(noisy(wanted, 0.025), wanted)
    assert "the reference's bf16 run has 0.02" in found.failures[0]


def test_a_greedy_token_may_differ_where_the_two_best_are_close() -> None:
    wanted, margins = np.array([5, 6, 7]), np.array([1.0, 0.03, 1.0])
    found = judge()
    assert found.picks(np.array([5, 9, 7]), wanted, margins) == 2
    assert not found.failures
    assert found.picks(np.array([5, 6, 9]), wanted, margins) == 2
    assert "token 2 is 9, not 7, which leads by 1" in found.failures[0]


def test_shapes_and_nan_fail() -> None:
    found = judge()
    found.near("x", values(2, 3), values(2, 4))
    found.logits(values(2, 3), values(2, 4))
    assert len(found.failures) == 2
    found.near("y", np.full((2, 3), np.nan), values(2, 3))
    assert "y: mean |error| inf" in found.failures[2] or "y: mean" in found.failures[2]
