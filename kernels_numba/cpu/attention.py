"""Grouped-query attention over a paged cache, keys split at fixed absolute positions.

A row's keys are cut into spans of SPAN positions, which merge in order. A row's result depends on
its own keys only.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.packed import unpack_rows
from kernels_numba.cpu.pointers import view_i32
from kernels_numba.cpu.span import SPAN, begin_span, merge, score_run, value_run, write_heads
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR


@kernel()
def _span(
    query: int, group: int, first: int, last: int, table: int, kv_head: int, kv_heads: int,
    padded: int, value_padded: int, block_tokens: int, scale: float, keys: int, values: int,
    line: int, value_line: int, packing: int, value_packing: int, scores: int, state: int,
) -> None:  # fmt: skip
    """One span of one row and kv head; packed lines are unpacked behind the scores first."""
    panel = scores + 4 * group * SPAN
    blocks = view_i32(table, last // block_tokens + 1)
    for start in range(first, last, block_tokens):
        block = (blocks[start // block_tokens] * kv_heads + kv_head) * block_tokens
        held = min(block_tokens, last - start)
        run = keys + line * (block + start % block_tokens)
        step = line
        if packing != 0:
            step = 4 * padded
            unpack_rows(packing, run, line, held, panel, step)
            run = panel
        score_run(query, group, padded, run, step, held, scores + 4 * (start - first))
    begin_span(scores, group, last - first, scale, value_padded, state)
    for start in range(first, last, block_tokens):
        block = (blocks[start // block_tokens] * kv_heads + kv_head) * block_tokens
        held = min(block_tokens, last - start)
        run = values + value_line * (block + start % block_tokens)
        step = value_line
        if value_packing != 0:
            step = 4 * value_padded
            unpack_rows(value_packing, run, value_line, held, panel, step)
            run = panel
        value_run(scores + 4 * (start - first), group, run, step, held, value_padded, state)


@kernel(parallel=True)
def _attend_rows(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, padded: int, value_dim: int, value_padded: int,
    block_tokens: int, scale: float, keys: int, values: int, line: int, value_line: int,
    packing: int, value_packing: int, sinks: int, out: int, out_stride: int,
    scratch: int, scratch_stride: int, threads: int,
) -> None:  # fmt: skip
    """Many rows: a task is one row and kv head, its spans one after the other."""
    tasks = rows * kv_heads
    share = (tasks + threads - 1) // threads
    heads_bytes = 4 * group * (value_padded + VECTOR)
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
                place = mine if first == 0 else mine + heads_bytes
                _span(query, group, first, min(first + SPAN, length), table, h, kv_heads, padded,
                      value_padded, block_tokens, scale, keys, values, line, value_line, packing,
                      value_packing, scores, place)  # fmt: skip
                if first > 0:
                    merge(mine, mine + heads_bytes, group, value_padded)
            sink = sinks + 4 * h * group if sinks != 0 else 0
            write_heads(mine, group, value_padded, value_dim, sink,
                        out + r * out_stride + 4 * h * group * value_dim)  # fmt: skip


@kernel(parallel=True)
def _attend_spans(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, padded: int, value_dim: int, value_padded: int,
    block_tokens: int, scale: float, keys: int, values: int, line: int, value_line: int,
    packing: int, value_packing: int, sinks: int, out: int, out_stride: int,
    scratch: int, scratch_stride: int, partials: int, spans: int,
) -> None:  # fmt: skip
    """Few rows: a task is one span of one row and kv head; spans merge afterwards, in order."""
    heads_bytes = 4 * group * (value_padded + VECTOR)
    for task in prange(rows * kv_heads * spans):
        r = task // (kv_heads * spans)
        h = task // spans % kv_heads
        first = task % spans * SPAN
        length = view_i32(positions, rows)[r] + 1
        if first < length:
            mine = scratch + get_thread_id() * scratch_stride
            _span(queries + r * query_stride + 4 * h * group * padded, group, first,
                  min(first + SPAN, length), tables + 4 * table_width * view_i32(slots, rows)[r], h,
                  kv_heads, padded, value_padded, block_tokens, scale, keys, values, line,
                  value_line, packing, value_packing, mine + 2 * heads_bytes,
                  partials + heads_bytes * task)  # fmt: skip
    for pair in range(rows * kv_heads):
        r = pair // kv_heads
        h = pair % kv_heads
        state = partials + heads_bytes * spans * pair
        used = view_i32(positions, rows)[r] // SPAN + 1
        for s in range(1, used):
            merge(state, state + heads_bytes * s, group, value_padded)
        sink = sinks + 4 * h * group if sinks != 0 else 0
        write_heads(state, group, value_padded, value_dim, sink,
                    out + r * out_stride + 4 * h * group * value_dim)  # fmt: skip


@kernel()
def attend_paged(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, group: int, kv_heads: int, padded: int, value_dim: int, value_padded: int,
    block_tokens: int, scale: float, keys: int, values: int, line: int, value_line: int,
    packing: int, value_packing: int, sinks: int, out: int, out_stride: int,
    scratch: int, scratch_stride: int, partials: int, partial_rows: int, threads: int,
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
                      kv_heads, padded, value_dim, value_padded, block_tokens, scale, keys, values,
                      line, value_line, packing, value_packing, sinks, out, out_stride, scratch,
                      scratch_stride, partials,
                      int(spans))  # fmt: skip
    else:
        _attend_rows(queries, query_stride, rows, positions, slots, tables, table_width, group,
                     kv_heads, padded, value_dim, value_padded, block_tokens, scale, keys, values,
                     line, value_line, packing, value_packing, sinks, out, out_stride, scratch,
                     scratch_stride, threads)  # fmt: skip
