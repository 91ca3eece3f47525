"""Blocks of dot products over any form of weight: the one arithmetic behind every projection."""

from __future__ import annotations

from kernels_numba.cpu.tiles import (
    COLUMNS,
    ROWS,
    dot_bf16_line,
    dot_bf16_tile,
    dot_f32_line,
    dot_f32_tile,
    dot_nvfp4_line,
    dot_nvfp4_tile,
    widen_bf16,
    widen_nvfp4,
)
from kernels_numba.jit import kernel
from kernels_numba.weights import Form

F32 = int(Form.F32)
BF16 = int(Form.BF16)
NVFP4 = int(Form.NVFP4)
WIDEN_ROWS = 12
"""From this many rows on a block of weights is widened to float32 first: same values, same sums."""


@kernel()
def dot_f32_block(
    x: int, x_stride: int, rows: int, w: int, w_stride: int, columns: int, depth: int,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c] for float32 rows; strides in bytes."""
    if rows == 1:
        for c in range(0, columns, COLUMNS):
            dot_f32_line(x, x_stride, 0, min(COLUMNS, columns - c) - 1, w + c * w_stride, w_stride,
                     0, 0, 0, depth, out + 4 * c, out_stride)  # fmt: skip
        return
    for r in range(0, rows, ROWS):
        last_row = min(ROWS, rows - r) - 1
        line = out + r * out_stride
        for c in range(0, columns, COLUMNS):
            dot_f32_tile(x + r * x_stride, x_stride, last_row, min(COLUMNS, columns - c) - 1,
                     w + c * w_stride, w_stride, 0, 0, 0, depth, line + 4 * c,
                     out_stride)  # fmt: skip


@kernel()
def dot_bf16_block(
    x: int, x_stride: int, rows: int, w: int, w_stride: int, columns: int, depth: int,
    out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c] for bf16 weight rows read as they lie."""
    if rows == 1:
        for c in range(0, columns, COLUMNS):
            dot_bf16_line(x, x_stride, 0, min(COLUMNS, columns - c) - 1, w + c * w_stride, w_stride,
                     0, 0, 0, depth, out + 4 * c, out_stride)  # fmt: skip
        return
    for r in range(0, rows, ROWS):
        last_row = min(ROWS, rows - r) - 1
        line = out + r * out_stride
        for c in range(0, columns, COLUMNS):
            dot_bf16_tile(x + r * x_stride, x_stride, last_row, min(COLUMNS, columns - c) - 1,
                     w + c * w_stride, w_stride, 0, 0, 0, depth, line + 4 * c,
                     out_stride)  # fmt: skip


@kernel()
def dot_nvfp4_block(
    x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int, scale_stride: int,
    factors: int, columns: int, depth: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c] for packed NVFP4 weight rows."""
    if rows == 1:
        for c in range(0, columns, COLUMNS):
            dot_nvfp4_line(x, x_stride, 0, min(COLUMNS, columns - c) - 1, w + c * w_stride,
                           w_stride, scale + c * scale_stride, scale_stride, factors + 4 * c, depth,
                           out + 4 * c, out_stride)  # fmt: skip
        return
    for r in range(0, rows, ROWS):
        last_row = min(ROWS, rows - r) - 1
        line = out + r * out_stride
        for c in range(0, columns, COLUMNS):
            dot_nvfp4_tile(x + r * x_stride, x_stride, last_row, min(COLUMNS, columns - c) - 1,
                           w + c * w_stride, w_stride, scale + c * scale_stride, scale_stride,
                           factors + 4 * c, depth, line + 4 * c, out_stride)  # fmt: skip


@kernel()
def dot_block(
    form: int, x: int, x_stride: int, rows: int, w: int, w_stride: int, scale: int,
    scale_stride: int, factors: int, columns: int, depth: int, out: int, out_stride: int,
    panel: int,
) -> None:  # fmt: skip
    """out[r, c] = x[r] · w[c]; `panel` is scratch for `columns` float32 rows of `depth`."""
    if form == F32:
        dot_f32_block(x, x_stride, rows, w, w_stride, columns, depth, out, out_stride)
    elif rows >= WIDEN_ROWS:
        for c in range(columns):
            if form == BF16:
                widen_bf16(w + c * w_stride, 0, 0, depth, panel + 4 * depth * c)
            else:
                widen_nvfp4(w + c * w_stride, scale + c * scale_stride, factors + 4 * c, depth,
                            panel + 4 * depth * c)  # fmt: skip
        dot_f32_block(x, x_stride, rows, panel, 4 * depth, columns, depth, out, out_stride)
    elif form == BF16:
        dot_bf16_block(x, x_stride, rows, w, w_stride, columns, depth, out, out_stride)
    else:
        dot_nvfp4_block(x, x_stride, rows, w, w_stride, scale, scale_stride, factors, columns,
                        depth, out, out_stride)  # fmt: skip
