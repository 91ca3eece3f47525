"""Branches that gates of low rank mix, means of keys, and attention over a selection, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, rows_of, tensor_of
from test_packed import kept

from kernels_numba.backend import Attention, Norm
from kernels_numba.extended import Selection
from kernels_numba.packed_rows import RowCode

N, WIDTH, RANK, COUNT = 4, 48, 10, 7


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def near(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_norms_of_groups(extended) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((COUNT, N, WIDTH))
    rows = rows_of(extended, COUNT)
    for weight in (rng.standard_normal((1, WIDTH)), rng.standard_normal((N, WIDTH))):
        norm = Norm(extended.vector(weight.astype(np.float32)), 1e-3)
        out = extended.tensor(N * WIDTH, wide=True)
        extended.group_norm(rows, tensor_of(extended, x.reshape(COUNT, -1)), norm, N, out)
        wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * weight
        near(extended.read(out, COUNT), wanted.reshape(COUNT, -1))
    # Fewer groups than x has: the first of them.
    out = extended.tensor(2 * WIDTH, wide=True)
    norm = Norm(extended.vector(np.ones(WIDTH, np.float32)), 1e-3)
    extended.group_norm(rows, tensor_of(extended, x.reshape(COUNT, -1)), norm, 2, out)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3)
    near(extended.read(out, COUNT), wanted[:, :2].reshape(COUNT, -1))


def test_branches_are_gated_collapsed_and_added_to(extended) -> None:
    rng = np.random.default_rng(2)
    raw, gates, normed, streams = (
        rng.standard_normal((COUNT, n)) * 3 for n in (RANK + N, N * WIDTH, N * WIDTH, N * WIDTH)
    )
    y, one = rng.standard_normal((COUNT, WIDTH)), rng.standard_normal((COUNT, 1))
    low, inject, out = (extended.tensor(n, wide=True) for n in (RANK, N, WIDTH))
    rows = rows_of(extended, COUNT)
    extended.branch_gates(rows, tensor_of(extended, raw), low, inject, N)
    near(extended.read(low, COUNT), raw[:, :RANK] / N * sigmoid(raw[:, :RANK] / N))
    strength = 2 * sigmoid(raw[:, RANK:] / N)
    near(extended.read(inject, COUNT), strength)
    extended.branch_gates(rows, tensor_of(extended, -raw[:, :RANK]), low, None, N)
    near(extended.read(low, COUNT), -raw[:, :RANK] / N * sigmoid(-raw[:, :RANK] / N))
    extended.branch_collapse(rows, tensor_of(extended, normed), tensor_of(extended, gates), N, out)
    mixed = (sigmoid(gates) * normed).reshape(COUNT, N, WIDTH).mean(1)
    near(extended.read(out, COUNT), mixed)
    held, added = tensor_of(extended, streams), tensor_of(extended, y)
    extended.branch_expand(rows, added, inject, N, held)
    wanted = streams.reshape(COUNT, N, WIDTH) + strength[:, :, None] * y[:, None]
    near(extended.read(held, COUNT), wanted.reshape(COUNT, -1))
    extended.add(rows, tensor_of(extended, streams), held)
    near(extended.read(held, COUNT), wanted.reshape(COUNT, -1) + streams)
    extended.gate_whole(rows, added, tensor_of(extended, one))
    near(extended.read(added, COUNT), y * sigmoid(one))


@pytest.mark.parametrize("step", [1, 6, CAPACITY])
def test_means_are_made_when_their_last_token_comes(extended, step) -> None:
    total, every, dim, block = 150, 4, 24, 16
    keys = np.random.default_rng(3).standard_normal((total, dim)).astype(np.float32)
    store = extended.store(30, block // every, dim)
    ring = extended.store(3, every - 1, dim, wide=True)
    tensor, mean = (extended.tensor(dim, wide=True) for _ in range(2))
    rows = extended.rows(3, 10)
    rows.tables[2] = np.arange(10)[::-1]
    for first in range(0, total, step):
        rows.count = min(step, total - first)
        rows.slots[: rows.count] = 2
        rows.positions[: rows.count] = np.arange(first, first + rows.count)
        extended.begin(rows)
        extended.write(tensor, keys[first : first + rows.count])
        extended.mean_rows(rows, tensor, every, ring, mean)
        extended.store_rows(rows, mean, store, every=every)
        extended.ring_write(rows, tensor, ring)
    for entry in range(total // every):
        got = store.array[9 - entry // 4, entry % 4, :dim]
        near(got, keys[every * entry : every * entry + every].mean(0))


HEADS, KV_HEADS, TOKENS, BLOCK = 6, 2, 300, 16


def selection_of(ops, chosen: list[list[int]]) -> Selection:
    held = ops.selection(max(map(len, chosen)))
    for r, positions in enumerate(chosen):
        held.indices[r, : len(positions)] = positions
        held.counts[r] = len(positions)
    return held


@pytest.mark.parametrize("dim", [24, 64])
@pytest.mark.parametrize("code", [RowCode.FLOAT, RowCode.FP8])
def test_attention_over_what_was_selected(extended, dim, code) -> None:
    rng = np.random.default_rng(5)
    qkv = rng.standard_normal((TOKENS, (HEADS + 2 * KV_HEADS) * dim)).astype(np.float32)
    angles = extended.rotary_table(np.zeros((TOKENS, dim // 2), np.float32))
    shape = Attention(HEADS, KV_HEADS, dim, dim**-0.5, angles)
    plane = extended.plane(64, BLOCK, KV_HEADS, dim, code=code)
    rows = extended.rows(3, 32)
    rows.tables[1] = np.arange(32)[::-1]
    tensor, out = extended.tensor(qkv.shape[1], wide=True), extended.tensor(HEADS * dim)
    queries = extended.tensor(HEADS * (-(-dim // 16) * 16))
    for first in range(0, TOKENS, CAPACITY):
        at(rows, range(first, min(first + CAPACITY, TOKENS)))
        extended.begin(rows)
        extended.write(tensor, qkv[first : first + rows.count])
        extended.rotary_cache_write(rows, tensor, shape, plane, queries)
    positions = [0, 40, 170, 299, 299]
    chosen = [
        [0],
        [*range(8), *range(12, 16), 39, 40],
        list(range(171)),
        sorted(rng.permutation(300)[:140].tolist()),
        [5],
    ]

    def run(order) -> np.ndarray:
        at(rows, [positions[r] for r in order])
        extended.begin(rows)
        extended.write(tensor, qkv[[positions[r] for r in order]])
        extended.rotary_cache_write(rows, tensor, shape, plane, queries)
        selection = selection_of(extended, [chosen[r] for r in order])
        extended.attend_selected(rows, queries, shape, plane, selection, out)
        return extended.read(out, len(order))

    together = run([0, 1, 2, 3])
    if code is RowCode.FP8:
        qkv = kept_in_fp8(qkv, dim)
    split = qkv.astype(np.float64).reshape(TOKENS, -1, dim)
    q, k, v = split[:, :HEADS], split[:, HEADS : HEADS + KV_HEADS], split[:, HEADS + KV_HEADS :]
    for r in range(4):
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            score = k[chosen[r], g] @ q[positions[r], h] * dim**-0.5
            p = np.exp(score - score.max())
            near(together[r, h * dim : h * dim + dim], p / p.sum() @ v[chosen[r], g])
        np.testing.assert_array_equal(run([r])[0], together[r])
    # All positions: what attention over all of them gives, bit for bit.
    at(rows, [positions[2]])
    extended.begin(rows)
    extended.write(tensor, qkv[[positions[2]]])
    extended.rotary_cache_write(rows, tensor, shape, plane, queries)
    extended.attend_paged(rows, queries, shape, plane, out)
    np.testing.assert_array_equal(extended.read(out, 1)[0], together[2])
    near(run([4])[0].reshape(HEADS, dim), np.repeat(v[5], HEADS // KV_HEADS, 0))


def kept_in_fp8(qkv: np.ndarray, dim: int) -> np.ndarray:
    """qkv rows whose keys and values are what packed heads keep of them."""
    heads = qkv.reshape(len(qkv), -1, dim).copy()
    for head in range(HEADS, HEADS + 2 * KV_HEADS):
        heads[:, head] = kept(np.ascontiguousarray(heads[:, head]), RowCode.FP8)
    return heads.reshape(qkv.shape)


def at(rows, positions) -> None:
    rows.count = len(positions)
    rows.slots[: rows.count] = 1
    rows.positions[: rows.count] = positions
