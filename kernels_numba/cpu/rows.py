"""Moving rows: copies and embedding look-up."""

from __future__ import annotations

from kernels_numba.cpu.dot import BF16, NVFP4
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.tiles import widen_bf16, widen_nvfp4
from kernels_numba.jit import kernel


@kernel(inline=True)
def copy_row(source: int, out: int, width: int) -> None:
    values = view_f32(source, width)
    target = view_f32(out, width)
    for i in range(width):
        target[i] = values[i]


@kernel()
def embed(
    form: int, tokens: int, rows: int, w: int, w_stride: int, scale: int, scale_stride: int,
    factors: int, depth: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r] = row tokens[r] of the matrix, as float32 [depth]."""
    ids = view_i32(tokens, rows)
    for r in range(rows):
        n = ids[r]
        row = w + n * w_stride
        target = out + r * out_stride
        if form == BF16:
            widen_bf16(row, 0, 0, depth, target)
        elif form == NVFP4:
            widen_nvfp4(row, scale + n * scale_stride, factors + 4 * n, depth, target)
        else:
            copy_row(row, target, depth)
