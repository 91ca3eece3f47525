"""Convolutions and gated delta rule: the oracles' values, and the same bits in every chunking."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY

from kernels_numba.backend import Norm
from kernels_numba.extended import BlockConvolution, Convolution, DeltaRule

TOKENS = 170


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def in_chunks(ops, step: int, slot: int, run) -> np.ndarray:
    """`run(rows, first)` on the rows of one request, `step` at a time; what it returns, joined."""
    rows = ops.rows(3, 1)
    parts = []
    for first in range(0, TOKENS, step):
        rows.count = min(step, TOKENS - first)
        rows.slots[: rows.count] = slot
        rows.positions[: rows.count] = np.arange(first, first + rows.count)
        ops.begin(rows)
        parts.append(run(rows, first))
    return np.concatenate(parts)


@pytest.mark.parametrize(("taps", "dilation", "silu"), [(4, 1, True), (2, 1, False), (4, 3, True)])
def test_convolution(extended, taps, dilation, silu) -> None:
    channels = 40
    rng = np.random.default_rng(taps)
    x = rng.standard_normal((TOKENS, channels)).astype(np.float32)
    weight = rng.standard_normal((taps, channels)).astype(np.float32)
    wanted = np.zeros((TOKENS, channels))
    for t in range(TOKENS):
        for j in range(taps):
            at = t - (taps - 1 - j) * dilation
            if at >= 0:
                wanted[t] += weight[j].astype(np.float64) * x[at]
    wanted = wanted * sigmoid(wanted) if silu else wanted
    shape = Convolution(extended.vector(weight), channels, taps, dilation, silu)

    def read(step: int, slot: int) -> np.ndarray:
        source, out = extended.tensor(channels, wide=True), extended.tensor(channels, wide=True)
        ring = extended.store(3, shape.history + 2, channels, wide=True)

        def run(rows, first):
            extended.write(source, x[first : first + rows.count])
            extended.causal_conv(rows, source, shape, ring, out)
            extended.ring_write(rows, source, ring)
            return extended.read(out, rows.count)

        return in_chunks(extended, step, slot, run)

    alone = read(1, 0)
    np.testing.assert_allclose(alone, wanted, atol=2e-5)
    for step in (5, 64, CAPACITY):
        np.testing.assert_array_equal(read(step, 2), alone)


def oracle(qkv: np.ndarray, decay: np.ndarray, beta: np.ndarray, rule: DeltaRule) -> np.ndarray:
    """The recurrence in float64, one head and token at a time."""
    source = qkv.astype(np.float64)
    width = rule.key_heads * rule.key_dim
    q, k, v = np.split(source, [width, 2 * width], axis=1)
    q, k = (part.reshape(TOKENS, rule.key_heads, rule.key_dim) for part in (q, k))
    v = v.reshape(TOKENS, rule.value_heads, rule.value_dim)
    q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
    q = q * rule.key_dim**-0.5
    out = np.empty((TOKENS, rule.value_heads, rule.value_dim))
    for h in range(rule.value_heads):
        g = h // (rule.value_heads // rule.key_heads)
        state = np.zeros((rule.key_dim, rule.value_dim))
        for t in range(TOKENS):
            keep = decay[t].reshape(rule.value_heads, rule.channels)[h].astype(np.float64)
            state = keep[:, None] * state
            delta = float(beta[t, h]) * (v[t, h] - state.T @ k[t, g])
            state = state + np.outer(k[t, g], delta)
            out[t, h] = state.T @ q[t, g]
    return out.reshape(TOKENS, -1)


@pytest.mark.parametrize(
    "rule", [DeltaRule(2, 6, 32, 24), DeltaRule(3, 3, 16, 16, channels=16)], ids=["gdn", "kda"]
)
def test_gated_delta_rule(extended, rule) -> None:
    rng = np.random.default_rng(rule.value_heads)
    qkv = rng.standard_normal((TOKENS, rule.qkv_width)).astype(np.float32)
    decay = rng.uniform(0.5, 1.0, (TOKENS, rule.value_heads * rule.channels)).astype(np.float32)
    beta = rng.uniform(0.0, 1.0, (TOKENS, rule.value_heads)).astype(np.float32)
    wanted = oracle(qkv, decay, beta, rule)
    held = [extended.tensor(a.shape[1], wide=True) for a in (qkv, decay, beta, wanted)]
    state = extended.store(3, rule.value_heads * rule.key_dim, rule.value_dim, wide=True)

    def read(step: int, slot: int) -> np.ndarray:
        def run(rows, first):
            for tensor, values in zip(held, (qkv, decay, beta), strict=False):
                extended.write(tensor, values[first : first + rows.count])
            extended.gated_delta(rows, held[0], rule, held[1], held[2], state, held[3])
            return extended.read(held[3], rows.count)

        return in_chunks(extended, step, slot, run)

    alone = read(1, 0)
    np.testing.assert_allclose(alone, wanted, atol=1e-5)
    # Slot 0 is used again: a request begins with an empty state.
    for step, slot in ((7, 0), (64, 2), (CAPACITY, 1)):
        np.testing.assert_array_equal(read(step, slot), alone)


def test_slots_advance_side_by_side(extended) -> None:
    rule = DeltaRule(1, 2, 16, 16)
    rng = np.random.default_rng(3)
    shapes = (rule.qkv_width, rule.value_heads, rule.value_heads)
    texts = [[rng.uniform(0.1, 1, (40, n)).astype(np.float32) for n in shapes] for _ in range(2)]
    held = [extended.tensor(n, wide=True) for n in (*shapes, 32)]
    state = extended.store(3, 32, 16, wide=True)

    def feed(work: list[tuple[int, int]]) -> np.ndarray:
        rows = extended.rows(3, 1)
        rows.count = len(work)
        rows.slots[: rows.count], rows.positions[: rows.count] = zip(*work, strict=True)
        extended.begin(rows)
        for i, tensor in enumerate(held[:3]):
            extended.write(tensor, np.stack([texts[slot][i][t] for slot, t in work]))
        extended.gated_delta(rows, held[0], rule, held[1], held[2], state, held[3])
        return extended.read(held[3], rows.count)

    alone = [feed([(slot, t) for t in range(40)]) for slot in range(2)]
    together = feed([(0, t) for t in range(25)] + [(1, t) for t in range(10)])
    together = np.concatenate(
        [together[:25], feed([(1, t) for t in range(10, 40)] + [(0, t) for t in range(25, 40)])]
    )
    np.testing.assert_array_equal(together[:25], alone[0][:25])
    np.testing.assert_array_equal(together[25:55], alone[1][10:])
    np.testing.assert_array_equal(together[55:], alone[0][25:])


def test_gates_and_gated_norm(extended) -> None:
    heads, width = 5, 24
    rng = np.random.default_rng(6)
    ab = 6 * rng.standard_normal((9, 2 * heads)).astype(np.float32)
    rate, bias = (rng.standard_normal(heads).astype(np.float32) for _ in range(2))
    rows = extended.rows(1, 1)
    rows.count = 9
    extended.begin(rows)
    source, decay, beta = (extended.tensor(n, wide=True) for n in (2 * heads, heads, heads))
    extended.write(source, ab)
    vectors = extended.vector(rate), extended.vector(bias)
    extended.delta_gates(rows, source, *vectors, decay, beta)
    a = ab[:, :heads].astype(np.float64) + bias
    keep = np.exp(-np.exp(rate.astype(np.float64)) * np.logaddexp(0, a))
    np.testing.assert_allclose(extended.read(decay, 9), keep, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(extended.read(beta, 9), sigmoid(ab[:, heads:]), rtol=1e-5)

    x, z = (rng.standard_normal((9, heads * width)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(width).astype(np.float32)
    held = [extended.tensor(heads * width, wide=True) for _ in range(3)]
    for tensor, values in zip(held, (x, z), strict=False):
        extended.write(tensor, values)
    split = x.astype(np.float64).reshape(9, heads, width)
    normed = split / np.sqrt((split**2).mean(-1, keepdims=True) + 1e-6) * weight
    for silu in (False, True):
        norm = Norm(extended.vector(weight), 1e-6)
        extended.gated_norm(rows, held[0], held[1], norm, heads, held[2], silu=silu)
        gate = sigmoid(z) * (z if silu else 1)
        wanted = normed.reshape(9, -1) * gate
        np.testing.assert_allclose(extended.read(held[2], 9), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("add", [False, True])
def test_block_convolution(extended, side, add) -> None:
    channels, group, count = 32, 8, 11
    rng = np.random.default_rng(7)
    x, before = (rng.standard_normal((count, channels)).astype(np.float32) for _ in range(2))
    base = rng.standard_normal((2, 2, channels)).astype(np.float32)
    own = rng.standard_normal((count, 2, 2, channels // group)).astype(np.float32)
    rows = extended.rows(2, 1)
    rows.count = count
    rows.slots[:count] = [0] * 4 + [1] * 7
    rows.positions[:count] = [*range(9, 13), *range(7)]
    extended.begin(rows)
    shape = BlockConvolution(extended.vector(base), channels, group)
    widths = (channels, 4 * channels // group, channels)
    source, coefficients, out = (extended.tensor(width, wide=True) for width in widths)
    for tensor, values in ((source, x), (coefficients, own.reshape(count, -1)), (out, before)):
        extended.write(tensor, values)
    extended.block_conv(rows, source, coefficients, shape, side, out, add=add)
    factors = base[side] + own[:, side].repeat(group, axis=-1)
    shifted = np.concatenate([np.zeros((1, channels)), x[:-1]])
    shifted[4] = 0
    wanted = factors[:, 0].astype(np.float64) * x + factors[:, 1] * shifted
    wanted += before if add else 0
    np.testing.assert_allclose(extended.read(out, count), wanted, atol=1e-5)
