"""Moving rows: copies and embedding look-up."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import widen_row
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.jit import kernel


@kernel(inline=True)
def copy_row(source: int, out: int, width: int) -> None:
    values = view_f32(source, width)
    target = view_f32(out, width)
    for i in range(width):
        target[i] = values[i]


@kernel()
def embed(
    widen: int, tokens: int, rows: int, first: int, held: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, depth: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r] = row tokens[r] − first of the matrix, as float32 [depth]; 0 beyond its `held`."""
    ids = view_i32(tokens, rows)
    for r in range(rows):
        n = np.int64(ids[r]) - first
        if 0 <= n < held:
            widen_row(widen, w + n * w_stride, scale + n * scale_stride, factors + 4 * n, depth,
                      out + r * out_stride)  # fmt: skip
        else:
            target = view_f32(out + r * out_stride, depth)
            for i in range(depth):
                target[i] = np.float32(0.0)
