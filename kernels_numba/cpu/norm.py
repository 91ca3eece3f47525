"""RMS normalisation of rows."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.tiles import dot_line
from kernels_numba.jit import kernel, prange
from kernels_numba.weights import Form

F32 = int(Form.F32)
SERIAL_ROWS = 4
"""Up to this many rows one thread is quicker than a parallel region."""


@kernel()
def rms_row(x: int, weight: int, width: int, depth: int, eps: float, out: int) -> None:
    """out = x / √(mean(x²) + eps) · weight over `width` values; x is zero from there to `depth`."""
    target = view_f32(out, width)
    dot_line(F32, x, 0, 0, 0, x, 0, 0, 0, 0, depth, out, 0)
    mean = np.float32(target[0] / np.float32(width))
    inverse = np.float32(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
    source = view_f32(x, width)
    scale = view_f32(weight, width)
    for i in range(width):
        target[i] = (source[i] * inverse) * scale[i]


@kernel(parallel=True)
def _rms_rows_parallel(
    x: int, x_stride: int, rows: int, weight: int, width: int, depth: int, eps: float,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    for r in prange(rows):
        rms_row(x + r * x_stride, weight, width, depth, eps, out + r * out_stride)


@kernel()
def rms_rows(
    x: int, x_stride: int, rows: int, weight: int, width: int, depth: int, eps: float,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    """`rms_row` of each row; strides in bytes. `out` never overlaps `x`."""
    if rows <= SERIAL_ROWS:
        for r in range(rows):
            rms_row(x + r * x_stride, weight, width, depth, eps, out + r * out_stride)
    else:
        _rms_rows_parallel(x, x_stride, rows, weight, width, depth, eps, out, out_stride)
