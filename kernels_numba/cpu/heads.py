"""What is done to parts of rows: rotation and moving of heads, layer norm, rows to paged places."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.rows import copy_row
from kernels_numba.cpu.scalar import fma32
from kernels_numba.cpu.tiles import dot_line
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import Form

F32 = int(Form.F32)


@kernel(parallel=True)
def rotate_heads(
    x: int, x_stride: int, rows: int, positions: int, heads: int, head_bytes: int, at: int,
    half: int, pairs: int, inverse: int, every: int, angles: int,
) -> None:  # fmt: skip
    """Turn 2 · half values of each head, `at` bytes into it, by the angles of the row's position,
    or of the first position of its group of `every`.

    `pairs`: values 2i and 2i + 1 turn together, else i and half + i. `inverse` turns back.
    """
    for r in prange(rows):
        position = view_i32(positions, rows)[r] // every * every
        cos = view_f32(angles + position * half * 8, half)
        sin = view_f32(angles + position * half * 8 + 4 * half, half)
        for h in range(heads):
            value = view_f32(x + r * x_stride + h * head_bytes + at, 2 * half)
            for i in range(half):
                first = 2 * i if pairs != 0 else i
                second = 2 * i + 1 if pairs != 0 else half + i
                a = value[first]
                b = value[second]
                s = -sin[i] if inverse != 0 else sin[i]
                value[first] = a * cos[i] - b * s
                value[second] = b * cos[i] + a * s


@kernel(parallel=True)
def copy_heads(
    x: int, x_stride: int, rows: int, heads: int, x_head: int, x_at: int, width: int, out: int,
    out_stride: int, out_head: int, out_at: int,
) -> None:  # fmt: skip
    """out[r, h, out_at …] = x[r, h, x_at …], `width` values of each head; sizes in bytes."""
    for r in prange(rows):
        for h in range(heads):
            copy_row(x + r * x_stride + h * x_head + x_at,
                     out + r * out_stride + h * out_head + out_at, width)  # fmt: skip


@kernel(parallel=True)
def layer_norm(
    x: int, x_stride: int, rows: int, weight: int, bias: int, width: int, eps: float, out: int,
    out_stride: int,
) -> None:  # fmt: skip
    """out = (x − mean) / √(variance + eps) · weight + bias, summed in order."""
    scale = view_f32(weight, width)
    shift = view_f32(bias, width)
    for r in prange(rows):
        source = view_f32(x + r * x_stride, width)
        target = view_f32(out + r * out_stride, width)
        total = np.float32(0.0)
        for i in range(width):
            total += source[i]
        mean = np.float32(total / np.float32(width))
        spread = np.float32(0.0)
        for i in range(width):
            spread = fma32(source[i] - mean, source[i] - mean, spread)
        inverse = np.float32(
            np.float32(1.0) / np.sqrt(spread / np.float32(width) + np.float32(eps))
        )
        for i in range(width):
            target[i] = (source[i] - mean) * inverse * scale[i] + shift[i]


@kernel()
def store_rows(
    x: int, x_stride: int, rows: int, positions: int, slots: int, tables: int, table_width: int,
    every: int, width: int, block_rows: int, store: int, line: int,
) -> None:  # fmt: skip
    """Row r, if it is the last of a group of `every`, to the group's place in its slot's blocks."""
    for r in range(rows):
        position = view_i32(positions, rows)[r]
        if (position + 1) % every == 0:
            group = position // every
            entry = view_i32(slots, rows)[r] * table_width + group // block_rows
            block = view_i32(tables, entry + 1)[entry]
            place = block * block_rows + group % block_rows
            copy_row(x + r * x_stride, store + place * line, width)


@kernel()
def _norm_head(x: int, width: int, eps: float, scratch: int) -> None:
    dot_line(F32, x, 0, 0, 0, x, 0, 0, 0, 0, width, scratch, 0)
    mean = np.float32(view_f32(scratch, 1)[0] / np.float32(width))
    inverse = np.float32(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
    value = view_f32(x, width)
    for i in range(width):
        value[i] = value[i] * inverse


@kernel(parallel=True)
def norm_heads(
    x: int, x_stride: int, rows: int, heads: int, width: int, eps: float, scratch: int,
    scratch_stride: int,
) -> None:  # fmt: skip
    """Divide each head of whole vectors by its root mean square, in place."""
    for r in prange(rows):
        for h in range(heads):
            _norm_head(x + r * x_stride + 4 * h * width, width, eps,
                       scratch + get_thread_id() * scratch_stride)  # fmt: skip
