"""Products in which every group of rows of a matrix meets values of its own."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import dot_block, widen_row
from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.tiles import COLUMNS, ROWS, sum_tile
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR

PANEL_ROWS = 16
"""Weight rows that one thread widens at a time."""


@kernel(parallel=True)
def grouped_linear(
    dot: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, groups: int, columns: int, depth: int, x_group: int, out: int,
    out_stride: int, panels: int, panel_stride: int,
) -> None:  # fmt: skip
    """out[r, g, j] = w[g, j] · x[r, g]: `columns` rows of w per group, `x_group` bytes of x."""
    for g in prange(groups):
        n = g * columns
        dot_block(dot, x + g * x_group, x_stride, rows, w + n * w_stride, w_stride,
                  scale + n * scale_stride, scale_stride, factors + 4 * n, columns, depth,
                  out + 4 * n, out_stride, panels + get_thread_id() * panel_stride)  # fmt: skip


@kernel(parallel=True)
def grouped_sum(
    widen: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, groups: int, count: int, depth: int, x_group: int, out: int,
    out_stride: int, out_group: int, panels: int, panel_stride: int,
) -> None:  # fmt: skip
    """out[r, g, :] = Σ_i x[r, g, i] · w[g, i, :] in order of i: `count` rows of w per group.

    `x_group` and `out_group` are bytes from one group's values to the next's.
    """
    vectors = depth // VECTOR
    for g in prange(groups):
        panel = panels + get_thread_id() * panel_stride
        for r in range(rows):
            target = view_f32(out + r * out_stride + g * out_group, depth)
            for i in range(depth):
                target[i] = np.float32(0.0)
        for first in range(0, count, PANEL_ROWS):
            held = min(PANEL_ROWS, count - first)
            for i in range(held):
                n = g * count + first + i
                widen_row(widen, w + n * w_stride, scale + n * scale_stride, factors + 4 * n, depth,
                          panel + 4 * depth * i)  # fmt: skip
            for r in range(0, rows, ROWS):
                for v in range(0, vectors, COLUMNS):
                    sum_tile(x + r * x_stride + g * x_group + 4 * first, x_stride,
                             min(ROWS, rows - r) - 1, min(COLUMNS, vectors - v) - 1,
                             panel + 4 * VECTOR * v, 4 * depth, held,
                             out + r * out_stride + g * out_group + 4 * VECTOR * v,
                             out_stride)  # fmt: skip
