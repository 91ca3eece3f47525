"""Index keys of several tokens each: pooled when the last token comes, unfolded when selected."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import exp32, fma32
from kernels_numba.jit import kernel, prange


@kernel()
def _pool_row(
    row: int, row_stride: int, ring: int, ring_rows: int, ring_stride: int, position: int,
    fresh: int, every: int, dim: int, bias: int, out: int,
) -> None:  # fmt: skip
    """Per channel: softmax over the pool's tokens of gate + bias, weighting their keys. `row` is
    the last token's [key | gate]; tokens before `fresh` are in the ring."""
    target = view_f32(out, dim)
    for c in range(dim):
        top = np.float32(-np.inf)
        for t in range(every):
            at = position - (every - 1) + t
            source = row - (position - at) * row_stride
            if at < fresh:
                source = ring + at % ring_rows * ring_stride
            gate = view_f32(source, 2 * dim)[dim + c] + view_f32(bias + 4 * dim * t, dim)[c]
            top = max(top, gate)
        total = np.float32(0.0)
        value = np.float32(0.0)
        for t in range(every):
            at = position - (every - 1) + t
            source = row - (position - at) * row_stride
            if at < fresh:
                source = ring + at % ring_rows * ring_stride
            held = view_f32(source, 2 * dim)
            weight = exp32(held[dim + c] + view_f32(bias + 4 * dim * t, dim)[c] - top)
            total += weight
            value = fma32(weight, held[c], value)
        target[c] = value / total


@kernel(parallel=True)
def pool_keys(
    kg: int, kg_stride: int, rows: int, positions: int, slots: int, tables: int, table_width: int,
    starts: int, every: int, dim: int, bias: int, ring: int, ring_rows: int, ring_stride: int,
    block_rows: int, store: int, line: int,
) -> None:  # fmt: skip
    """Rows that complete a pool of `every` tokens put its key to its place in the slot's blocks."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        if (position + 1) % every == 0:
            slot = view_i32(slots, rows)[r]
            entry = position // every
            block = view_i32(tables + 4 * table_width * slot, table_width)[entry // block_rows]
            _pool_row(kg + r * kg_stride, kg_stride, ring + slot * ring_rows * ring_stride,
                      ring_rows, ring_stride, position,
                      position - (r - view_i32(starts, rows)[r]), every, dim, bias,
                      store + (block * block_rows + entry % block_rows) * line)  # fmt: skip


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
