"""Attention of many heads over one row per position: keys, whose leading values are the values too.

Rows lie in blocks, one per position. A row of the step sees all positions up to its own, or those
that were selected for it; either way in order, SPAN at a time.
"""

from __future__ import annotations

from kernels_numba.cpu.packed import unpack_row
from kernels_numba.cpu.pointers import view_i32
from kernels_numba.cpu.rows import copy_row
from kernels_numba.cpu.span import SPAN, begin_span, merge, score_run, value_run, write_heads
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR

TASK_HEADS = 16
"""Heads of one task: few rows are shared out to threads by heads."""


@kernel()
def gathered_span(
    query: int, group: int, first: int, count: int, chosen: int, table: int, block_rows: int,
    store: int, line: int, packing: int, padded: int, value_padded: int, scale: float, scores: int,
    gathered: int, state: int,
) -> None:  # fmt: skip
    """Rows first … first + count − 1 of a slot's blocks, or of those that int32 `chosen` names
    where it is not 0, for `group` heads: scores, softmax and weighted values. Rows are float32, or
    packed as `packing` says where it is not 0."""
    for j in range(count):
        at = first + j
        if chosen != 0:
            at = view_i32(chosen, at + 1)[at]
        block = view_i32(table, at // block_rows + 1)[at // block_rows]
        place = block * block_rows + at % block_rows
        if packing != 0:
            unpack_row(packing, store + place * line, gathered + 4 * padded * j)
        else:
            copy_row(store + place * line, gathered + 4 * padded * j, padded)
    score_run(query, group, padded, gathered, 4 * padded, count, scores)
    begin_span(scores, group, count, scale, value_padded, state)
    value_run(scores, group, gathered, 4 * padded, count, value_padded, state)


@kernel(parallel=True)
def attend_latent(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, selected: int, counts: int, top: int, heads: int, padded: int,
    value_dim: int, value_padded: int, block_rows: int, scale: float, store: int, line: int,
    packing: int, out: int, out_stride: int, scratch: int, scratch_stride: int,
) -> None:  # fmt: skip
    """out[r, head] = softmax(scale · q·k) over rows k of the store, of k[:value_dim].

    selected int32 [rows, top], counts int32 [rows]: the rows that are seen; 0: all up to its own.
    """
    parts = (heads + TASK_HEADS - 1) // TASK_HEADS
    for task in prange(rows * parts):
        r = task // parts
        head = task % parts * TASK_HEADS
        group = min(TASK_HEADS, heads - head)
        state_bytes = 4 * TASK_HEADS * (value_padded + VECTOR)
        mine = scratch + get_thread_id() * scratch_stride
        scores = mine + 2 * state_bytes
        gathered = scores + 4 * TASK_HEADS * SPAN
        table = tables + 4 * table_width * view_i32(slots, rows)[r]
        total = view_i32(positions, rows)[r] + 1
        if selected != 0:
            total = view_i32(counts, rows)[r]
        chosen = selected + 4 * top * r if selected != 0 else 0
        query = queries + r * query_stride + 4 * head * padded
        for first in range(0, total, SPAN):
            state = mine if first == 0 else mine + state_bytes
            gathered_span(query, group, first, min(SPAN, total - first), chosen, table, block_rows,
                          store, line, packing, padded, value_padded, scale, scores, gathered,
                          state)  # fmt: skip
            if first > 0:
                merge(mine, state, group, value_padded)
        write_heads(mine, group, value_padded, value_dim, 0,
                    out + r * out_stride + 4 * head * value_dim)  # fmt: skip
