"""Projections: rows times a matrix, with what stands before and after it folded in."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import WIDEN_ROWS, dot_block
from kernels_numba.cpu.norm import rms_rows
from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import sigmoid32
from kernels_numba.jit import get_thread_id, kernel, prange

FINE = 16
"""Output columns per task while rows are few: small enough to share out evenly."""
PANEL_BYTES = 384 << 10
"""A widened block of weight rows stays in a core's second-level cache."""
WIDE = 64


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
    dot: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, bias: int, residual: int,
    raw: int, raw_stride: int, out: int, out_stride: int, panels: int, panel_stride: int,
) -> None:  # fmt: skip
    step = task_columns(rows, depth)
    for task in prange((columns + step - 1) // step):
        c = task * step
        count = min(step, columns - c)
        direct = bias == 0 and residual == 0
        target = out if direct else raw
        target_stride = out_stride if direct else raw_stride
        dot_block(dot, x, x_stride, rows, w + c * w_stride, w_stride, scale + c * scale_stride,
                  scale_stride, factors + 4 * c, count, depth, target + 4 * c, target_stride,
                  panels + get_thread_id() * panel_stride)  # fmt: skip
        if not direct:
            shift = bias + 4 * c if bias != 0 else 0
            for r in range(rows):
                finish(raw + r * raw_stride + 4 * c, shift, out + r * out_stride + 4 * c, count,
                       residual)  # fmt: skip


@kernel()
def linear(
    dot: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, bias: int, residual: int,
    raw: int, raw_stride: int, out: int, out_stride: int, panels: int, panel_stride: int,
    norm: int, width: int, eps: float, normed: int, normed_stride: int,
) -> None:  # fmt: skip
    """out[r] = W · n(x[r]) (+ bias) (+ out[r]); n is the RMS norm by `norm`, or nothing when 0."""
    source = x
    source_stride = x_stride
    if norm != 0:
        rms_rows(x, x_stride, rows, norm, width, depth, eps, normed, normed_stride)
        source = normed
        source_stride = normed_stride
    _project(dot, source, source_stride, rows, w, w_stride, scale, scale_stride, factors, columns,
             depth, bias, residual, raw, raw_stride, out, out_stride, panels,
             panel_stride)  # fmt: skip


@kernel(parallel=True)
def gated_rows(
    dot: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, half: int, depth: int, raw: int, raw_stride: int,
    out: int, out_stride: int, panels: int, panel_stride: int, run: int, limit: float,
) -> None:  # fmt: skip
    """out[r] = silu(G · x[r]) · (U · x[r]): rows 0 … half−1 of W are G, the next `half` are U.

    With few rows a task takes `run` columns: each switch between G and U starts a cold stream.
    """
    step = run if rows < WIDEN_ROWS else task_columns(rows, depth)
    for task in prange((half + step - 1) // step):
        c = task * step
        count = min(step, half - c)
        panel = panels + get_thread_id() * panel_stride
        for part in range(2):
            n = c + part * half
            dot_block(dot, x, x_stride, rows, w + n * w_stride, w_stride, scale + n * scale_stride,
                      scale_stride, factors + 4 * n, count, depth, raw + 4 * n, raw_stride,
                      panel)  # fmt: skip
        for r in range(rows):
            line = raw + r * raw_stride + 4 * c
            silu_gate(line, line + 4 * half, out + r * out_stride + 4 * c, count, limit)


@kernel()
def gated(
    dot: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, half: int, depth: int, raw: int, raw_stride: int,
    out: int, out_stride: int, panels: int, panel_stride: int, norm: int, width: int, eps: float,
    normed: int, normed_stride: int, run: int, limit: float,
) -> None:  # fmt: skip
    """`gated_rows` of the normalised rows (of the rows as they are when `norm` is 0)."""
    source = x
    source_stride = x_stride
    if norm != 0:
        rms_rows(x, x_stride, rows, norm, width, depth, eps, normed, normed_stride)
        source = normed
        source_stride = normed_stride
    gated_rows(dot, source, source_stride, rows, w, w_stride, scale, scale_stride, factors, half,
               depth, raw, raw_stride, out, out_stride, panels, panel_stride, run,
               limit)  # fmt: skip
