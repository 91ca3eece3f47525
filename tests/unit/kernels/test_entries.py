"""Attention over a window and entries, rounding to narrower caches, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, E2M1, E4M3

from kernels_numba.extended import Code, Entries, EntryAttention, Rotation, Rounding

HEADS, WIDTH, WINDOW, EVERY, TOKENS, BLOCK = 18, 32, 140, 4, 420, 16
SCALE = WIDTH**-0.5


def tensor_of(ops, values: np.ndarray):
    tensor = ops.tensor(values.shape[1], wide=True)
    ops.write(tensor, values.astype(np.float32))
    return tensor


def attended(q, keys, sinks) -> np.ndarray:
    """[heads, width] of queries [heads, width] over keys [n, width], which are the values."""
    scores = SCALE * q.astype(np.float64) @ keys.T
    top = np.maximum(scores.max(1), sinks)
    weights = np.exp(scores - top[:, None])
    return weights @ keys / (weights.sum(1) + np.exp(sinks - top))[:, None]


class Run:
    """A request whose rows and entries come step by step, into blocks dealt backwards."""

    def __init__(self, ops) -> None:
        rng = np.random.default_rng(1)
        self.ops = ops
        self.q = rng.standard_normal((TOKENS, HEADS * WIDTH)).astype(np.float32)
        self.kv = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
        self.entries = rng.standard_normal((TOKENS // EVERY, WIDTH)).astype(np.float32)
        self.sinks = rng.standard_normal(HEADS).astype(np.float32)
        self.ring = ops.store(3, WINDOW + 5, WIDTH)
        self.store = ops.store(30, BLOCK // EVERY, WIDTH)
        self.rows = ops.rows(3, 30)
        self.rows.tables[1] = np.arange(30)[::-1]

    def begin(self, first: int, count: int) -> None:
        rows = self.rows
        rows.count = count
        rows.slots[:count] = 1
        rows.positions[:count] = np.arange(first, first + count)
        self.ops.begin(rows)

    def step(
        self, first: int, count: int, *, chosen=None, block=False, floored=False
    ) -> np.ndarray:
        ops, rows = self.ops, self.rows
        self.begin(first, count)
        groups = np.minimum(np.arange(first, first + count) // EVERY, len(self.entries) - 1)
        ops.store_rows(rows, tensor_of(ops, self.entries[groups]), self.store, every=EVERY)
        kv = tensor_of(ops, self.kv[first : first + count])
        entries = None
        if not block:
            selection = None
            if chosen is not None:
                selection = ops.selection(8)
                selection.indices[:count] = chosen
                selection.counts[:count] = 8
            entries = Entries(self.store, EVERY, selection)
        attention = EntryAttention(
            HEADS, WIDTH, SCALE, WINDOW, ops.vector(self.sinks), both_ways=block, floored=floored
        )
        out = ops.tensor(HEADS * WIDTH, wide=True)
        queries = tensor_of(ops, self.q[first : first + count])
        ops.attend_entries(rows, queries, attention, kv, self.ring, entries, out)
        if not block:
            ops.ring_write(rows, kv, self.ring)
        return ops.read(out, count).reshape(count, HEADS, WIDTH)


def test_windows_and_entries_are_one_softmax(extended) -> None:
    whole, single = Run(extended), Run(extended)
    got = [whole.step(first, 105) for first in range(0, TOKENS, 105)]
    got = np.concatenate(got)
    for position in (0, 2, 3, 4, 127, 128, 139, 140, 300, TOKENS - 1):
        keys = np.concatenate(
            [
                whole.kv[max(0, position + 1 - WINDOW) : position + 1],
                whole.entries[: (position + 1) // EVERY],
            ]
        )
        wanted = attended(whole.q[position].reshape(HEADS, WIDTH), keys, whole.sinks)
        np.testing.assert_allclose(got[position], wanted, atol=2e-6)
    for first in range(0, 150, 3):
        np.testing.assert_array_equal(single.step(first, 3), got[first : first + 3])


def test_entries_may_be_selected_and_blocks_see_themselves_both_ways(extended) -> None:
    run = Run(extended)
    for first in range(0, 300, 100):
        run.step(first, 100)
    chosen = np.arange(3, 67, 8)
    got = run.step(300, 2, chosen=chosen)
    for r in range(2):
        keys = np.concatenate([run.kv[301 + r - WINDOW : 301 + r], run.entries[chosen]])
        wanted = attended(run.q[300 + r].reshape(HEADS, WIDTH), keys, run.sinks)
        np.testing.assert_allclose(got[r], wanted, atol=2e-6)
    block = run.step(302, 5, block=True)
    for r in range(5):
        keys = run.kv[302 - WINDOW : 307]
        wanted = attended(run.q[302 + r].reshape(HEADS, WIDTH), keys, run.sinks)
        np.testing.assert_allclose(block[r], wanted, atol=2e-6)


def test_no_window_reaches_behind_its_tail(extended) -> None:
    run, whole = Run(extended), Run(extended)
    for each in (run, whole):
        for first in (0, 100):
            each.step(first, 100)
        each.rows.floors[1] = 170
    bounded, free = (each.step(200, 90, floored=each is run) for each in (run, whole))
    for position in (200, 255, 289):
        keys = np.concatenate([run.kv[170 : position + 1], run.entries[: (position + 1) // EVERY]])
        wanted = attended(run.q[position].reshape(HEADS, WIDTH), keys, run.sinks)
        np.testing.assert_allclose(bounded[position - 200], wanted, atol=2e-6)
        assert not np.array_equal(free[position - 200], bounded[position - 200])


def test_rows_are_packed_and_put_back(extended) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    x, index = tensor_of(extended, values), np.array([1, 2, 5], np.int32)
    extended.pack_rows(x, index)
    np.testing.assert_array_equal(extended.read(x, 3), values[index])
    extended.write(x, -extended.read(x, 3))
    extended.unpack_rows(x, index)
    np.testing.assert_array_equal(extended.read(x, 6)[index], -values[index])


def test_groups_turn_by_their_first_position(extended) -> None:
    angles = np.outer(np.arange(40), [1.0, 0.1]).astype(np.float32)
    x = np.random.default_rng(2).standard_normal((9, 8)).astype(np.float32)
    run = Run(extended)
    table, turned = extended.rotary_table(angles), tensor_of(extended, x)
    run.begin(11, 9)
    extended.rotate(run.rows, turned, Rotation(table, 1, 8, 4, 2, pairs=True, every=4))
    wanted = x.astype(np.float64)
    for r, position in enumerate(range(11, 20)):
        for i in range(2):
            a, b = x[r, 4 + 2 * i], x[r, 5 + 2 * i]
            angle = float(angles[position // 4 * 4, i])
            wanted[r, 4 + 2 * i] = a * np.cos(angle) - b * np.sin(angle)
            wanted[r, 5 + 2 * i] = b * np.cos(angle) + a * np.sin(angle)
    np.testing.assert_allclose(extended.read(turned, 9), wanted, atol=1e-6)


def test_heads_are_divided_by_their_root_mean_square(extended) -> None:
    x = np.random.default_rng(3).standard_normal((9, 3, 48)).astype(np.float32)
    run, held = Run(extended), tensor_of(extended, x.reshape(9, -1))
    run.begin(0, 9)
    extended.norm_heads(run.rows, held, 3, 1e-3)
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(2, keepdims=True) + 1e-3)
    np.testing.assert_allclose(extended.read(held, 9), wanted.reshape(9, -1), rtol=1e-5)


def nearest(value: float, grid: np.ndarray) -> float:
    """The nearest of codes in their order; between two the even one."""
    gaps = np.abs(grid - abs(value))
    best = np.flatnonzero(gaps == gaps.min())
    code = best[0] if len(best) == 1 or best[0] % 2 == 0 else best[1]
    return float(np.copysign(grid[code], value))


def rounded(block: np.ndarray, code: Code) -> np.ndarray:
    most = float(np.abs(block).max())
    if code is Code.FP8_E8M0:
        grid, scale = E4M3[:127], 2.0 ** np.ceil(np.log2(max(most, 1e-4) / 448))
    elif code is Code.FP4_E8M0:
        grid, scale = E2M1, 2.0 ** np.ceil(np.log2(max(most, 6 * 2.0**-126) / 6))
    else:
        grid, scale = E2M1, nearest(max(most, 6 * 2.0**-9) / 6, E4M3[:127])
    return np.array([nearest(float(v) / scale, grid) * scale for v in block])


@pytest.mark.parametrize("code", list(Code))
def test_rows_are_rounded_to_their_codes(extended, code) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((12, 50)) * 2.0 ** rng.integers(-20, 6, (12, 1))
    x[0] = 0
    # Every tie between codes, where the largest value makes the scale a one.
    ties = np.convolve(E2M1, [0.5, 0.5], "valid")
    x[1, :16], x[1, 16:32] = np.concatenate([[6], ties, -E2M1]), np.linspace(-6, 6, 16)
    x[2, :16], x[2, 7] = np.linspace(-447, 448, 16), 0.0009765625
    x[3, :4] = [448, 25, 27, 0.001953125 * 1.5]
    x = x.astype(np.float32)
    run, held = Run(extended), tensor_of(extended, x)
    run.begin(0, 12)
    extended.round_rows(run.rows, held, Rounding(code, 40, 16))
    got = extended.read(held, 12)
    for r in range(12):
        wanted = [rounded(x[r, at : min(at + 16, 40)], code) for at in (0, 16, 32)]
        np.testing.assert_allclose(got[r, :40], np.concatenate(wanted), rtol=1e-6)
    np.testing.assert_array_equal(got[:, 40:], x[:, 40:])


def test_the_hadamard_matrix(extended) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < 16:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = np.random.default_rng(5).standard_normal((CAPACITY, 32)).astype(np.float32)
    run, held = Run(extended), tensor_of(extended, x)
    run.begin(0, CAPACITY)
    extended.hadamard(run.rows, held, 2)
    wanted = x.reshape(-1, 2, 16).astype(np.float64) @ matrix / 4
    got = extended.read(held, CAPACITY)
    np.testing.assert_allclose(got, wanted.reshape(CAPACITY, 32), atol=1e-5)
