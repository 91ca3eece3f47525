"""Sliding windows over rings against a dense float64 oracle, and bit for bit in every chunking."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_oracles import CAPACITY, rotate

from kernels_numba.backend import Attention, kv_row_width
from kernels_numba.extended import ExtendedBackend

HEADS, KV_HEADS, DIM, VALUE_DIM, ROTATED = 6, 2, 24, 16, 8
GAP = 5
TOKENS = 300


ANGLES = np.outer(np.arange(TOKENS), 10.0 ** -np.arange(ROTATED // 2)).astype(np.float32)
SINKS = np.linspace(-2, 3, HEADS).astype(np.float32)


def random_qkv(seed: int) -> np.ndarray:
    width = HEADS * DIM + GAP + KV_HEADS * (DIM + VALUE_DIM)
    return np.random.default_rng(seed).standard_normal((TOKENS, width)).astype(np.float32)


def oracle(qkv: np.ndarray, window: int, *, sinks: bool) -> np.ndarray:
    """Attention of every token, keys before its window masked out."""
    source = qkv.astype(np.float64)
    split = np.cumsum([HEADS * DIM, GAP, KV_HEADS * DIM])
    q, _, k, v = np.split(source, split, axis=1)
    angles = ANGLES.astype(np.float64)[:, None]
    q, k = (rotate(part.reshape(TOKENS, -1, DIM), angles) for part in (q, k))
    v = 0.707 * v.reshape(TOKENS, KV_HEADS, VALUE_DIM)
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
    seen = (distance >= 0) & (distance < window)
    out = np.empty((TOKENS, HEADS, VALUE_DIM))
    for h in range(HEADS):
        score = q[:, h] @ k[:, h // (HEADS // KV_HEADS)].T * DIM**-0.5
        weight = np.exp(np.where(seen, score, -np.inf))
        total = weight.sum(1, keepdims=True) + (np.exp(float(SINKS[h])) if sinks else 0.0)
        out[:, h] = weight / total @ v[:, h // (HEADS // KV_HEADS)]
    return out.reshape(TOKENS, -1)


class Harness:
    def __init__(self, ops: ExtendedBackend, window: int, ring_rows: int, *, sinks: bool) -> None:
        self.ops = ops
        self.shape = Attention(
            HEADS,
            KV_HEADS,
            DIM,
            DIM**-0.5,
            ops.rotary_table(ANGLES),
            value_dim=VALUE_DIM,
            value_scale=0.707,
            gap=GAP,
            window=window,
            sinks=ops.vector(SINKS) if sinks else None,
        )
        width = kv_row_width(KV_HEADS, DIM, VALUE_DIM)
        self.ring = ops.store(3, ring_rows, width)
        self.kv = ops.tensor(width)
        self.qkv = ops.tensor(HEADS * DIM + GAP + KV_HEADS * (DIM + VALUE_DIM), wide=True)
        self.queries = ops.tensor(HEADS * (-(-DIM // 16) * 16))
        self.out = ops.tensor(HEADS * VALUE_DIM)
        self.rows = ops.rows(3, 1)

    def feed(self, work: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
        """Rows (slot, position, qkv) as one step."""
        rows = self.rows
        rows.count = len(work)
        for r, (slot, position, _) in enumerate(work):
            rows.slots[r], rows.positions[r] = slot, position
        self.ops.begin(rows)
        self.ops.write(self.qkv, np.stack([values for _, _, values in work]))
        self.ops.split_rows(rows, self.qkv, self.shape, self.queries, self.kv)
        self.ops.attend_window(rows, self.queries, self.shape, self.kv, self.ring, self.out)
        self.ops.ring_write(rows, self.kv, self.ring)
        return self.ops.read(self.out, rows.count)

    def read(self, slot: int, qkv: np.ndarray, step: int) -> np.ndarray:
        parts = [
            self.feed([(slot, t, qkv[t]) for t in range(start, min(start + step, len(qkv)))])
            for start in range(0, len(qkv), step)
        ]
        return np.concatenate(parts)


@pytest.mark.parametrize(
    ("window", "ring_rows", "sinks"),
    [(8, 8, False), (8, 8, True), (128, 131, True), (40, 64, False), (TOKENS, TOKENS, True)],
)
def test_every_chunking_gives_the_oracle_and_the_same_bits(
    extended, window, ring_rows, sinks
) -> None:
    qkv = random_qkv(1)
    wanted = oracle(qkv, window, sinks=sinks)
    alone = Harness(extended, window, ring_rows, sinks=sinks).read(1, qkv, 1)
    np.testing.assert_allclose(alone, wanted, atol=3e-5)
    for step in (7, 64, CAPACITY):
        got = Harness(extended, window, ring_rows, sinks=sinks).read(2, qkv, step)
        np.testing.assert_array_equal(got, alone)


def test_batch_mates_and_earlier_requests_change_nothing(extended) -> None:
    harness = Harness(extended, 40, 48, sinks=True)
    texts = [random_qkv(seed) for seed in range(3)]
    alone = [harness.read(slot, text, 50) for slot, text in enumerate(texts)]
    again = Harness(extended, 40, 48, sinks=True)
    # Slots are used a second time: what their rings hold is of other requests.
    for slot in range(3):
        again.read(slot, random_qkv(9), 100)
    at = [0, 0, 0]
    got: list[list[np.ndarray]] = [[], [], []]
    rng = np.random.default_rng(4)
    while min(at) < TOKENS:
        counts = [min(int(rng.integers(0, 40)), TOKENS - at[slot]) for slot in range(3)]
        order = rng.permutation(3)
        work = [
            (int(slot), t, texts[slot][t])
            for slot in order
            for t in range(at[slot], at[slot] + counts[slot])
        ]
        if not work:
            continue
        for (slot, _, _), row in zip(work, again.feed(work), strict=True):
            got[slot].append(row)
        at = [at[slot] + counts[slot] for slot in range(3)]
    for slot in range(3):
        np.testing.assert_array_equal(np.stack(got[slot]), alone[slot])


def test_rows_that_were_drafted_in_vain_are_written_again(extended) -> None:
    qkv, vain = random_qkv(1), random_qkv(2)
    harness = Harness(extended, 40, 48, sinks=True)
    wanted = Harness(extended, 40, 48, sinks=True).read(0, qkv, 1)
    for t in range(TOKENS - 9):
        # Eight drafts beyond row t, none of them kept.
        work = [(0, t, qkv[t]), *((0, t + d, vain[t + d]) for d in range(1, 9))]
        np.testing.assert_array_equal(harness.feed(work)[0], wanted[t])


def test_a_block_sees_its_context_and_itself_both_ways(extended) -> None:
    window, context, block = 40, 100, 8
    qkv = random_qkv(1)
    harness = Harness(extended, window, 64, sinks=False)
    harness.read(1, qkv[:context], 64)
    harness.shape = replace(harness.shape, both_ways=True)
    rows = range(context, context + block)
    got = harness.feed([(1, t, qkv[t]) for t in rows])
    source = qkv.astype(np.float64)
    split = np.cumsum([HEADS * DIM, GAP, KV_HEADS * DIM])
    q, _, k, v = np.split(source, split, axis=1)
    angles = ANGLES.astype(np.float64)[:, None]
    q, k = (rotate(part.reshape(TOKENS, -1, DIM), angles) for part in (q, k))
    v = 0.707 * v.reshape(TOKENS, KV_HEADS, VALUE_DIM)
    for row, t in zip(got, rows, strict=True):
        seen = slice(t - window + 1, context + block)
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            weight = np.exp(k[seen, g] @ q[t, h] * DIM**-0.5)
            wanted = weight / weight.sum() @ v[seen, g]
            own = row[h * VALUE_DIM : (h + 1) * VALUE_DIM]
            np.testing.assert_allclose(own, wanted, atol=3e-5)
    # What was drafted beside another slot's rows is the same.
    other = [(0, t, qkv[t]) for t in range(5)]
    again = harness.feed([*other, *((1, t, qkv[t]) for t in rows)])
    np.testing.assert_array_equal(again[5:], got)
