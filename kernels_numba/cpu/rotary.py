"""What happens to a row's queries, keys and values between projection and attention."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.norm import SERIAL_ROWS
from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.jit import kernel, prange


@kernel(inline=True)
def _norm_head(x: int, weight: int, dim: int, eps: float, out: int) -> None:
    """RMS norm over one head, summed in order."""
    source = view_f32(x, dim)
    target = view_f32(out, dim)
    if weight == 0:
        for i in range(dim):
            target[i] = source[i]
        return
    total = np.float32(0.0)
    for i in range(dim):
        total += source[i] * source[i]
    inverse = np.float32(1.0) / np.sqrt(total / np.float32(dim) + np.float32(eps))
    scale = view_f32(weight, dim)
    for i in range(dim):
        target[i] = (source[i] * inverse) * scale[i]


@kernel(inline=True)
def _rotate_half(x: int, cos_sin: int, half: int) -> None:
    """Rotate (x[i], x[half + i]) by the row's angle i; the table row is cos [half], sin [half]."""
    low = view_f32(x, half)
    high = view_f32(x + 4 * half, half)
    cos = view_f32(cos_sin, half)
    sin = view_f32(cos_sin + 4 * half, half)
    for i in range(half):
        a = low[i]
        b = high[i]
        low[i] = a * cos[i] - b * sin[i]
        high[i] = b * cos[i] + a * sin[i]


@kernel()
def _rotary_row(
    r: int, qkv: int, qkv_stride: int, positions: int, slots: int, tables: int, table_width: int,
    heads: int, kv_heads: int, dim: int, padded: int, q_norm: int, k_norm: int, eps: float,
    angles: int, half: int, queries: int, query_stride: int, keys: int, values: int,
    block_tokens: int,
) -> None:  # fmt: skip
    position = view_i32(positions, r + 1)[r]
    entry = view_i32(slots, r + 1)[r] * table_width + position // block_tokens
    block = view_i32(tables, entry + 1)[entry]
    row = qkv + r * qkv_stride
    cos_sin = angles + position * half * 8
    for h in range(heads):
        target = queries + r * query_stride + 4 * h * padded
        _norm_head(row + 4 * h * dim, q_norm, dim, eps, target)
        _rotate_half(target, cos_sin, half)
    for h in range(kv_heads):
        line = (block * kv_heads + h) * block_tokens + position % block_tokens
        place = 4 * padded * line
        _norm_head(row + 4 * (heads + h) * dim, k_norm, dim, eps, keys + place)
        _rotate_half(keys + place, cos_sin, half)
        source = view_f32(row + 4 * (heads + kv_heads + h) * dim, dim)
        target_values = view_f32(values + place, dim)
        for i in range(dim):
            target_values[i] = source[i]


@kernel(parallel=True)
def _rotary_parallel(
    qkv: int, qkv_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, heads: int, kv_heads: int, dim: int, padded: int, q_norm: int, k_norm: int,
    eps: float, angles: int, half: int, queries: int, query_stride: int, keys: int, values: int,
    block_tokens: int,
) -> None:  # fmt: skip
    for r in prange(rows):
        _rotary_row(r, qkv, qkv_stride, positions, slots, tables, table_width, heads, kv_heads, dim,
                    padded, q_norm, k_norm, eps, angles, half, queries, query_stride, keys, values,
                    block_tokens)  # fmt: skip


@kernel()
def rotary_cache_write(
    qkv: int, qkv_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, heads: int, kv_heads: int, dim: int, padded: int, q_norm: int, k_norm: int,
    eps: float, angles: int, half: int, queries: int, query_stride: int, keys: int, values: int,
    block_tokens: int,
) -> None:  # fmt: skip
    """Split qkv rows; norm and rotate q and k; q to `queries`, k and v to their cache places."""
    if rows > SERIAL_ROWS:
        _rotary_parallel(qkv, qkv_stride, rows, positions, slots, tables, table_width, heads,
                         kv_heads, dim, padded, q_norm, k_norm, eps, angles, half, queries,
                         query_stride, keys, values, block_tokens)  # fmt: skip
        return
    for r in range(rows):
        _rotary_row(r, qkv, qkv_stride, positions, slots, tables, table_width, heads, kv_heads, dim,
                    padded, q_norm, k_norm, eps, angles, half, queries, query_stride, keys, values,
                    block_tokens)  # fmt: skip
