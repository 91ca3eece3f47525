"""Candidates, log-sum-exp and adjustments against sorting and float64 sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_numba.picks import Adjustment, Kept


def logits_of(backend, values: np.ndarray):
    logits = backend.logits(*values.shape)
    if backend.name == "cpu":
        logits[...] = values
    else:
        backend.write(logits, values)
    return logits


def run(backend, values: np.ndarray, k: int, *adjustments: Adjustment):
    rows = values.reshape(max(1, len(adjustments)), -1)
    picker = backend.picker(rows.shape[0], rows.shape[1], k)
    picker.launch(logits_of(backend, rows), adjustments or [Adjustment(1.0)])
    return picker.collect()


def expected_order(logits: np.ndarray) -> np.ndarray:
    present = np.flatnonzero(logits > -np.inf)
    return present[np.lexsort((present, -logits[present]))]


def check(backend, logits: np.ndarray, k: int, temperature: float) -> None:
    picked = run(backend, logits, k, Adjustment(temperature))
    ids, held = picked.ids[0], picked.held[0]
    wanted = expected_order(logits)[:k]
    assert held == len(wanted)
    np.testing.assert_array_equal(ids[:held], wanted)
    np.testing.assert_array_equal(picked.values[0, :held], logits[wanted])
    assert (ids[held:] == -1).all()
    if not held:
        assert picked.lse[0] == -np.inf
        return
    scaled = (logits[logits > -np.inf] / np.float32(temperature)).astype(np.float64)
    total = math.fsum(np.exp(scaled - scaled.max()))
    assert picked.lse[0] == pytest.approx(scaled.max() + math.log(total), abs=1e-12, rel=1e-13)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    size=st.integers(1, 3000),
    k=st.sampled_from([1, 5, 128]),
    levels=st.sampled_from([2, 30, 10**6]),
    absent=st.sampled_from([0.0, 0.3, 0.99]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_candidates_are_the_head_of_the_canonical_order(
    backend, size, k, levels, absent, temperature, seed
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-levels, levels, size) / levels * 12).astype(np.float32)
    logits[rng.random(size) < absent] = -np.inf
    check(backend, logits, min(k, size), temperature)


@pytest.mark.parametrize("levels", [1, 3, 10**6])
def test_a_whole_vocabulary(backend, levels) -> None:
    size = 151_552
    logits = np.random.default_rng(levels).integers(-levels, levels, size) / levels * 9
    check(backend, logits.astype(np.float32), 128, 0.7)


@pytest.mark.parametrize("k", [3, 128])
@pytest.mark.parametrize("kind", ["neighbours", "powers", "below zero", "few left"])
def test_bounds_lie_where_they_may_in_a_ranks_bits(backend, kind, k) -> None:
    rng, size = np.random.default_rng(k), 20_000
    if kind == "neighbours":
        logits = 1 + rng.integers(0, 400, size) * 2.0**-23
    elif kind == "powers":
        logits = rng.choice([-1.0, 1.0], size) * 2.0 ** rng.uniform(-126, 120, size)
    elif kind == "below zero":
        logits = rng.normal(-40, 4, size)
    else:
        logits = np.where(rng.random(size) < 0.001, rng.normal(0, 4, size), -np.inf)
    check(backend, logits.astype(np.float32), k, 1.0)


def test_zeros_of_both_signs_tie_and_the_lower_id_wins(backend) -> None:
    picked = run(backend, np.array([-1.0, -0.0, 0.0, -0.0], np.float32), 4)
    assert picked.held[0] == 4
    assert picked.ids[0].tolist() == [1, 2, 3, 0]


def adjusted(backend, values: np.ndarray, adjustment: Adjustment):
    picker = backend.picker(1, values.size, 1)
    logits = logits_of(backend, values.reshape(1, -1))
    picker.launch(logits, [adjustment])
    picked = picker.collect()
    return picker.adjusted(logits, [0])[0], picked


def test_penalties_come_in_order_and_touch_seen_ids_only(backend) -> None:
    logits = np.array([2.0, -2.0, 1.0, 3.0], np.float32)
    counts = np.array([1, 3, 0, 0], np.int32)
    bias = np.array([0.0, 0.0, 0.0, -100.0], np.float32)
    out, _ = adjusted(backend, logits, Adjustment(1.0, counts, 2.0, 0.5, 0.25, bias))
    assert out.tolist() == [2 / 2 - 0.5 - 0.25, -2 * 2 - 1.5 - 0.25, 1.0, -97.0]
    out, _ = adjusted(backend, logits, Adjustment(1.0, bias=bias))
    assert out.tolist() == [2.0, -2.0, 1.0, -97.0]


def test_mask_bits_keep_ids(backend) -> None:
    logits = np.arange(40, dtype=np.float32)
    mask = np.array([1 << 31 | 1, 2], np.uint32)
    out, picked = adjusted(backend, logits, Adjustment(1.0, mask=mask))
    assert picked.present[0] == 3
    assert picked.ids[0, 0] == 33
    assert np.flatnonzero(out > -np.inf).tolist() == [0, 31, 33]


def test_rows_are_adjusted_each_for_itself(backend) -> None:
    values = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    mask = np.zeros(7, np.uint32)
    mask[2] = 1 << 5
    picked = run(backend, values, 3, Adjustment(1.0), Adjustment(2.0, mask=mask), Adjustment(0.5))
    assert picked.present.tolist() == [200, 1, 200]
    assert picked.held.tolist() == [3, 1, 3]
    assert picked.ids[1].tolist() == [69, -1, -1]
    for r in (0, 2):
        assert picked.ids[r].tolist() == np.argsort(-values[r])[:3].tolist()
    assert picked.lse[1] == pytest.approx(values[1, 69] / 2, rel=1e-12)


def penalised(logits: np.ndarray, counts: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Repetition 2, frequency 0.5, presence 0.25, then bias; float32 throughout."""
    halved = np.where(logits > 0, logits / 2, logits * 2)
    lowered = halved - np.float32(0.5) * counts.astype(np.float32) - np.float32(0.25)
    return np.where(counts > 0, lowered, logits).astype(np.float32) + bias


def test_tables_that_are_kept_follow_their_slots(backend) -> None:
    rng = np.random.default_rng(3)
    size, first, slots = 300, 64, 3
    pickers = [backend.picker(slots, size, 4) for _ in range(2)]
    counts = rng.integers(0, 2, (slots, size)).astype(np.int32)
    bias = np.zeros((slots, size), np.float32)
    openings, changed = [1] * slots, [[] for _ in range(slots)]
    for step in range(12):
        if step == 7:
            # Another choice takes the slot: nothing of the last one's may be left.
            openings[1], changed[1] = 2, []
            counts[1], bias[1] = rng.integers(0, 3, size), rng.integers(-2, 3, size)
        for slot in range(slots):
            token = int(rng.integers(0, size))
            counts[slot, token] += 1
            # Ids before and behind this slice are another rank's.
            changed[slot] += [token + first, first - 1, first + size]
            if step % 3 == slot:
                bias[slot, token] = 1.5
        order = [0, 2, 1] if step % 2 else [1, 0]
        values = (rng.integers(-8, 8, (len(order), size)) / 4).astype(np.float32)
        rows = [
            Adjustment(
                1.0, counts[slot], 2.0, 0.5, 0.25, bias[slot],
                kept=None if step == 4 else Kept(slot, openings[slot], changed[slot], first),
            )
            for slot in order
        ]  # fmt: skip
        picker, logits = pickers[step % 2], logits_of(backend, values)
        picker.launch(logits, rows)
        picker.collect()
        got = picker.adjusted(logits, range(len(order)))
        for r, slot in enumerate(order):
            wanted = penalised(values[r], counts[slot], bias[slot])
            np.testing.assert_array_equal(got[r], wanted, err_msg=f"step {step}, slot {slot}")
