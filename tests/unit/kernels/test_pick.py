"""Candidates, log-sum-exp and adjustments against sorting and float64 sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_numba.cpu import pick


def run(logits: np.ndarray, k: int, temperature: float = 1.0):
    size = logits.size
    tops = np.zeros(-(-size // pick.GROUP), np.float32)
    chunks = -(-size // pick.CHUNK)
    partials = np.zeros(1 << (chunks - 1).bit_length(), np.float64)
    ids, values = np.zeros(k, np.int32), np.zeros(k, np.float32)
    held, lse = pick.pick_row(logits, temperature, tops, partials, ids, values)
    return ids, values, held, lse


def expected_order(logits: np.ndarray) -> np.ndarray:
    present = np.flatnonzero(logits > -np.inf)
    return present[np.lexsort((present, -logits[present]))]


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 3000),
    k=st.sampled_from([1, 5, 128]),
    levels=st.sampled_from([2, 30, 10**6]),
    absent=st.sampled_from([0.0, 0.3, 0.99]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_candidates_are_the_head_of_the_canonical_order(
    size, k, levels, absent, temperature, seed
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-levels, levels, size) / levels * 12).astype(np.float32)
    logits[rng.random(size) < absent] = -np.inf
    k = min(k, size)
    ids, values, held, lse = run(logits, k, temperature)
    wanted = expected_order(logits)[:k]
    assert held == len(wanted)
    np.testing.assert_array_equal(ids[:held], wanted)
    np.testing.assert_array_equal(values[:held], logits[wanted])
    assert (ids[held:] == -1).all()
    if not held:
        assert lse == -np.inf
        return
    scaled = (logits[logits > -np.inf] / np.float32(temperature)).astype(np.float64)
    total = math.fsum(np.exp(scaled - scaled.max()))
    assert lse == pytest.approx(scaled.max() + math.log(total), abs=1e-12, rel=1e-13)


def test_zeros_of_both_signs_tie_and_the_lower_id_wins() -> None:
    logits = np.array([-1.0, -0.0, 0.0, -0.0], np.float32)
    ids, _, held, _ = run(logits, 4)
    assert held == 4
    assert ids.tolist() == [1, 2, 3, 0]


def test_penalties_come_in_order_and_touch_seen_ids_only() -> None:
    logits = np.array([2.0, -2.0, 1.0, 3.0], np.float32)
    counts = np.array([1, 3, 0, 0], np.int32)
    bias = np.array([0.0, 0.0, 0.0, -100.0], np.float32)
    out = np.zeros(4, np.float32)
    pick.adjust_row(logits, out, counts, 2.0, 0.5, 0.25, bias, 1)
    assert out.tolist() == [2 / 2 - 0.5 - 0.25, -2 * 2 - 1.5 - 0.25, 1.0, -97.0]


def test_mask_bits_keep_ids() -> None:
    logits = np.arange(40, dtype=np.float32)
    assert pick.mask_row(logits, np.array([1 << 31 | 1, 2], np.uint32)) == 3
    assert np.flatnonzero(logits > -np.inf).tolist() == [0, 31, 33]
