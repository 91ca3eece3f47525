"""Projections: rows times a matrix, with what stands before and after it folded in."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kernels_numba.cpu.dot import WIDEN_ROWS, dot_block
from kernels_numba.cpu.matrix import Weights
from kernels_numba.cpu.memory import Place
from kernels_numba.cpu.norm import rms_rows
from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import sigmoid32
from kernels_numba.jit import get_thread_id, kernel, prange

FINE = 16
"""Output columns per task while rows are few: small enough to share out evenly."""
PANEL_BYTES = 384 << 10
"""A widened block of weight rows stays in a core's second-level cache."""
WIDE = 64

Norming: TypeAlias = "tuple[int, int, float]"
"""The norm of a projection's input: address of its weights (0: there is none), values of a row that
it is taken over, and eps."""
NO_NORM: Norming = (0, 0, 0.0)


@kernel(inline=True)
def wide_columns(depth: int) -> int:
    """Output columns of one task while rows are many: a multiple of 4."""
    return max(4, min(WIDE, PANEL_BYTES // (4 * depth) // 4 * 4))


@kernel(inline=True)
def task_columns(rows: int, depth: int) -> int:
    """Output columns of one task: a multiple of 4."""
    if rows < 12:
        return FINE
    return wide_columns(depth)


def panel_floats(depth: int) -> int:
    """float32 values of scratch that one thread needs to widen a task's weight rows of `depth`.

    A task has its columns by the average rows of all experts, and one expert may have enough rows
    to widen the weights of a fine task.
    """
    return max(FINE, wide_columns(depth)) * depth


@kernel(inline=True)
def finish(raw: int, bias: int, out: int, count: int, residual: int) -> None:
    """out = raw (+ bias) (+ out)."""
    source = view_f32(raw, count)
    target = view_f32(out, count)
    if bias != 0:
        shift = view_f32(bias, count)
        if residual != 0:
            for i in range(count):
                target[i] = target[i] + (source[i] + shift[i])
        else:
            for i in range(count):
                target[i] = source[i] + shift[i]
    elif residual != 0:
        for i in range(count):
            target[i] = target[i] + source[i]


@kernel(inline=True)
def silu_gate(gate: int, up: int, out: int, count: int, limit: float) -> None:
    """out = silu(gate) · up; a `limit` above 0 bounds gate from above and up on both sides."""
    g = view_f32(gate, count)
    u = view_f32(up, count)
    target = view_f32(out, count)
    most = np.float32(limit) if limit > 0.0 else np.float32(np.inf)
    for i in range(count):
        # Comparisons that a NaN fails let it through.
        gated = most if g[i] > most else g[i]
        factor = most if u[i] > most else u[i]
        factor = -most if factor < -most else factor
        target[i] = (gated * sigmoid32(gated)) * factor


@kernel(parallel=True)
def _project(
    dot: int, x: Place, rows: int, weights: Weights, columns: int, depth: int, bias: int,
    residual: int, raw: Place, out: Place, panels: Place,
) -> None:  # fmt: skip
    source, source_stride = x
    w, w_stride, scale, scale_stride, factors = weights
    held, held_stride = raw
    to, to_stride = out
    panel, panel_stride = panels
    step = task_columns(rows, depth)
    for task in prange((columns + step - 1) // step):
        c = task * step
        count = min(step, columns - c)
        direct = bias == 0 and residual == 0
        target = to if direct else held
        target_stride = to_stride if direct else held_stride
        dot_block(dot, source, source_stride, rows, w + c * w_stride, w_stride,
                  scale + c * scale_stride, scale_stride, factors + 4 * c, count, depth,
                  target + 4 * c, target_stride,
                  panel + get_thread_id() * panel_stride)  # fmt: skip
        if not direct:
            shift = bias + 4 * c if bias != 0 else 0
            for r in range(rows):
                finish(held + r * held_stride + 4 * c, shift, to + r * to_stride + 4 * c, count,
                       residual)  # fmt: skip


@kernel(inline=True)
def _normed(x: Place, rows: int, depth: int, norm: Norming, normed: Place) -> Place:
    """Where the rows lie that a projection reads: `normed`, once they are there, or `x` itself."""
    weight, width, eps = norm
    if weight == 0:
        return x
    rms_rows(x[0], x[1], rows, weight, width, depth, eps, normed[0], normed[1])
    return normed


@kernel()
def linear(
    dot: int, x: Place, rows: int, weights: Weights, columns: int, depth: int, bias: int,
    residual: int, raw: Place, out: Place, panels: Place, norm: Norming, normed: Place,
) -> None:  # fmt: skip
    """out[r] = W · n(x[r]) (+ bias) (+ out[r]); n is the RMS norm by `norm`, or nothing.

    `dot`, `weights` and `depth` are the matrix's, `columns` are its rows. `bias` is an address or
    0, `residual` 1 where out[r] is added. Scratch: `raw` (only with one of these) and `normed`
    (only with a norm) have as many rows as `x`, `panels` one for each core.
    """
    source = _normed(x, rows, depth, norm, normed)
    _project(dot, source, rows, weights, columns, depth, bias, residual, raw, out,
             panels)  # fmt: skip


@kernel(parallel=True)
def _gate_rows(
    dot: int, x: Place, rows: int, weights: Weights, half: int, depth: int, raw: Place, out: Place,
    panels: Place, run: int, limit: float,
) -> None:  # fmt: skip
    source, source_stride = x
    w, w_stride, scale, scale_stride, factors = weights
    held, held_stride = raw
    to, to_stride = out
    first_panel, panel_stride = panels
    step = run if rows < WIDEN_ROWS else task_columns(rows, depth)
    for task in prange((half + step - 1) // step):
        c = task * step
        count = min(step, half - c)
        panel = first_panel + get_thread_id() * panel_stride
        for part in range(2):
            n = c + part * half
            dot_block(dot, source, source_stride, rows, w + n * w_stride, w_stride,
                      scale + n * scale_stride, scale_stride, factors + 4 * n, count, depth,
                      held + 4 * n, held_stride, panel)  # fmt: skip
        for r in range(rows):
            line = held + r * held_stride + 4 * c
            silu_gate(line, line + 4 * half, to + r * to_stride + 4 * c, count, limit)


@kernel()
def gated(
    dot: int, x: Place, rows: int, weights: Weights, half: int, depth: int, raw: Place, out: Place,
    panels: Place, norm: Norming, normed: Place, run: int, limit: float,
) -> None:  # fmt: skip
    """out[r] = silu(G · n(x[r])) · (U · n(x[r])), n as in `linear`.

    Rows 0 … half−1 of W are G, the next `half` are U. With few rows of x a task takes `run`
    columns: each switch between G and U starts a cold stream. `limit` is `silu_gate`'s; the
    rest as in `linear`, but `raw` is always written: 2 · half values a row.
    """
    source = _normed(x, rows, depth, norm, normed)
    _gate_rows(dot, source, rows, weights, half, depth, raw, out, panels, run, limit)
