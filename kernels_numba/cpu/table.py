"""Which rows of a table the last tokens name, and those rows as float32."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import widen_row
from kernels_numba.cpu.pointers import view_f32, view_i32, view_i64, view_u8
from kernels_numba.jit import get_thread_id, kernel, prange

PLACE = 4
"""int64 of a part of a table: address and row stride of its codes, of its scales."""


@kernel()
def find_ngrams(
    tokens: int, positions: int, slots: int, starts: int, rows: int, multipliers: int, order: int,
    primes: int, offsets: int, heads: int, pad: int, reset: int, classes: int, vocab: int,
    ring: int, ring_rows: int, ring_stride: int, ids: int,
) -> None:  # fmt: skip
    """ids[r, h] = mix mod primes[h] + offsets[h]; heads of 2-grams first. Then the rows' tokens go
    to the ring, position p in row p mod `ring_rows`. starts as in `window.attend_window`."""
    token = view_i32(tokens, rows)
    position = view_i32(positions, rows)
    slot = view_i32(slots, rows)
    factor = view_i64(multipliers, order)
    prime = view_i64(primes, heads)
    offset = view_i64(offsets, heads)
    class_of = view_i32(classes, vocab)
    each = heads // (order - 1)
    for r in range(rows):
        fresh = position[r] - (r - view_i32(starts, rows)[r])
        out = view_i64(ids + 8 * heads * r, heads)
        own = np.int64(token[r])
        mix = np.int64(class_of[own] if classes != 0 else own) * factor[0]
        ended = False
        for s in range(1, order):
            at = position[r] - s
            ended = ended or at < 0
            value = np.int64(pad)
            if not ended:
                found = np.int64(token[r - s])
                if at < fresh:
                    line = ring + (slot[r] * ring_rows + at % ring_rows) * ring_stride
                    found = np.int64(view_f32(line, 1)[0])
                ended = found == reset
                if not ended:
                    value = np.int64(class_of[found] if classes != 0 else found)
            mix ^= value * factor[s]
            for h in range((s - 1) * each, s * each):
                out[h] = mix % prime[h] + offset[h]
    for r in range(rows):
        line = ring + (slot[r] * ring_rows + position[r] % ring_rows) * ring_stride
        view_f32(line, 1)[0] = np.float32(token[r])


@kernel()
def _look_up_row(
    widen: int, n: int, starts: int, parts: int, places: int, code_bytes: int, columns: int,
    depth: int, codes: int, out: int,
) -> None:  # fmt: skip
    """out = row n; its codes are copied first, since readers take whole vectors and the next row,
    or the end of a file, may come before one is full."""
    start = view_i64(starts, parts + 1)
    low = 0
    high = parts - 1
    while low < high:
        middle = (low + high + 1) // 2
        if start[middle] <= n:
            low = middle
        else:
            high = middle - 1
    place = view_i64(places + 8 * PLACE * low, PLACE)
    inside = n - start[low]
    source = view_u8(place[0] + inside * place[1], code_bytes)
    held = view_u8(codes, code_bytes)
    for i in range(code_bytes):
        held[i] = source[i]
    values = codes + 4 * depth
    widen_row(widen, codes, place[2] + inside * place[3], 0, depth, values)
    wide = view_f32(values, columns)
    target = view_f32(out, columns)
    for i in range(columns):
        target[i] = wide[i]


@kernel(parallel=True)
def look_up(
    widen: int, ids: int, rows: int, heads: int, first: int, starts: int, parts: int, places: int,
    code_bytes: int, columns: int, depth: int, out: int, out_stride: int, scratch: int,
    scratch_stride: int,
) -> None:  # fmt: skip
    """out[r, h] = row ids[r, h] − first of the table, 0 where it has none; a task is one row of the
    table, so that threads wait for a disk side by side. Scratch: 2 · depth float32 a thread."""
    for task in prange(rows * heads):
        n = view_i64(ids, rows * heads)[task] - first
        target = out + task // heads * out_stride + 4 * columns * (task % heads)
        if 0 <= n < view_i64(starts, parts + 1)[parts]:
            _look_up_row(widen, n, starts, parts, places, code_bytes, columns, depth,
                         scratch + get_thread_id() * scratch_stride, target)  # fmt: skip
        else:
            absent = view_f32(target, columns)
            for i in range(columns):
                absent[i] = np.float32(0.0)
