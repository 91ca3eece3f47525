"""Rows that several tokens share: pooled when the last token comes, unfolded when selected."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import exp32, fma32
from kernels_numba.jit import kernel, prange


@kernel(inline=True)
def _source(
    row: int, row_stride: int, back: int, position: int, fresh: int, ring: int, ring_rows: int,
    ring_stride: int,
) -> int:  # fmt: skip
    """Where the row `back` positions before `position` lies: in the step, whose `row` is that of
    `position`, or in the ring."""
    at = position - back
    if at < fresh:
        return ring + at % ring_rows * ring_stride
    return row - back * row_stride


@kernel()
def _pool_row(
    row: int, row_stride: int, ring: int, ring_rows: int, ring_stride: int, position: int,
    fresh: int, every: int, parts: int, dim: int, bias: int, out: int,
) -> None:  # fmt: skip
    """Per channel: softmax over the slots of gate + bias, weighting their values. Slot (part, t) is
    part `part` of the row [values · parts | gates · parts] of token t of a group: the last part of
    the group that ends with `row`, the one before of the group before. Tokens before `fresh` are in
    the ring."""
    target = view_f32(out, dim)
    top = np.empty(dim, np.float32)
    total = np.zeros(dim, np.float32)
    for c in range(dim):
        top[c] = -np.inf
        target[c] = np.float32(0.0)
    slots = min(parts * every, (position + 1) // every * every)
    for back in range(slots - 1, -1, -1):
        part = parts - 1 - back // every
        held = _source(row, row_stride, back, position, fresh, ring, ring_rows, ring_stride)
        gate = view_f32(held + 4 * (parts + part) * dim, dim)
        shift = view_f32(bias + 4 * dim * (parts * (every - 1 - back % every) + part), dim)
        for c in range(dim):
            top[c] = max(top[c], gate[c] + shift[c])
    for back in range(slots - 1, -1, -1):
        part = parts - 1 - back // every
        held = _source(row, row_stride, back, position, fresh, ring, ring_rows, ring_stride)
        value = view_f32(held + 4 * part * dim, dim)
        gate = view_f32(held + 4 * (parts + part) * dim, dim)
        shift = view_f32(bias + 4 * dim * (parts * (every - 1 - back % every) + part), dim)
        for c in range(dim):
            weight = exp32(gate[c] + shift[c] - top[c])
            total[c] += weight
            target[c] = fma32(weight, value[c], target[c])
    for c in range(dim):
        target[c] = target[c] / total[c]


@kernel(parallel=True)
def pool_rows(
    x: int, x_stride: int, rows: int, positions: int, slots: int, starts: int, every: int,
    parts: int, dim: int, bias: int, ring: int, ring_rows: int, ring_stride: int, out: int,
    out_stride: int,
) -> None:  # fmt: skip
    """out[r] = what row r's group leaves, of rows that complete a group of `every` tokens."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        if (position + 1) % every == 0:
            own_ring = ring + view_i32(slots, rows)[r] * ring_rows * ring_stride
            _pool_row(x + r * x_stride, x_stride, own_ring, ring_rows, ring_stride, position,
                      position - (r - view_i32(starts, rows)[r]), every, parts, dim, bias,
                      out + r * out_stride)  # fmt: skip


@kernel(parallel=True)
def mean_rows(
    x: int, x_stride: int, rows: int, positions: int, slots: int, starts: int, every: int,
    width: int, ring: int, ring_rows: int, ring_stride: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r] = the mean of x over `every` tokens, the first of them first, of rows that complete
    them."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        if (position + 1) % every == 0:
            own_ring = ring + view_i32(slots, rows)[r] * ring_rows * ring_stride
            fresh = position - (r - view_i32(starts, rows)[r])
            target = view_f32(out + r * out_stride, width)
            for c in range(width):
                target[c] = np.float32(0.0)
            for back in range(every - 1, -1, -1):
                held = view_f32(_source(x + r * x_stride, x_stride, back, position, fresh, own_ring,
                                        ring_rows, ring_stride), width)  # fmt: skip
                for c in range(width):
                    target[c] += held[c]
            for c in range(width):
                target[c] = target[c] / np.float32(every)


@kernel()
def _unfold_row(
    pools: int, pool_count: int, every: int, position: int, out: int, count: int, top: int
) -> None:
    pool = view_i32(pools, pool_count)
    target = view_i32(out, top)
    taken = 0
    for i in range(pool_count):
        for t in range(every):
            target[taken] = pool[i] * every + t
            taken += 1
    for at in range((position + 1) // every * every, position + 1):
        target[taken] = at
        taken += 1
    view_i32(count, 1)[0] = taken


@kernel()
def unfold(
    rows: int, positions: int, pools: int, pool_counts: int, pool_top: int, every: int, out: int,
    counts: int, top: int,
) -> None:  # fmt: skip
    """Tokens of the pools selected, then those after the last whole pool up to the row's own."""
    for r in range(rows):
        _unfold_row(pools + 4 * pool_top * r, view_i32(pool_counts, rows)[r], every,
                    view_i32(positions, rows)[r], out + 4 * top * r, counts + 4 * r,
                    top)  # fmt: skip
