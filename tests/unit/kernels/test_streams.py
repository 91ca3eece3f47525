"""Hyper-connections, channel gates and pooled index keys against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, random_part

from kernels_numba.extended import Pooling
from kernels_numba.streams import HyperSite, StreamGate
from kernels_numba.weights import Form

N, WIDTH = 4, 48


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def tensor_of(ops, values: np.ndarray):
    tensor = ops.tensor(values.shape[1], wide=True)
    ops.write(tensor, values.astype(np.float32))
    return tensor


def mixes_of(x: np.ndarray, fn: np.ndarray, base, scale, norm_eps: float, eps: float):
    """pre [n], post [n], comb [n, n] of one row, in the words of the description."""
    flat = x.reshape(-1).astype(np.float64)
    m = fn @ flat / np.sqrt((flat**2).mean() + norm_eps)
    pre = sigmoid(m[:N] * scale[0] + base[:N]) + eps
    post = 2 * sigmoid(m[N : 2 * N] * scale[1] + base[N : 2 * N])
    comb = (m[2 * N :] * scale[2] + base[2 * N :]).reshape(N, N)
    comb = np.exp(comb - comb.max(1, keepdims=True))
    comb = comb / comb.sum(1, keepdims=True) + eps
    comb = comb / (comb.sum(0, keepdims=True) + eps)
    for _ in range(19):
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        comb = comb / (comb.sum(0, keepdims=True) + eps)
    return pre, post, comb


@pytest.mark.parametrize("form", [Form.BF16, Form.F32])
def test_streams_collapse_and_expand(extended, form) -> None:
    part, fn = random_part(form, 24, N * WIDTH, 3)
    rng = np.random.default_rng(4)
    base, scale = (rng.standard_normal(n).astype(np.float32) for n in (24, 3))
    site = HyperSite(
        extended.matrix([part]), extended.vector(base), extended.vector(scale), N, WIDTH, 1e-5,
        1e-6, 20,
    )  # fmt: skip
    x = rng.standard_normal((9, N, WIDTH)).astype(np.float32)
    y = rng.standard_normal((9, WIDTH)).astype(np.float32)

    def run(order) -> list[np.ndarray]:
        rows = extended.rows(1, 1)
        rows.count = len(order)
        extended.begin(rows)
        streams, added = (
            tensor_of(extended, x[order].reshape(len(order), -1)),
            tensor_of(extended, y[order]),
        )
        raw, mixes, u = (extended.tensor(n, wide=True) for n in (24, 24, WIDTH))
        extended.linear(rows, streams, site.fn, raw)
        extended.hyper_mix(rows, streams, site, raw, mixes)
        extended.hyper_collapse(rows, streams, site, mixes, u)
        extended.hyper_expand(rows, added, site, mixes, streams)
        return [extended.read(tensor, len(order)) for tensor in (mixes, u, streams)]

    together = run(list(range(9)))
    for r in range(9):
        pre, post, comb = mixes_of(x[r], fn, base, scale, 1e-5, 1e-6)
        wanted = np.concatenate([pre, post, comb.reshape(-1)])
        np.testing.assert_allclose(together[0][r], wanted, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(together[1][r], pre @ x[r], rtol=2e-4, atol=1e-5)
        expanded = post[:, None] * y[r] + comb.T @ x[r]
        np.testing.assert_allclose(together[2][r], expanded.reshape(-1), rtol=2e-4, atol=2e-5)
        for got, whole in zip(run([r]), together, strict=True):
            np.testing.assert_array_equal(got[0], whole[r])


def test_channel_gates(extended) -> None:
    heads, dim, count = 3, 8, 5
    rng = np.random.default_rng(5)
    f, b = 3 * rng.standard_normal((count, heads * dim)), rng.standard_normal((count, heads))
    rate, bias = rng.standard_normal(heads), rng.standard_normal(heads * dim)
    f, b, rate, bias = (a.astype(np.float32) for a in (f, b, rate, bias))
    rows = extended.rows(1, 1)
    rows.count = count
    extended.begin(rows)
    decay, beta = extended.tensor(heads * dim, wide=True), extended.tensor(heads, wide=True)
    held = tensor_of(extended, f), tensor_of(extended, b)
    vectors = extended.vector(rate), extended.vector(bias)
    extended.channel_gates(rows, *held, *vectors, -5.0, decay, beta)
    speed = np.exp(rate.astype(np.float64)).repeat(dim)
    wanted = np.exp(-5 * sigmoid(speed * (f.astype(np.float64) + bias)))
    np.testing.assert_allclose(extended.read(decay, count), wanted, rtol=1e-6)
    np.testing.assert_allclose(extended.read(beta, count), sigmoid(b), rtol=1e-5)


def test_a_site_that_only_collapses(extended) -> None:
    part, fn = random_part(Form.F32, N, N * WIDTH, 3)
    rng = np.random.default_rng(4)
    base, scale = (rng.standard_normal(n).astype(np.float32) for n in (N, 1))
    site = HyperSite(
        extended.matrix([part]), extended.vector(base), extended.vector(scale), N, WIDTH, 1e-5,
        1e-6, 0, spreads=False,
    )  # fmt: skip
    x = rng.standard_normal((3, N * WIDTH)).astype(np.float32)
    rows = extended.rows(1, 1)
    rows.count = 3
    extended.begin(rows)
    streams = tensor_of(extended, x)
    raw, mixes = (extended.tensor(n, wide=True) for n in (site.mixes, N))
    extended.linear(rows, streams, site.fn, raw)
    extended.hyper_mix(rows, streams, site, raw, mixes)
    spread = np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    wanted = sigmoid(x @ fn.T / spread * scale + base) + 1e-6
    np.testing.assert_allclose(extended.read(mixes, 3), wanted, rtol=2e-5)


TOKENS, BLOCK, EVERY, DIM = 150, 16, 4, 24


@pytest.mark.parametrize(("step", "parts"), [(1, 1), (6, 2), (CAPACITY, 1), (CAPACITY, 2), (1, 2)])
def test_pools_are_made_when_their_last_token_comes(extended, step, parts) -> None:
    rng = np.random.default_rng(6)
    width = parts * DIM
    kg = rng.standard_normal((TOKENS, 2 * width)).astype(np.float32)
    bias = rng.standard_normal((EVERY, width)).astype(np.float32)
    store = extended.store(30, BLOCK // EVERY, DIM)
    pooling = Pooling(DIM, EVERY, parts, extended.vector(bias))
    ring = extended.store(3, pooling.history, 2 * width, wide=True)
    tensor, pooled = (extended.tensor(n, wide=True) for n in (2 * width, DIM))
    rows = extended.rows(3, 10)
    rows.tables[2] = np.arange(10)[::-1]
    for first in range(0, TOKENS, step):
        rows.count = min(step, TOKENS - first)
        rows.slots[: rows.count] = 2
        rows.positions[: rows.count] = np.arange(first, first + rows.count)
        extended.begin(rows)
        extended.write(tensor, kg[first : first + rows.count])
        extended.pool_rows(rows, tensor, pooling, ring, pooled)
        extended.store_rows(rows, pooled, store, every=EVERY)
        extended.ring_write(rows, tensor, ring)
    for pool in range(TOKENS // EVERY):
        values, gates = np.zeros((0, DIM)), np.zeros((0, DIM))
        for part in range(parts):
            group = pool - (parts - 1 - part)
            if group >= 0:
                tokens = kg[EVERY * group : EVERY * group + EVERY].astype(np.float64)
                own = slice(part * DIM, part * DIM + DIM)
                values = np.concatenate([values, tokens[:, :width][:, own]])
                gates = np.concatenate([gates, tokens[:, width:][:, own] + bias[:, own]])
        weight = np.exp(gates)
        wanted = (weight / weight.sum(0) * values).sum(0)
        got = store.array[9 - pool // 4, pool % 4, :DIM]
        np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_pools_unfold_into_tokens_and_the_rest(extended) -> None:
    pools, out = extended.selection(3), extended.selection(3 * EVERY + EVERY - 1)
    rows = extended.rows(1, 1)
    rows.count = 3
    rows.positions[:3] = [2, 15, 21]
    extended.begin(rows)
    pools.indices[:3] = [[0, 0, 0], [0, 2, 3], [1, 4, 0]]
    pools.counts[:3] = [0, 3, 2]
    extended.unfold(rows, pools, EVERY, out)
    got = extended.read_selection(out, 3)
    wanted = [[0, 1, 2], [0, 1, 2, 3, *range(8, 16)], [*range(4, 8), *range(16, 20), 20, 21]]
    for row, tokens in zip(got.tolist(), wanted, strict=True):
        assert row == tokens + [-1] * (15 - len(tokens))


def test_a_row_joins_each_stream_as_its_key_fits(extended) -> None:
    count = 7
    rng = np.random.default_rng(8)
    x = rng.standard_normal((count, N, WIDTH)).astype(np.float32)
    keys = rng.standard_normal((count, N, WIDTH)).astype(np.float32)
    value = rng.standard_normal((count, WIDTH)).astype(np.float32)
    # One key that says nothing: the least root decides, and its sign is plus.
    keys[2, 1] = 0
    query, key = (rng.standard_normal((N, WIDTH)).astype(np.float32) for _ in range(2))
    gate = StreamGate(extended.vector(query), extended.vector(key), N, WIDTH, 1e-20)

    def norm(a: np.ndarray) -> np.ndarray:
        a = a.astype(np.float64)
        return a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-20)

    dots = (norm(x) * query * norm(keys) * key).sum(-1) / np.sqrt(WIDTH)
    gates = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dots), 1e-6)), dots))
    wanted = (x + gates[..., None] * value[:, None]).reshape(count, -1)

    def run(order) -> np.ndarray:
        rows = extended.rows(1, 1)
        rows.count = len(order)
        extended.begin(rows)
        streams = tensor_of(extended, x[order].reshape(len(order), -1))
        kv = np.concatenate([keys[order].reshape(len(order), -1), value[order]], axis=1)
        alone = extended.tensor(streams.width, wide=True)
        extended.gate_streams(rows, streams, tensor_of(extended, kv), gate, alone)
        told = extended.read(alone, len(order))
        extended.gate_streams(rows, streams, tensor_of(extended, kv), gate, streams)
        joined = extended.read(streams, len(order))
        before = x[order].reshape(len(order), -1)
        np.testing.assert_allclose(before + told, joined, rtol=1e-6, atol=1e-6)
        return joined

    together = run(list(range(count)))
    np.testing.assert_allclose(together, wanted, rtol=1e-5, atol=1e-6)
    for r in range(count):
        np.testing.assert_array_equal(run([r])[0], together[r])
