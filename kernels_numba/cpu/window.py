"""Attention over a sliding window whose keys lie in a ring, and in the step itself.

Row p of a request is in row p mod R of its ring once its step is over; within a step the rows that
came with it are read where they were made. So a step may be longer than the ring.
"""

from __future__ import annotations

from kernels_numba.cpu.pointers import view_i32
from kernels_numba.cpu.rows import copy_row
from kernels_numba.cpu.span import SPAN, begin_span, merge, score_run, value_run, write_heads
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR


@kernel(inline=True)
def _run(
    start: int, last: int, fresh: int, kv: int, kv_stride: int, ring: int, ring_rows: int,
    ring_stride: int,
) -> tuple[int, int, int]:  # fmt: skip
    """From position `start`: address of its row, stride, and how many rows lie on like that.

    Positions from `fresh` on are of this step, whose rows begin at `kv`.
    """
    if start >= fresh:
        return kv + (start - fresh) * kv_stride, kv_stride, last - start
    place = start % ring_rows
    count = min(min(last, fresh) - start, ring_rows - place)
    return ring + place * ring_stride, ring_stride, count


@kernel()
def window_span(
    query: int, group: int, first: int, last: int, fresh: int, kv: int, kv_stride: int, ring: int,
    ring_rows: int, ring_stride: int, key_at: int, value_at: int, padded: int, value_padded: int,
    scale: float, scores: int, state: int,
) -> None:  # fmt: skip
    """Positions first … last − 1 for one row and kv head, whose keys and values lie `key_at` and
    `value_at` bytes into a row."""
    start = first
    while start < last:
        row, stride, count = _run(start, last, fresh, kv, kv_stride, ring, ring_rows, ring_stride)
        score_run(query, group, padded, row + key_at, stride, count, scores + 4 * (start - first))
        start += count
    begin_span(scores, group, last - first, scale, value_padded, state)
    start = first
    while start < last:
        row, stride, count = _run(start, last, fresh, kv, kv_stride, ring, ring_rows, ring_stride)
        value_run(scores + 4 * (start - first), group, row + value_at, stride, count, value_padded,
                  state)  # fmt: skip
        start += count


@kernel(parallel=True)
def attend_window(
    queries: int, query_stride: int, rows: int, positions: int, slots: int, starts: int,
    ends: int, window: int, group: int, kv_heads: int, padded: int, value_dim: int,
    value_padded: int, key_width: int, value_width: int, scale: float, kv: int, kv_stride: int,
    ring: int, ring_rows: int, ring_stride: int, sinks: int, out: int, out_stride: int,
    scratch: int, scratch_stride: int,
) -> None:  # fmt: skip
    """out[r, head] = softmax(scale · q·k) v over the last `window` positions up to the row's own.

    A row of `kv` and of the ring is [keys: kv_heads × key_width | values: kv_heads × value_width].
    starts int32 [rows]: the first row of the step whose positions lead to this row's without a gap.
    ends int32 [rows]: the last such row after it, which the row sees too; 0 for its own position.
    """
    heads_bytes = 4 * group * (value_padded + VECTOR)
    for task in prange(rows * kv_heads):
        r = task // kv_heads
        h = task % kv_heads
        mine = scratch + get_thread_id() * scratch_stride
        own = view_i32(positions, rows)[r] + 1
        length = own if ends == 0 else own + (view_i32(ends, rows)[r] - r)
        begin = view_i32(starts, rows)[r]
        fresh = own - 1 - (r - begin)
        slot_ring = ring + view_i32(slots, rows)[r] * ring_rows * ring_stride
        first = max(0, own - window)
        place = mine
        while first < length:
            last = min((first // SPAN + 1) * SPAN, length)
            window_span(queries + r * query_stride + 4 * h * group * padded, group, first, last,
                        fresh, kv + begin * kv_stride, kv_stride, slot_ring, ring_rows,
                        ring_stride, 4 * h * key_width,
                        4 * (kv_heads * key_width + h * value_width), padded, value_padded, scale,
                        mine + 2 * heads_bytes, place)  # fmt: skip
            if place != mine:
                merge(mine, place, group, value_padded)
            place = mine + heads_bytes
            first = last
        sink = sinks + 4 * h * group if sinks != 0 else 0
        write_heads(mine, group, value_padded, value_dim, sink,
                    out + r * out_stride + 4 * h * group * value_dim)  # fmt: skip


@kernel()
def ring_write(
    kv: int, kv_stride: int, rows: int, positions: int, slots: int, width: int, ring: int,
    ring_rows: int, ring_stride: int,
) -> None:  # fmt: skip
    """Row r to place position[r] mod ring_rows of its slot's ring; later rows win."""
    for r in range(rows):
        place = view_i32(positions, rows)[r] % ring_rows
        line = view_i32(slots, rows)[r] * ring_rows + place
        copy_row(kv + r * kv_stride, ring + line * ring_stride, width)
