"""Rotary cache writes and paged attention against a dense float64 oracle."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from kernel_oracles import CAPACITY, HEAD_DIMS, rotate

from kernels_numba.backend import Attention, Norm
from kernels_numba.gpu.attend import spans_at_once

HEADS, KV_HEADS = 6, 2
BLOCK = 16


class Request:
    """One request's qkv rows, its blocks, and what its attention should give."""

    def __init__(
        self, tokens: int, dim: int, angles: np.ndarray, seed: int, heads: int = HEADS
    ) -> None:
        rng = np.random.default_rng(seed)
        self.qkv = rng.standard_normal((tokens, (heads + 2 * KV_HEADS) * dim)).astype(np.float32)
        split = self.qkv.astype(np.float64).reshape(tokens, -1, dim)
        scale = 1 + np.arange(dim) / dim
        q = self._normed(split[:, :heads], scale)
        k = self._normed(split[:, heads : heads + KV_HEADS], scale)
        q, k = (rotate(part, angles[:tokens, None]) for part in (q, k))
        v = split[:, heads + KV_HEADS :]
        self.expected = np.empty((tokens, heads * dim))
        for t in range(tokens):
            for h in range(heads):
                g = h // (heads // KV_HEADS)
                score = k[: t + 1, g] @ q[t, h] * dim**-0.5
                p = np.exp(score - score.max())
                self.expected[t, h * dim : h * dim + dim] = p / p.sum() @ v[: t + 1, g]

    @staticmethod
    def _normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


class Harness:
    """Feeds rows of requests to the backend in any batches."""

    def __init__(self, backend, dim: int, angles: np.ndarray, heads: int = HEADS) -> None:
        self.backend, self.dim = backend, dim
        norm = Norm(backend.vector((1 + np.arange(dim) / dim).astype(np.float32)), 1e-6)
        table = backend.rotary_table(angles.astype(np.float32))
        self.shape = Attention(heads, KV_HEADS, dim, dim**-0.5, table, norm, norm)
        self.plane = backend.plane(64, BLOCK, KV_HEADS, dim)
        self.rows = backend.rows(3, 32)
        self.qkv = backend.tensor((heads + 2 * KV_HEADS) * dim, wide=True)
        self.queries = backend.tensor(heads * (-(-dim // 16) * 16))
        self.out = backend.tensor(heads * dim)

    def feed(self, work: list[tuple[int, Request, int]]) -> np.ndarray:
        """Rows (slot, request, position) as one batch; their outputs."""
        rows = self.rows
        rows.count = len(work)
        values = np.stack([request.qkv[position] for _, request, position in work])
        for r, (slot, _, position) in enumerate(work):
            rows.slots[r], rows.positions[r] = slot, position
        self.backend.begin(rows)
        self.backend.write(self.qkv, values)
        # On a GPU one kernel where every row has a slot of its own.
        self.backend.attend_projected(
            rows, self.qkv, self.shape, self.plane, self.queries, self.out
        )
        return self.backend.read(self.out, len(work))


def cuts(size: int, tokens: int) -> list[int]:
    """Where chunks of `size` tokens begin; single ones at the edges of blocks and spans, and by
    sevens between them."""
    if size > 1:
        return [*range(0, tokens, size), tokens]
    near = [*range(20), *range(20, 120, 7), *range(120, 136), *range(136, 250, 7)]
    return [*near, *range(250, tokens + 1)]


@pytest.mark.parametrize(("dim", "turned"), [(16, 6), *((dim, dim // 2) for dim in HEAD_DIMS)])
def test_chunks_and_decode_give_the_oracle_and_the_same_bits(backend, dim, turned) -> None:
    tokens = 300
    angles = np.outer(np.arange(tokens), 1.0 / 10 ** np.arange(turned // 2))
    angles = angles.astype(np.float32).astype(np.float64)
    request = Request(tokens, dim, angles, 1)
    by_chunks = {}
    for size, blocks in ((1, 0), (7, 20), (CAPACITY, 40)):
        harness = Harness(backend, dim, angles)
        order = np.random.default_rng(size).permutation(20) + blocks
        harness.rows.tables[1, :20] = order
        parts = [
            harness.feed([(1, request, t) for t in range(start, end)])
            for start, end in pairwise(cuts(size, tokens))
        ]
        by_chunks[size] = np.concatenate(parts)
    error = 3e-5 if backend.name == "cpu" else 3e-2
    np.testing.assert_allclose(by_chunks[1], request.expected, atol=error)
    np.testing.assert_array_equal(by_chunks[7], by_chunks[1])
    np.testing.assert_array_equal(by_chunks[CAPACITY], by_chunks[1])


def test_the_widest_heads_that_a_device_takes_are_computed(backend) -> None:
    if backend.name != "cuda":
        pytest.skip("the CPU's heads have no limit")
    from kernels_numba.gpu.limits import limits_of

    dim, tokens = limits_of(backend.device).head, 140
    angles = np.outer(np.arange(tokens), 1.0 / 10 ** np.arange(8)).astype(np.float32)
    request = Request(tokens, dim, angles.astype(np.float64), 1)
    harness = Harness(backend, dim, angles)
    harness.rows.tables[1, :20] = np.arange(20)
    # More rows than are split over their spans, then few, then a step of one.
    edges = (0, min(CAPACITY, 100), tokens - 1, tokens)
    parts = [
        harness.feed([(1, request, t) for t in range(start, end)]) for start, end in pairwise(edges)
    ]
    np.testing.assert_allclose(np.concatenate(parts), request.expected, atol=3e-2)


@pytest.mark.parametrize("group", [1, 16, 17, 33])
def test_heads_that_share_keys_may_be_any_number(backend, group) -> None:
    """Kernels take sixteen of them at a time."""
    dim, tokens, heads = 32, 140, group * KV_HEADS
    angles = np.outer(np.arange(tokens), 1.0 / 10 ** np.arange(8)).astype(np.float32)
    request = Request(tokens, dim, angles.astype(np.float64), group, heads)
    harness = Harness(backend, dim, angles, heads)
    harness.rows.tables[0, :20] = np.arange(20)
    rows = [
        harness.feed([(0, request, t) for t in range(first, min(first + CAPACITY, tokens - 2))])
        for first in range(0, tokens - 2, CAPACITY)
    ]
    rows += [harness.feed([(0, request, t)]) for t in (tokens - 2, tokens - 1)]
    error = 3e-5 if backend.name == "cpu" else 3e-2
    np.testing.assert_allclose(np.concatenate(rows), request.expected, atol=error)


def test_batch_mates_do_not_change_a_row(backend) -> None:
    dim, lengths = 32, (150, 40, 270)
    angles = np.outer(np.arange(300), 1.0 / 10 ** np.arange(8)).astype(np.float32)
    requests = [Request(n, dim, angles.astype(np.float64), n) for n in lengths]
    harness = Harness(backend, dim, angles)
    for slot in range(3):
        harness.rows.tables[slot, :20] = np.arange(20) + 20 * slot
    for slot, request in enumerate(requests):
        for t in range(0, lengths[slot] - 1, CAPACITY):
            last = min(t + CAPACITY, lengths[slot] - 1)
            harness.feed([(slot, request, u) for u in range(t, last)])
    work = [(slot, requests[slot], lengths[slot] - 1) for slot in range(3)]
    alone = [harness.feed([item])[0] for item in work]
    for order in ([0, 1, 2], [2, 0, 1], [1, 0]):
        together = harness.feed([work[slot] for slot in order])
        for row, slot in zip(together, order, strict=True):
            np.testing.assert_array_equal(row, alone[slot])


@pytest.mark.parametrize("dim", [64, 128])
def test_prompts_of_several_requests_share_a_step_with_decode(backend, dim) -> None:
    lengths = (134, 40, 33)
    angles = np.outer(np.arange(140), 1.0 / 10 ** np.arange(dim // 4)).astype(np.float32)
    requests = [Request(n, dim, angles.astype(np.float64), n) for n in lengths]

    def filled(order: list[int]) -> Harness:
        harness = Harness(backend, dim, angles)
        for place, slot in enumerate(order):
            harness.rows.tables[slot, :10] = np.arange(10) + 10 * place
        return harness

    def work(slot: int, first: int, last: int) -> list[tuple[int, Request, int]]:
        return [(slot, requests[slot], t) for t in range(first, last)]

    # The second chunk of one prompt, two short prompts with a decode row between them, and another.
    harness = filled([2, 0, 1])
    harness.feed(work(0, 0, 80))
    harness.feed(work(2, 0, 32))
    together = [*work(0, 80, 133), *work(2, 32, 33), *work(1, 0, 39)]
    rows = dict(zip([(s, t) for s, _, t in together], harness.feed(together), strict=True))
    last = [*work(1, 39, 40), *work(0, 133, 134)]
    rows |= dict(zip([(s, t) for s, _, t in last], harness.feed(last), strict=True))
    few = filled([0, 1, 2])
    for slot, length in enumerate(lengths):
        for first in range(0, length, 7):
            part = work(slot, first, min(first + 7, length))
            for (_, _, t), row in zip(part, few.feed(part), strict=True):
                if (slot, t) in rows:
                    np.testing.assert_array_equal(rows[slot, t], row)


@pytest.mark.parametrize(
    "tokens",
    [131 * 128 + 1, *(pytest.param(128 * n, marks=pytest.mark.long) for n in (64, 65, 71, 72))],
)
def test_a_row_far_back_has_the_same_bits_alone(backend, tokens) -> None:
    """Whole and broken groups of spans, and more than are merged at once. Its blocks are few, each
    many times."""
    dim, blocks = 16, -(-tokens // BLOCK)
    angles = np.outer(np.arange(tokens) % 977, [1.0, 0.1, 0.01, 0.001]).astype(np.float32)
    rng = np.random.default_rng(tokens)
    harness = Harness(backend, dim, angles)
    harness.rows = rows = backend.rows(1, blocks)
    rows.tables[0] = np.arange(blocks) % 20
    request = Request(1, dim, angles.astype(np.float64), 5)
    request.qkv = {
        t: rng.standard_normal((HEADS + 2 * KV_HEADS) * dim).astype(np.float32)
        for t in [*range(300), *range(tokens - 66, tokens)]
    }
    for first in range(0, 300, CAPACITY):
        harness.feed([(0, request, t) for t in range(first, first + CAPACITY)])
    together = harness.feed([(0, request, t) for t in range(tokens - 66, tokens)])
    alone = harness.feed([(0, request, tokens - 1)])
    np.testing.assert_array_equal(alone[0], together[-1])
    assert np.abs(alone).max() > 0


@pytest.mark.parametrize("last", [4 * 128, 4 * 128 + 1, 5 * 128 + 77, 7 * 128 - 1])
def test_a_block_that_takes_several_spans_gives_the_same_bits(backend, monkeypatch, last) -> None:
    """As on a device that runs few blocks at once, the row's own key in one span or another."""
    if backend.name != "cuda":
        pytest.skip("blocks of spans are the CUDA backend's")
    dim, before = 32, 40
    angles = np.outer(np.arange(last + 1), 1.0 / 10 ** np.arange(8)).astype(np.float32)
    request = Request(last + 1, dim, angles.astype(np.float64), 3)
    grids = []
    launch = backend._kernels.launch

    def note(unit, name, grid, *arguments, **more) -> None:
        grids.append((name, grid))
        launch(unit, name, grid, *arguments, **more)

    def decoded(device) -> np.ndarray:
        monkeypatch.setattr(backend._attend, "_device", device)
        harness = Harness(backend, dim, angles)
        harness.rows = rows = backend.rows(1, 64)
        rows.tables[0] = np.random.default_rng(last).permutation(64)
        for first in range(0, last, before):
            harness.feed([(0, request, t) for t in range(first, min(last, first + before))])
        return harness.feed([(0, request, last)])[0]

    many = decoded(replace(backend.device, processors=64))
    monkeypatch.setattr(backend._kernels, "launch", note)
    few = decoded(replace(backend.device, processors=2, shared=100 << 10))
    monkeypatch.undo()
    spans = [grid for name, grid in grids if name == "attend_new"][-1][0]
    assert spans < last // 128 + 1
    np.testing.assert_array_equal(few, many)
    np.testing.assert_allclose(few, request.expected[last], atol=3e-2)


@pytest.mark.parametrize(
    ("spans", "others", "room", "dealt"),
    [
        (1, 8, 396, 1),
        (5, 8, 396, 5),  # all at once
        (65, 8, 396, 49),  # 65 would come in two turns, 49 take at most two spans each
        (65, 128, 396, 3),  # 22 in one turn
        (4, 500, 396, 2),  # three turns of two spans: nine, where four would cost twelve
    ],
)
def test_spans_are_dealt_to_as_many_blocks_as_run_at_once(spans, others, room, dealt) -> None:
    assert spans_at_once(spans, others, room) == dealt


def test_blocks_must_divide_a_span(backend) -> None:
    if backend.name != "cpu":
        pytest.skip("spans of the CUDA backend may cross blocks")
    with pytest.raises(ValueError, match="block_tokens must divide 128"):
        backend.plane(4, 48, 1, 16)
