"""Latent attention, index selection, grouped products and parts of rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, random_part

from kernels_numba.extended import Candidates, Index, LatentAttention, Rotation
from kernels_numba.weights import Form

TOKENS, BLOCK = 300, 16
ANGLES = np.outer(np.arange(TOKENS), 10.0 ** -np.arange(4)).astype(np.float32)


def step(ops, slot: int, positions, width: int = 1):
    """Rows of one slot, sent; block tables deal the slot's blocks backwards."""
    rows = ops.rows(3, 20)
    rows.tables[:] = np.arange(20)[::-1] + 20 * np.arange(3)[:, None]
    rows.count = len(positions)
    rows.slots[: rows.count] = slot
    rows.positions[: rows.count] = positions
    ops.begin(rows)
    return rows


def tensor_of(ops, values: np.ndarray):
    tensor = ops.tensor(values.shape[1], wide=True)
    ops.write(tensor, values.astype(np.float32))
    return tensor


def stored(ops, slot: int, values: np.ndarray):
    """A store that holds `values` [TOKENS, width] as the rows of a slot."""
    store = ops.store(60, BLOCK, values.shape[1])
    for first in range(0, TOKENS, CAPACITY):
        part = values[first : first + CAPACITY]
        rows = step(ops, slot, range(first, first + len(part)))
        ops.store_rows(rows, tensor_of(ops, part), store)
    return store


def best(scores: np.ndarray, top: int) -> list[int]:
    """The rule: higher score first, then the lower index; told in ascending order."""
    return sorted(sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:top])


def test_index_keys_are_scored_and_the_best_taken(extended) -> None:
    index = Index(heads=16, dim=24, top=40, scale=24**-0.5, weight_scale=0.25)
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((TOKENS, index.dim)).astype(np.float32)
    store = stored(extended, 1, keys)
    positions = [0, 5, 38, 39, 40, 127, 128, 255, 299]
    q = rng.standard_normal((len(positions), 16, 32)).astype(np.float32)
    q[:, :, 24:] = 0
    w = rng.standard_normal((len(positions), 16)).astype(np.float32)
    selection = extended.selection(index.top)

    def select(order) -> np.ndarray:
        rows = step(extended, 1, [positions[r] for r in order])
        held = tensor_of(extended, q[order].reshape(len(order), -1)), tensor_of(extended, w[order])
        extended.index_select(rows, *held, index, store, selection)
        return extended.read_selection(selection, len(order))

    together = select(list(range(len(positions))))
    for r, position in enumerate(positions):
        dots = q[r, :, :24].astype(np.float64) @ keys[: position + 1].T * index.scale
        scores = (0.25 * w[r][:, None] * np.maximum(dots, 0)).sum(0)
        wanted = best(scores, index.top)
        assert together[r, : len(wanted)].tolist() == wanted
        assert (together[r, len(wanted) :] == -1).all()
        np.testing.assert_array_equal(select([r])[0], together[r])


def test_candidate_blocks_bound_what_is_taken(extended) -> None:
    index = Index(heads=16, dim=16, top=12, scale=0.25, weight_scale=0.25)
    size, most = 6, 5
    rng = np.random.default_rng(11)
    keys = rng.standard_normal((TOKENS, index.dim)).astype(np.float32)
    store = stored(extended, 2, keys)
    positions = [0, 7, 29, 30, 60, 127, 130, 299]
    q = rng.standard_normal((2, len(positions), 16, 16)).astype(np.float32)
    w = rng.standard_normal((2, len(positions), 16)).astype(np.float32)
    selection, blocks = extended.selection(index.top), extended.selection(most)

    def scores(side: int, r: int) -> np.ndarray:
        dots = q[side, r].astype(np.float64) @ keys[: positions[r] + 1].T * index.scale
        return (0.25 * w[side, r][:, None] * np.maximum(dots, 0)).sum(0)

    def run(order) -> list[np.ndarray]:
        rows, found = step(extended, 2, [positions[r] for r in order]), []
        for side in range(2):
            held = [tensor_of(extended, a[side][order].reshape(len(order), -1)) for a in (q, w)]
            extended.index_select(
                rows, *held, index, store, selection,
                candidates=Candidates(blocks, size, given=side == 1),
            )  # fmt: skip
            found.append(extended.read_selection(selection, len(order)))
        return [extended.read_selection(blocks, len(order)), *found]

    together = run(list(range(len(positions))))
    for r in range(len(positions)):
        first, second = scores(0, r), scores(1, r)
        number = -(-len(first) // size)
        highest = np.array([first[size * b : size * b + size].max() for b in range(number)])
        highest[-1] = np.inf
        chosen = best(highest, most)
        outside = ~np.isin(np.arange(len(second)) // size, chosen)
        taken = [n for n in best(np.where(outside, -np.inf, second), index.top) if not outside[n]]
        for got, wanted in zip(together, (chosen, best(first, index.top), taken), strict=True):
            assert [n for n in got[r].tolist() if n >= 0] == wanted
        for got, whole in zip(run([r]), together, strict=True):
            np.testing.assert_array_equal(got[0], whole[r])


def test_equal_scores_go_to_the_lower_index(extended) -> None:
    index = Index(heads=1, dim=16, top=7, scale=1.0, weight_scale=1.0)
    keys = np.zeros((TOKENS, 16), np.float32)
    keys[[3, 90, 91, 200], 0] = [5, 2, 9, 2]
    store = stored(extended, 0, keys)
    query = np.zeros((1, 16), np.float32)
    query[0, 0] = 1
    selection = extended.selection(index.top)
    rows = step(extended, 0, [250])
    held = tensor_of(extended, query), tensor_of(extended, np.ones((1, 1)))
    extended.index_select(rows, *held, index, store, selection)
    assert extended.read_selection(selection, 1)[0].tolist() == [0, 1, 2, 3, 90, 91, 200]


@pytest.mark.parametrize("seed", range(6))
def test_scores_of_either_sign_with_many_equals(extended, seed) -> None:
    rng = np.random.default_rng(seed)
    index = Index(heads=2, dim=16, top=int(rng.integers(1, 200)), scale=1.0, weight_scale=1.0)
    keys = np.zeros((TOKENS, 16), np.float32)
    keys[:, :2] = rng.integers(-3, 4, (TOKENS, 2))
    store = stored(extended, 2, keys)
    query = np.zeros((1, 32), np.float32)
    query[0, 0], query[0, 17] = 1, 1
    weights = np.array([[1.0, -1.0]])
    selection = extended.selection(index.top)
    rows = step(extended, 2, [TOKENS - 1])
    held = tensor_of(extended, query), tensor_of(extended, weights)
    extended.index_select(rows, *held, index, store, selection)
    scores = np.maximum(keys[:, 0], 0) - np.maximum(keys[:, 1], 0)
    assert extended.read_selection(selection, 1)[0].tolist() == best(scores, index.top)


def test_keys_of_several_tokens_are_seen_once_they_are_whole(extended) -> None:
    index = Index(heads=1, dim=16, top=3, scale=1.0, weight_scale=1.0, every=4)
    keys = np.zeros((TOKENS, 16), np.float32)
    keys[:, 0] = 1 + np.arange(TOKENS)
    store = extended.store(60, BLOCK // 4, 16)
    store.array[:, :, 0] = 0
    # Entry j of slot 0 lies in block 19 - j // 4, row j % 4.
    for entry in range(75):
        store.array[19 - entry // 4, entry % 4, 0] = 1 + entry
    selection = extended.selection(index.top)
    query = np.zeros((5, 16), np.float32)
    query[:, 0] = 1
    rows = step(extended, 0, [2, 3, 15, 18, 19])
    held = tensor_of(extended, query), tensor_of(extended, np.ones((5, 1)))
    extended.index_select(rows, *held, index, store, selection)
    wanted = [[-1, -1, -1], [0, -1, -1], [1, 2, 3], [1, 2, 3], [2, 3, 4]]
    assert extended.read_selection(selection, 5).tolist() == wanted


@pytest.mark.parametrize("sparse", [False, True])
def test_latent_attention(extended, sparse) -> None:
    shape = LatentAttention(heads=20, width=40, value_dim=32, scale=0.2)
    rng = np.random.default_rng(2)
    latents = rng.standard_normal((TOKENS, shape.width)).astype(np.float32)
    store = stored(extended, 1, latents)
    positions = [0, 7, 127, 128, 290]
    q = rng.standard_normal((len(positions), shape.heads, 48)).astype(np.float32)
    q[:, :, 40:] = 0
    seen = [
        sorted(rng.choice(p + 1, min(p + 1, 150), replace=False)) if sparse else range(p + 1)
        for p in positions
    ]
    selection = extended.selection(150)

    def attend(order) -> np.ndarray:
        rows = step(extended, 1, [positions[r] for r in order])
        for place, r in enumerate(order):
            selection.counts[place] = len(seen[r])
            selection.indices[place, : min(150, len(seen[r]))] = list(seen[r])[:150]
        out = extended.tensor(shape.heads * shape.value_dim, wide=True)
        queries = tensor_of(extended, q[order].reshape(len(order), -1))
        chosen = selection if sparse else None
        extended.attend_latent(rows, queries, shape, store, chosen, out)
        return extended.read(out, len(order))

    together = attend(list(range(len(positions))))
    for r in range(len(positions)):
        k = latents[list(seen[r])].astype(np.float64)
        weight = np.exp(q[r, :, :40].astype(np.float64) @ k.T * shape.scale)
        wanted = weight / weight.sum(1, keepdims=True) @ k[:, :32]
        np.testing.assert_allclose(together[r], wanted.reshape(-1), atol=2e-5)
        np.testing.assert_array_equal(attend([r])[0], together[r])


@pytest.mark.parametrize("form", [Form.BF16, Form.INT8_G64, Form.FP8_BLOCK])
@pytest.mark.parametrize("count", [1, 3, 13, 40])
def test_grouped_products(extended, form, count) -> None:
    groups, each, depth = 5, 24, 64
    part, values = random_part(form, groups * each, depth, 3)
    values = values.reshape(groups, each, depth)
    matrix = extended.matrix([part])
    rng = np.random.default_rng(4)
    rows = step(extended, 0, range(count))
    x = rng.standard_normal((count, groups, depth)).astype(np.float32)
    out = extended.tensor(groups * each, wide=True)
    source = tensor_of(extended, x.reshape(count, -1))
    extended.grouped_linear(rows, source, matrix, groups, out)
    wanted = np.einsum("rgk,gnk->rgn", x.astype(np.float64), values).reshape(count, -1)
    np.testing.assert_allclose(
        extended.read(out, count), wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max()
    )
    # Groups of x 30 values apart, of which 24 are meant; groups of the result 80 apart.
    x = rng.standard_normal((count, groups, 30)).astype(np.float32)
    wide = extended.tensor(groups * 80, wide=True)
    source = tensor_of(extended, x.reshape(count, -1))
    extended.grouped_sum(rows, source, 30, matrix, groups, wide, 80)
    wanted = np.einsum("rgn,gnk->rgk", x[:, :, :each].astype(np.float64), values)
    got = extended.read(wide, count).reshape(count, groups, 80)
    np.testing.assert_allclose(got[:, :, :64], wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())
    assert not got[:, :, 64:].any()
    alone = extended.tensor(groups * 80, wide=True)
    extended.write(source, x[:1].reshape(1, -1))
    extended.grouped_sum(step(extended, 0, [0]), source, 30, matrix, groups, alone, 80)
    np.testing.assert_array_equal(extended.read(alone, 1)[0], got[0].reshape(-1))


@pytest.mark.parametrize("pairs", [False, True])
def test_rotation_of_parts_and_back(extended, pairs) -> None:
    heads, width, at, half = 3, 20, 8, 4
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, heads * width)).astype(np.float32)
    positions = [0, 1, 17, 100, 200, 299]
    rows, tensor = step(extended, 0, positions), tensor_of(extended, x)
    turn = Rotation(extended.rotary_table(ANGLES), heads, width, at, half, pairs)
    extended.rotate(rows, tensor, turn)
    got = extended.read(tensor, 6).reshape(6, heads, width)
    wanted = x.astype(np.float64).reshape(6, heads, width).copy()
    for r, position in enumerate(positions):
        for i in range(half):
            a, b = (at + 2 * i, at + 2 * i + 1) if pairs else (at + i, at + half + i)
            angle = float(ANGLES[position, i])
            first, second = wanted[r, :, a].copy(), wanted[r, :, b].copy()
            wanted[r, :, a] = first * np.cos(angle) - second * np.sin(angle)
            wanted[r, :, b] = second * np.cos(angle) + first * np.sin(angle)
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    extended.rotate(rows, tensor, turn, inverse=True)
    np.testing.assert_allclose(extended.read(tensor, 6), x, atol=1e-6)


def test_heads_move_and_layer_norm(extended) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((4, 3 * 10)).astype(np.float32)
    rows, source = step(extended, 0, range(4)), tensor_of(extended, x)
    out = extended.tensor(3 * 16, wide=True)
    extended.copy_heads(rows, source, (10, 6), 3, 4, out, (16, 2))
    got = extended.read(out, 4).reshape(4, 3, 16)
    np.testing.assert_array_equal(got[:, :, 2:6], x.reshape(4, 3, 10)[:, :, 6:])
    assert not got[:, :, :2].any()
    weight, bias = (rng.standard_normal(30).astype(np.float32) for _ in range(2))
    normed = extended.tensor(30, wide=True)
    vectors = extended.vector(weight), extended.vector(bias)
    extended.layer_norm(rows, source, *vectors, 1e-6, normed)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6) * weight + bias
    np.testing.assert_allclose(extended.read(normed, 4), wanted, atol=1e-5)
