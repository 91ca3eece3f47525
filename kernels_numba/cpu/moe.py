"""Mixture of experts: routing, and expert projections over rows grouped by expert."""

from __future__ import annotations

import math

import numpy as np

from kernels_numba.backend import Scores
from kernels_numba.cpu.dot import dot_block
from kernels_numba.cpu.linear import silu_gate, task_columns
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.rows import copy_row
from kernels_numba.cpu.scalar import exp32, fma32, sigmoid32
from kernels_numba.jit import get_thread_id, kernel, prange

SIGMOID = int(Scores.SIGMOID)
SOFTMAX = int(Scores.SOFTMAX)


@kernel()
def _score(kind: int, logits: int, experts: int, scores: int) -> None:
    """scores[e] = σ(logit), √softplus(logit) or softmax(logits)[e]."""
    logit = view_f32(logits, experts)
    score = view_f32(scores, experts)
    if kind == SIGMOID:
        for e in range(experts):
            score[e] = sigmoid32(logit[e])
    elif kind == SOFTMAX:
        top = logit[0]
        for e in range(1, experts):
            top = max(top, logit[e])
        total = np.float32(0.0)
        for e in range(experts):
            score[e] = exp32(logit[e] - top)
            total += score[e]
        for e in range(experts):
            score[e] = score[e] / total
    else:
        for e in range(experts):
            x = float(logit[e])
            score[e] = np.float32(math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x)))))


@kernel()
def _insert(ids: int, held: int, expert: int) -> None:
    """Put one more id among `held` ascending ones."""
    chosen = view_i32(ids, held + 1)
    place = held
    while place > 0 and chosen[place - 1] > expert:
        chosen[place] = chosen[place - 1]
        place -= 1
    chosen[place] = expert


@kernel()
def _choose_best(scores: int, experts: int, bias: int, top: int, ranked: int, ids: int) -> float:
    """The `top` by score + bias (none where 0), ascending; how far the last stands above the first
    left out."""
    score = view_f32(scores, experts)
    rank = view_f32(ranked, experts)
    for e in range(experts):
        rank[e] = score[e] + view_f32(bias, experts)[e] if bias != 0 else score[e]
    last = np.float32(0.0)
    for j in range(top):
        best = 0
        for e in range(1, experts):
            if rank[e] > rank[best]:
                best = e
        last = rank[best]
        rank[best] = -np.inf
        _insert(ids, j, best)
    left_out = rank[0]
    for e in range(1, experts):
        left_out = max(left_out, rank[e])
    return float(np.float32(last - left_out))


@kernel()
def route(
    logits: int, logits_stride: int, rows: int, experts: int, kind: int, bias: int, table: int,
    tokens: int, top: int, normalise: int, scale: float, scores: int, ids: int, weights: int,
    gaps: int,
) -> None:  # fmt: skip
    """Choose `top` experts per row: by score + bias, the lower id first on a tie, or those that
    `table` names for the row's token, where it is not 0.

    ids int32 [rows, top] ascending; weights float32 [rows, top] are the unbiased scores, divided by
    their sum + 1e-20 when `normalise`, times `scale`. gaps float32 [rows]: from the last chosen to
    the first left out. `scores` is scratch for 2 · experts floats.
    """
    score = view_f32(scores, experts)
    gap = view_f32(gaps, rows)
    for r in range(rows):
        chosen = view_i32(ids + 4 * top * r, top)
        weight = view_f32(weights + 4 * top * r, top)
        _score(kind, logits + r * logits_stride, experts, scores)
        if table != 0:
            named = view_i32(table + 4 * top * view_i32(tokens, rows)[r], top)
            for j in range(top):
                _insert(ids + 4 * top * r, j, named[j])
            gap[r] = np.inf
        else:
            gap[r] = _choose_best(scores, experts, bias, top, scores + 4 * experts,
                                  ids + 4 * top * r)  # fmt: skip
        total = np.float32(0.0)
        for j in range(top):
            weight[j] = score[chosen[j]]
            total += weight[j]
        divisor = total + np.float32(1e-20) if normalise != 0 else np.float32(1.0)
        for j in range(top):
            weight[j] = weight[j] / divisor * np.float32(scale)


@kernel()
def group_by_expert(
    ids: int, pairs: int, experts: int, starts: int, order: int, place: int
) -> None:
    """Stable counting sort of (row, choice) pairs by expert.

    starts int32 [experts + 1]; order int32 [pairs]: pair at each sorted place; place: its inverse.
    """
    chosen = view_i32(ids, pairs)
    start = view_i32(starts, experts + 1)
    sorted_pairs = view_i32(order, pairs)
    where = view_i32(place, pairs)
    for e in range(experts + 1):
        start[e] = 0
    for p in range(pairs):
        start[chosen[p] + 1] += 1
    for e in range(experts):
        start[e + 1] += start[e]
    for p in range(pairs):
        spot = start[chosen[p]]
        sorted_pairs[spot] = p
        where[p] = spot
        start[chosen[p]] += 1
    for e in range(experts, 0, -1):
        start[e] = start[e - 1]
    start[0] = 0


@kernel()
def scale_row(x: int, factor: np.float32, count: int) -> None:
    value = view_f32(x, count)
    for i in range(count):
        value[i] = value[i] * factor


@kernel(parallel=True)
def _expert_gated(
    dot: int, x: int, x_stride: int, starts: int, experts: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, half: int, depth: int, raw: int, raw_stride: int, out: int,
    out_stride: int, panels: int, panel_stride: int, step: int, limit: float, weights: int,
    order: int,
) -> None:  # fmt: skip
    """`weights` of the pairs in the order of `order` multiply the results; 0: nothing does."""
    blocks = (half + step - 1) // step
    start = view_i32(starts, experts + 1)
    for task in prange(experts * blocks):
        e = task // blocks
        first = start[e]
        rows = start[e + 1] - first
        if rows > 0:
            c = task % blocks * step
            count = min(step, half - c)
            panel = panels + get_thread_id() * panel_stride
            for part in range(2):
                n = 2 * half * e + c + part * half
                dot_block(dot, x + first * x_stride, x_stride, rows, w + n * w_stride, w_stride,
                          scale + n * scale_stride, scale_stride, factors + 4 * n, count, depth,
                          raw + first * raw_stride + 4 * (c + part * half), raw_stride,
                          panel)  # fmt: skip
            for r in range(first, first + rows):
                line = raw + r * raw_stride + 4 * c
                silu_gate(line, line + 4 * half, out + r * out_stride + 4 * c, count, limit)
                if weights != 0:
                    pair = view_i32(order, r + 1)[r]
                    scale_row(out + r * out_stride + 4 * c, view_f32(weights, pair + 1)[pair],
                              count)  # fmt: skip


@kernel(parallel=True)
def _expert_down(
    dot: int, x: int, x_stride: int, starts: int, experts: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, out: int, out_stride: int,
    panels: int, panel_stride: int, step: int,
) -> None:  # fmt: skip
    blocks = (columns + step - 1) // step
    start = view_i32(starts, experts + 1)
    for task in prange(experts * blocks):
        e = task // blocks
        first = start[e]
        rows = start[e + 1] - first
        if rows > 0:
            c = task % blocks * step
            n = columns * e + c
            dot_block(dot, x + first * x_stride, x_stride, rows, w + n * w_stride, w_stride,
                      scale + n * scale_stride, scale_stride, factors + 4 * n,
                      min(step, columns - c), depth, out + first * out_stride + 4 * c, out_stride,
                      panels + get_thread_id() * panel_stride)  # fmt: skip


@kernel()
def combine(
    experts_out: int, experts_stride: int, place: int, weights: int, top: int, rows: int,
    shared: int, shared_stride: int, width: int, out: int, out_stride: int, sums: int,
    residual: int,
) -> None:  # fmt: skip
    """out[r] = Σ_j weight[r, j] · expert output, experts ascending, then + shared[r] (+ out[r]).
    Without `weights` (0) every weight is one."""
    total = view_f32(sums, width)
    where = view_i32(place, rows * top)
    for r in range(rows):
        for i in range(width):
            total[i] = np.float32(0.0)
        for j in range(top):
            value = view_f32(experts_out + where[r * top + j] * experts_stride, width)
            factor = np.float32(1.0)
            if weights != 0:
                factor = view_f32(weights, rows * top)[r * top + j]
            for i in range(width):
                total[i] = fma32(factor, value[i], total[i])
        target = view_f32(out + r * out_stride, width)
        if shared != 0:
            common = view_f32(shared + r * shared_stride, width)
            for i in range(width):
                total[i] = total[i] + common[i]
        if residual != 0:
            for i in range(width):
                target[i] = target[i] + total[i]
        else:
            for i in range(width):
                target[i] = total[i]


@kernel()
def gather_pairs(
    x: int, x_stride: int, order: int, pairs: int, top: int, width: int, out: int, out_stride: int
) -> None:
    """out[place] = x[row of the pair at that place]."""
    pair = view_i32(order, pairs)
    for p in range(pairs):
        copy_row(x + pair[p] // top * x_stride, out + p * out_stride, width)


@kernel()
def expert_rows(
    gate_dot: int, x: int, x_stride: int, pairs: int, starts: int, experts: int, w: int,
    w_stride: int, scale: int, scale_stride: int, factors: int, half: int, depth: int, raw: int,
    raw_stride: int, act: int, act_stride: int, down_dot: int, d: int, d_stride: int,
    d_scale: int, d_scale_stride: int, d_factors: int, columns: int, down_depth: int, out: int,
    out_stride: int, panels: int, panel_stride: int, limit: float, weights: int, order: int,
) -> None:  # fmt: skip
    """out[p] = D_e · (silu(G_e · x[p]) · (U_e · x[p])) for rows sorted by expert e; `weights` of
    the pairs `order` multiply what D_e takes, where they are not 0."""
    average = pairs // experts
    _expert_gated(gate_dot, x, x_stride, starts, experts, w, w_stride, scale, scale_stride,
                  factors, half, depth, raw, raw_stride, act, act_stride, panels, panel_stride,
                  task_columns(average, depth), limit, weights, order)  # fmt: skip
    _expert_down(down_dot, act, act_stride, starts, experts, d, d_stride, d_scale, d_scale_stride,
                 d_factors, columns, down_depth, out, out_stride, panels, panel_stride,
                 task_columns(average, down_depth))  # fmt: skip
