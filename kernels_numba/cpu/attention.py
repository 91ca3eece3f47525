"""Grouped-query attention over a paged cache, keys split at fixed absolute positions.

A row's keys are cut into spans of SPAN positions. Each span gives a maximum, a sum and a weighted
sum of values; spans merge in order. A row's result depends on its own keys only.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import dot_f32_block
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import exp32, fma32
from kernels_numba.cpu.tiles import COLUMNS, ROWS, sum_tile
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR

SPAN = 128
"""Keys per span: a multiple of every block size below it, a divisor of none above."""


@kernel(inline=True)
def _softmax_span(scores: int, count: int, scale: float, state: int) -> None:
    """scores → exp(scale · score − max); state = (max, sum). The sum runs over sixteen lanes."""
    values = view_f32(scores, SPAN)
    factor = np.float32(scale)
    top = np.float32(-np.inf)
    for i in range(count):
        values[i] = values[i] * factor
        top = max(top, values[i])
    for i in range(count):
        values[i] = exp32(values[i] - top)
    total = np.float32(0.0)
    for lane in range(VECTOR):
        part = np.float32(0.0)
        for i in range(lane, count, VECTOR):
            part += values[i]
        total += part
    out = view_f32(state, 2)
    out[0] = top
    out[1] = total


@kernel()
def _span(
    query: int, group: int, first: int, last: int, table: int, kv_head: int, kv_heads: int,
    padded: int, block_tokens: int, scale: float, keys: int, values: int, scores: int,
    partial: int,
) -> None:  # fmt: skip
    """One span of one row and kv head: partial[g] = (max, sum, pad…, values [padded])."""
    line = 4 * padded
    part_stride = 4 * (padded + VECTOR)
    blocks = view_i32(table, last // block_tokens + 1)
    count = last - first
    for start in range(first, last, block_tokens):
        block = (blocks[start // block_tokens] * kv_heads + kv_head) * block_tokens
        held = min(block_tokens, last - start)
        dot_f32_block(query, line, group, keys + line * (block + start % block_tokens), line, held,
                      padded, scores + 4 * (start - first), 4 * SPAN)  # fmt: skip
    for g in range(group):
        _softmax_span(scores + 4 * SPAN * g, count, scale, partial + g * part_stride)
        sums = view_f32(partial + g * part_stride + 4 * VECTOR, padded)
        for i in range(padded):
            sums[i] = np.float32(0.0)
    vectors = padded // VECTOR
    for start in range(first, last, block_tokens):
        block = (blocks[start // block_tokens] * kv_heads + kv_head) * block_tokens
        held = min(block_tokens, last - start)
        base = values + line * (block + start % block_tokens)
        for g in range(0, group, ROWS):
            for v in range(0, vectors, COLUMNS):
                sum_tile(scores + 4 * (SPAN * g + start - first), 4 * SPAN,
                         min(ROWS, group - g) - 1, min(COLUMNS, vectors - v) - 1,
                         base + 4 * VECTOR * v, line, held,
                         partial + g * part_stride + 4 * VECTOR * (1 + v), part_stride)  # fmt: skip


@kernel(inline=True)
def _merge(state: int, partial: int, padded: int) -> None:
    """Fold the next span into the running (max, sum, values) of one head."""
    running = view_f32(state, padded + VECTOR)
    following = view_f32(partial, padded + VECTOR)
    top = max(running[0], following[0])
    keep = exp32(running[0] - top)
    add = exp32(following[0] - top)
    running[0] = top
    running[1] = fma32(running[1], keep, following[1] * add)
    for i in range(VECTOR, VECTOR + padded):
        running[i] = fma32(running[i], keep, following[i] * add)


@kernel(inline=True)
def _write_heads(state: int, group: int, padded: int, dim: int, out: int) -> None:
    """out[g] = values / sum."""
    for g in range(group):
        running = view_f32(state + 4 * g * (padded + VECTOR), padded + VECTOR)
        inverse = np.float32(np.float32(1.0) / running[1])
        target = view_f32(out + 4 * g * dim, dim)
        for i in range(dim):
            target[i] = running[VECTOR + i] * inverse


@kernel(parallel=True)
def _attend_rows(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, dim: int, padded: int, block_tokens: int,
    scale: float, keys: int, values: int, out: int, out_stride: int, scratch: int,
    scratch_stride: int, threads: int,
) -> None:  # fmt: skip
    """Many rows: a task is one row and kv head, its spans one after the other."""
    tasks = rows * kv_heads
    share = (tasks + threads - 1) // threads
    heads_bytes = 4 * group * (padded + VECTOR)
    for i in prange(share * threads):
        # Later rows have more keys: deal them out like cards.
        task = (i % share) * threads + i // share
        if task < tasks:
            r = task // kv_heads
            h = task % kv_heads
            mine = scratch + get_thread_id() * scratch_stride
            length = view_i32(positions, rows)[r] + 1
            table = tables + 4 * table_width * view_i32(slots, rows)[r]
            query = queries + r * query_stride + 4 * h * group * padded
            scores = mine + 2 * heads_bytes
            for first in range(0, length, SPAN):
                last = min(first + SPAN, length)
                place = mine if first == 0 else mine + heads_bytes
                _span(query, group, first, last, table, h, kv_heads, padded, block_tokens, scale,
                      keys, values, scores, place)  # fmt: skip
                if first > 0:
                    for g in range(group):
                        shift = 4 * g * (padded + VECTOR)
                        _merge(mine + shift, mine + heads_bytes + shift, padded)
            _write_heads(mine, group, padded, dim, out + r * out_stride + 4 * h * group * dim)


@kernel(parallel=True)
def _attend_spans(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, dim: int, padded: int, block_tokens: int,
    scale: float, keys: int, values: int, out: int, out_stride: int, scratch: int,
    scratch_stride: int, partials: int, spans: int,
) -> None:  # fmt: skip
    """Few rows: a task is one span of one row and kv head; spans merge afterwards, in order."""
    heads_bytes = 4 * group * (padded + VECTOR)
    for task in prange(rows * kv_heads * spans):
        r = task // (kv_heads * spans)
        h = task // spans % kv_heads
        first = task % spans * SPAN
        length = view_i32(positions, rows)[r] + 1
        if first < length:
            mine = scratch + get_thread_id() * scratch_stride
            _span(queries + r * query_stride + 4 * h * group * padded, group, first,
                  min(first + SPAN, length), tables + 4 * table_width * view_i32(slots, rows)[r], h,
                  kv_heads, padded, block_tokens, scale, keys, values, mine + 2 * heads_bytes,
                  partials + heads_bytes * task)  # fmt: skip
    for pair in range(rows * kv_heads):
        r = pair // kv_heads
        h = pair % kv_heads
        state = partials + heads_bytes * spans * pair
        used = view_i32(positions, rows)[r] // SPAN + 1
        for s in range(1, used):
            for g in range(group):
                shift = 4 * g * (padded + VECTOR)
                _merge(state + shift, state + heads_bytes * s + shift, padded)
        _write_heads(state, group, padded, dim, out + r * out_stride + 4 * h * group * dim)


@kernel()
def attend_paged(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, dim: int, padded: int, block_tokens: int,
    scale: float, keys: int, values: int, out: int, out_stride: int, scratch: int,
    scratch_stride: int, partials: int, partial_rows: int, threads: int,
) -> None:  # fmt: skip
    """out[r, head] = softmax(scale · q·k) v over positions 0 … position[r] of the row's slot.

    `partials` holds `partial_rows` heads' spans; both ways give the same bits.
    """
    longest = np.int32(0)
    for r in range(rows):
        longest = max(longest, view_i32(positions, rows)[r])
    spans = longest // SPAN + 1
    if rows * kv_heads * spans <= partial_rows:
        _attend_spans(queries, query_stride, rows, positions, slots, tables, table_width, group,
                      kv_heads, dim, padded, block_tokens, scale, keys, values, out, out_stride,
                      scratch, scratch_stride, partials, int(spans))  # fmt: skip
    else:
        _attend_rows(queries, query_stride, rows, positions, slots, tables, table_width, group,
                     kv_heads, dim, padded, block_tokens, scale, keys, values, out, out_stride,
                     scratch, scratch_stride, threads)  # fmt: skip
