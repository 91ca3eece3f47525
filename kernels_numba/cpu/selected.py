"""Grouped-query attention over the positions that were selected for each row.

Positions come in order, SPAN at a time; those that follow one another in a cache block are read in
one go, which changes no bit.
"""

from __future__ import annotations

from kernels_numba.cpu.packed import unpack_rows
from kernels_numba.cpu.pointers import view_i32
from kernels_numba.cpu.span import SPAN, begin_span, merge, score_run, value_run, write_heads
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR


@kernel(inline=True)
def _run_length(chosen: int, first: int, last: int, block_tokens: int) -> int:
    """How many of the positions chosen[first … last − 1] follow one another within a block."""
    at = view_i32(chosen, last)
    length = 1
    while (
        first + length < last
        and at[first + length] == at[first] + length
        and at[first + length] % block_tokens != 0
    ):
        length += 1
    return length


@kernel(inline=True)
def _place(table: int, at: int, kv_head: int, kv_heads: int, block_tokens: int) -> int:
    """The line of a position's head in a plane."""
    block = view_i32(table, at // block_tokens + 1)[at // block_tokens]
    return int((block * kv_heads + kv_head) * block_tokens + at % block_tokens)


@kernel()
def _selected_span(
    query: int, group: int, chosen: int, first: int, last: int, table: int, kv_head: int,
    kv_heads: int, padded: int, value_padded: int, block_tokens: int, scale: float, keys: int,
    values: int, line: int, value_line: int, packing: int, value_packing: int, scores: int,
    state: int,
) -> None:  # fmt: skip
    """One span of one row and kv head: positions chosen[first … last − 1]; packed lines are
    unpacked behind the scores first."""
    panel = scores + 4 * group * SPAN
    at = view_i32(chosen, last)
    start = first
    while start < last:
        count = _run_length(chosen, start, last, block_tokens)
        run = keys + line * _place(table, at[start], kv_head, kv_heads, block_tokens)
        step = line
        if packing != 0:
            step = 4 * padded
            unpack_rows(packing, run, line, count, panel, step)
            run = panel
        score_run(query, group, padded, run, step, count, scores + 4 * (start - first))
        start += count
    begin_span(scores, group, last - first, scale, value_padded, state)
    start = first
    while start < last:
        count = _run_length(chosen, start, last, block_tokens)
        run = values + value_line * _place(table, at[start], kv_head, kv_heads, block_tokens)
        step = value_line
        if value_packing != 0:
            step = 4 * value_padded
            unpack_rows(value_packing, run, value_line, count, panel, step)
            run = panel
        value_run(scores + 4 * (start - first), group, run, step, count, value_padded, state)
        start += count


@kernel(parallel=True)
def attend_selected(
    queries: int, query_stride: int, rows: int, slots: int, tables: int, table_width: int,
    selected: int, counts: int, top: int, group: int, kv_heads: int, padded: int, value_dim: int,
    value_padded: int, block_tokens: int, scale: float, keys: int, values: int, line: int,
    value_line: int, packing: int, value_packing: int, out: int, out_stride: int, scratch: int,
    scratch_stride: int,
) -> None:  # fmt: skip
    """out[r, head] = softmax(scale · q·k) v over positions selected[r, : counts[r]] of the row's
    slot, ascending. A task is one row and kv head."""
    heads_bytes = 4 * group * (value_padded + VECTOR)
    for task in prange(rows * kv_heads):
        r = task // kv_heads
        h = task % kv_heads
        mine = scratch + get_thread_id() * scratch_stride
        total = view_i32(counts, rows)[r]
        table = tables + 4 * table_width * view_i32(slots, rows)[r]
        for first in range(0, total, SPAN):
            place = mine if first == 0 else mine + heads_bytes
            _selected_span(queries + r * query_stride + 4 * h * group * padded, group,
                           selected + 4 * top * r, first, min(first + SPAN, total), table, h,
                           kv_heads, padded, value_padded, block_tokens, scale, keys, values,
                           line, value_line, packing, value_packing, mine + 2 * heads_bytes,
                           place)  # fmt: skip
            if first > 0:
                merge(mine, mine + heads_bytes, group, value_padded)
        write_heads(mine, group, value_padded, value_dim, 0,
                    out + r * out_stride + 4 * h * group * value_dim)  # fmt: skip
