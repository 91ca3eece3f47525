"""Which cached rows a query attends to: scores of index keys, and the exact best of them."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import dot_f32_block
from kernels_numba.cpu.packed import unpack_rows
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import bits_of_float, fma32
from kernels_numba.cpu.span import SPAN
from kernels_numba.jit import get_thread_id, kernel, prange

BINS = 256
"""Values of a byte."""


@kernel()
def _score_run(
    query: int, weights: int, heads: int, padded: int, scale: float, weight_scale: float, keys: int,
    line: int, count: int, dots: int, scores: int,
) -> None:  # fmt: skip
    """scores[n] = Σ_h (w_h · weight_scale) · relu(scale · q_h · k_n) of at most SPAN keys that lie
    `line` bytes apart, heads in order."""
    weight = view_f32(weights, heads)
    out = view_f32(scores, count)
    dot_f32_block(query, 4 * padded, heads, keys, line, count, padded, dots, 4 * SPAN)
    for n in range(count):
        out[n] = np.float32(0.0)
    for h in range(heads):
        dot = view_f32(dots + 4 * SPAN * h, count)
        factor = np.float32(weight[h] * np.float32(weight_scale))
        for n in range(count):
            value = max(dot[n] * np.float32(scale), np.float32(0.0))
            out[n] = fma32(factor, value, out[n])


@kernel()
def _score_keys(
    query: int, weights: int, heads: int, padded: int, scale: float, weight_scale: float,
    table: int, block_rows: int, keys: int, line: int, packing: int, panel: int, first: int,
    last: int, dots: int, scores: int,
) -> None:  # fmt: skip
    """Scores of the keys first … last − 1 of the slot whose blocks `table` names. Packed keys are
    unpacked to `panel`, SPAN float32 rows, first."""
    blocks = view_i32(table, last // block_rows + 1)
    at = first
    while at < last:
        count = min(SPAN, block_rows - at % block_rows, last - at)
        base = keys + (blocks[at // block_rows] * block_rows + at % block_rows) * line
        step = line
        if packing != 0:
            step = 4 * padded
            unpack_rows(packing, base, line, count, panel, step)
            base = panel
        _score_run(query, weights, heads, padded, scale, weight_scale, base, step, count, dots,
                   scores + 4 * (at - first))  # fmt: skip
        at += count


@kernel(inline=True)
def _rank_of(value: np.float32) -> int:
    """An integer of 32 bits that orders as float32 values do; both zeros are one."""
    bits = np.int64(bits_of_float(value + np.float32(0.0))) & 0xFFFFFFFF
    return int(bits ^ 0xFFFFFFFF if bits >= 0x80000000 else bits | 0x80000000)


@kernel()
def _least_of_best(scores: int, total: int, top: int, counts: int) -> int:
    """The rank of the `top`-th best of `total` scores; `counts` is scratch for BINS int32.

    A byte at a time: how many scores share the bytes so far, by their next byte.
    """
    value = view_f32(scores, total)
    count = view_i32(counts, BINS)
    prefix = 0
    wanted = top
    for shift in (24, 16, 8, 0):
        for byte in range(BINS):
            count[byte] = 0
        for n in range(total):
            rank = _rank_of(value[n])
            if rank >> (shift + 8) == prefix:
                count[rank >> shift & 255] += 1
        byte = 255
        while count[byte] < wanted:
            wanted -= count[byte]
            byte -= 1
        prefix = prefix << 8 | byte
    return prefix


@kernel()
def _take_best(scores: int, total: int, top: int, chosen: int, count: int, counts: int) -> None:
    """Indices of the `top` best scores, the lower index first among equals, in ascending order;
    all of them where there are no more; and how many they are."""
    value = view_f32(scores, total)
    out = view_i32(chosen, top)
    held = view_i32(count, 1)
    held[0] = min(total, top)
    if total <= top:
        for n in range(total):
            out[n] = n
        return
    least = _least_of_best(scores, total, top, counts)
    equal = top
    for n in range(total):
        if _rank_of(value[n]) > least:
            equal -= 1
    taken = 0
    for n in range(total):
        rank = _rank_of(value[n])
        if rank > least or (rank == least and equal > 0):
            if rank == least:
                equal -= 1
            out[taken] = n
            taken += 1


@kernel()
def _take_blocks(
    scores: int, total: int, size: int, top: int, chosen: int, count: int, counts: int, best: int
) -> None:
    """The `top` blocks of `size` keys by their best score, the newest block always among them."""
    value = view_f32(scores, total)
    blocks = (total + size - 1) // size
    most = view_f32(best, max(blocks, 1))
    for b in range(blocks):
        most[b] = value[b * size]
        for n in range(b * size + 1, min((b + 1) * size, total)):
            most[b] = max(most[b], value[n])
    if blocks > 0:
        most[blocks - 1] = np.inf
    _take_best(best, blocks, top, chosen, count, counts)


@kernel()
def _take_within(selected: int, taken: int, size: int, chosen: int) -> None:
    """Places among the keys of the `chosen` blocks become the keys' own numbers."""
    place = view_i32(selected, taken)
    for i in range(taken):
        block = view_i32(chosen + 4 * (place[i] // size), 1)[0]
        place[i] = block * size + place[i] % size


@kernel(parallel=True)
def index_select(
    queries: int, query_stride: int, weights: int, weight_stride: int, rows: int, positions: int,
    slots: int, tables: int, table_width: int, every: int, heads: int, padded: int, scale: float,
    weight_scale: float, block_rows: int, keys: int, line: int, packing: int, top: int,
    selected: int, counts: int, size: int, block_top: int, blocks: int, block_counts: int,
    within: int, scratch: int, scratch_stride: int,
) -> None:  # fmt: skip
    """selected[r] = the best `top` of the ⌊(position + 1) / every⌋ keys that row r may see.

    `size` above 0: keys stand in blocks of it. `within`: only those of the chosen `blocks`
    [rows, block_top] are scored, which end with the newest; else the best blocks go there.
    """
    for r in prange(rows):
        total = int(view_i32(positions, rows)[r] + 1) // every
        bins = scratch + get_thread_id() * scratch_stride
        panel = bins + 4 * BINS
        dots = panel + (4 * SPAN * padded if packing != 0 else 0)
        scores = dots + 4 * heads * SPAN
        query = queries + r * query_stride
        weight = weights + r * weight_stride
        table = tables + 4 * table_width * view_i32(slots, rows)[r]
        chosen = blocks + 4 * block_top * r
        mine = selected + 4 * top * r
        held = total
        if within != 0:
            held = 0
            for b in range(view_i32(block_counts, rows)[r]):
                first = view_i32(chosen, b + 1)[b] * size
                last = min(first + size, total)
                _score_keys(query, weight, heads, padded, scale, weight_scale, table, block_rows,
                            keys, line, packing, panel, first, last, dots,
                            scores + 4 * held)  # fmt: skip
                held += last - first
        else:
            _score_keys(query, weight, heads, padded, scale, weight_scale, table, block_rows, keys,
                        line, packing, panel, 0, total, dots, scores)  # fmt: skip
        # A store in the loop's own body, through a view of its own, would count as dead.
        _take_best(scores, held, top, mine, counts + 4 * r, bins)
        if within != 0:
            _take_within(mine, view_i32(counts, rows)[r], size, chosen)
        elif size > 0:
            _take_blocks(scores, total, size, block_top, chosen, block_counts + 4 * r, bins,
                         scores + 4 * total)  # fmt: skip
