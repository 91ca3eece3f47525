"""Attention of many heads over a sliding window and over entries that stand for groups of tokens.

A row of the window, like an entry, is one key for all heads and its own value. Windows lie in rings
and in the step itself (`window`), entries in blocks; the window's spans come first, then the
entries in their order, SPAN at a time.
"""

from __future__ import annotations

from kernels_numba.cpu.latent import TASK_HEADS, gathered_span
from kernels_numba.cpu.pointers import view_i32
from kernels_numba.cpu.span import SPAN, merge, write_heads
from kernels_numba.cpu.window import window_span
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR


@kernel()
def _attend_window(
    query: int, group: int, first: int, length: int, fresh: int, kv: int, kv_stride: int, ring: int,
    ring_rows: int, ring_stride: int, width: int, scale: float, mine: int, state_bytes: int,
    scores: int,
) -> None:  # fmt: skip
    """Positions first … length − 1 to the running state `mine`; the span after it is scratch."""
    place = mine
    while first < length:
        last = min((first // SPAN + 1) * SPAN, length)
        window_span(query, group, first, last, fresh, kv, kv_stride, ring, ring_rows, ring_stride,
                    0, 0, width, width, scale, scores, place)  # fmt: skip
        if place != mine:
            merge(mine, place, group, width)
        place = mine + state_bytes
        first = last


@kernel(parallel=True)
def attend_entries(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, starts: int, ends: int, floors: int, heads: int, width: int, scale: float,
    window: int, kv: int, kv_stride: int, ring: int, ring_rows: int, ring_stride: int, every: int,
    selected: int, counts: int, top: int, block_rows: int, store: int, line: int, sinks: int,
    out: int, out_stride: int, scratch: int, scratch_stride: int,
) -> None:  # fmt: skip
    """out[r, head] = softmax(scale · q·k, sink) k over the last `window` positions up to the row's
    own and over entries: all (position + 1) // every of them, or those `selected`; none where
    every is 0. With `floors` int32 [slots] (else 0) no window begins before its slot's.

    starts, ends int32 [rows]: the first and last row of the step at positions that lead to this
    row's without a gap; with `ends` (else 0) a row sees all of those, and the window before them.
    """
    parts = (heads + TASK_HEADS - 1) // TASK_HEADS
    for task in prange(rows * parts):
        r = task // parts
        head = task % parts * TASK_HEADS
        group = min(TASK_HEADS, heads - head)
        state_bytes = 4 * TASK_HEADS * (width + VECTOR)
        mine = scratch + get_thread_id() * scratch_stride
        scores = mine + 2 * state_bytes
        query = queries + r * query_stride + 4 * head * width
        slot = view_i32(slots, rows)[r]
        own = view_i32(positions, rows)[r] + 1
        begin = view_i32(starts, rows)[r]
        fresh = own - 1 - (r - begin)
        seen = own if ends == 0 else fresh
        length = own if ends == 0 else own + (view_i32(ends, rows)[r] - r)
        least = view_i32(floors, slot + 1)[slot] if floors != 0 else 0
        _attend_window(query, group, max(least, seen - window), length, fresh,
                       kv + begin * kv_stride, kv_stride, ring + slot * ring_rows * ring_stride,
                       ring_rows, ring_stride, width, scale, mine, state_bytes,
                       scores)  # fmt: skip
        total = own // every if every != 0 else 0
        if selected != 0:
            total = view_i32(counts, rows)[r]
        for first in range(0, total, SPAN):
            gathered_span(query, group, first, min(SPAN, total - first),
                          selected + 4 * top * r if selected != 0 else 0,
                          tables + 4 * table_width * slot, block_rows, store, line, 0, width, width,
                          scale, scores, scores + 4 * TASK_HEADS * SPAN,
                          mine + state_bytes)  # fmt: skip
            merge(mine, mine + state_bytes, group, width)
        write_heads(mine, group, width, width, sinks + 4 * head if sinks != 0 else 0,
                    out + r * out_stride + 4 * head * width)  # fmt: skip
