"""Attention over one span of keys: scores, softmax, weighted values, and how spans merge.

A span gives each head a maximum, a sum and a weighted sum of values; spans merge in order. Keys and
values may lie in several runs of equally spaced lines: how a span is cut into runs changes no bit,
since scores are single dot products and values are summed key by key.

State of a head: float32 (max, sum, pad to 16, values [value_padded]).
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import dot_f32_block
from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import exp32, fma32
from kernels_numba.cpu.tiles import COLUMNS, ROWS, sum_tile
from kernels_numba.jit import kernel
from kernels_numba.weights import VECTOR

SPAN = 128
"""Keys per span; spans begin at multiples of it."""


@kernel(inline=True)
def score_run(
    query: int, group: int, padded: int, keys: int, line: int, count: int, scores: int
) -> None:
    """scores[g, n] = query[g] · key[n] of `count` keys, `line` bytes apart; rows of SPAN scores."""
    dot_f32_block(query, 4 * padded, group, keys, line, count, padded, scores, 4 * SPAN)


@kernel(inline=True)
def softmax_span(scores: int, count: int, scale: float, state: int) -> None:
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


@kernel(inline=True)
def begin_span(
    scores: int, group: int, count: int, scale: float, value_padded: int, state: int
) -> None:
    """Softmax of each head's `count` scores; state = (max, sum, no values yet)."""
    stride = 4 * (value_padded + VECTOR)
    for g in range(group):
        softmax_span(scores + 4 * SPAN * g, count, scale, state + g * stride)
        sums = view_f32(state + g * stride + 4 * VECTOR, value_padded)
        for i in range(value_padded):
            sums[i] = np.float32(0.0)


@kernel(inline=True)
def value_run(
    scores: int, group: int, values: int, line: int, count: int, value_padded: int, state: int
) -> None:
    """Add `count` weighted values, `line` bytes apart, to each head's state."""
    stride = 4 * (value_padded + VECTOR)
    vectors = value_padded // VECTOR
    for g in range(0, group, ROWS):
        for v in range(0, vectors, COLUMNS):
            sum_tile(scores + 4 * SPAN * g, 4 * SPAN, min(ROWS, group - g) - 1,
                     min(COLUMNS, vectors - v) - 1, values + 4 * VECTOR * v, line, count,
                     state + g * stride + 4 * VECTOR * (1 + v), stride)  # fmt: skip


@kernel(inline=True)
def merge(state: int, following: int, group: int, value_padded: int) -> None:
    """Fold the next span into the running state of each head."""
    stride = 4 * (value_padded + VECTOR)
    for g in range(group):
        _merge_head(state + g * stride, following + g * stride, value_padded)


@kernel(inline=True)
def _merge_head(state: int, following: int, padded: int) -> None:
    """Fold the next span into the running (max, sum, values) of one head."""
    running = view_f32(state, padded + VECTOR)
    after = view_f32(following, padded + VECTOR)
    top = max(running[0], after[0])
    keep = exp32(running[0] - top)
    add = exp32(after[0] - top)
    running[0] = top
    running[1] = fma32(running[1], keep, after[1] * add)
    for i in range(VECTOR, VECTOR + padded):
        running[i] = fma32(running[i], keep, after[i] * add)


@kernel(inline=True)
def write_heads(
    state: int, group: int, value_padded: int, width: int, sinks: int, out: int
) -> None:
    """out[g] = values / sum. `sinks` float32 [group] are logits of keys without values; 0: none."""
    for g in range(group):
        running = view_f32(state + 4 * g * (value_padded + VECTOR), value_padded + VECTOR)
        keep = np.float32(1.0)
        total = running[1]
        if sinks != 0:
            sink = view_f32(sinks, group)[g]
            top = max(running[0], sink)
            keep = exp32(running[0] - top)
            total = fma32(running[1], keep, exp32(sink - top))
        inverse = np.float32(keep / total)
        target = view_f32(out + 4 * g * width, width)
        for i in range(width):
            target[i] = running[VECTOR + i] * inverse
